"""From a model, a memory and a wish to what fits: integers only, one formula for the bytes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import msgspec

from octavo.contract.formats import ITEM_BYTES, find_formats
from octavo.contract.layout import KVLayout
from octavo.errors import ConfigError
from octavo.planner.cost import Fleet, Price, plan_fleet
from octavo.planner.subject import Subject
from octavo.sizes import ask_bytes

SHAPE_CONTEXT = 4096
"""Tokens of a request if neither the wish nor the subject says."""

_MOST_BYTES = 2**63
_USUAL_BLOCK = 16
"""Tokens. Smaller blocks are no advice: they save little and cost time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What should fit. Raises ConfigError for what no engine could do."""

    memory_bytes: int
    """For weights, workspace and KV together; of a GPU, all that it has."""
    context_tokens: int | None = None
    """Length of every request, answer included; None: the model's context, or `SHAPE_CONTEXT`."""
    requests: int = 1
    """At once."""
    dtype: str = "auto"
    """Of KV."""
    block_size: int = 16
    step_tokens: int = 2048
    """Tokens computed in one step."""
    max_num_seqs: int = 128
    """Sequences that run at once: bounds the workspace, not the plan."""
    prefill_rate_per_s: float | None = None
    """Requests a second whose KV goes to another machine."""
    price: Price = field(default_factory=Price)

    def __post_init__(self) -> None:
        for flag, value in (("--requests", self.requests), ("--block-size", self.block_size)):
            if not 0 < value < 2**63:
                raise ConfigError(f"{flag} must be at least 1 and below 2^63, got {value}")
        if self.context_tokens is not None and not 2 <= self.context_tokens < 2**63:
            raise ConfigError(
                f"--context must be at least 2 tokens, one of them the answer, and below 2^63, "
                f"got {self.context_tokens}"
            )
        if self.prefill_rate_per_s is not None and not 0 < self.prefill_rate_per_s < 1e12:
            raise ConfigError(
                f"--prefill-rate must be positive requests a second, got {self.prefill_rate_per_s}"
            )
        if self.dtype != "auto":
            find_formats(self.dtype, name="--dtype")


class GroupPlan(msgspec.Struct, frozen=True, kw_only=True):
    """One KV group."""

    name: str
    layers: int
    kv_heads: int
    head_dim: int
    window: int | None
    """None: attends to everything."""
    block_size: int
    block_bytes: int
    kv_bytes_per_token: int
    kv_bytes_per_request: int
    """In whole blocks, those behind the window freed."""


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What fits."""

    model: str
    dtype: str
    """Of KV."""
    memory_bytes: int
    """For weights, workspace, graphs and KV together."""
    gpu_memory_bytes: int | None
    """All that the GPU has; None: the memory is not a GPU's."""
    gpu_memory_utilization: float | None
    kv_bytes_per_token: int
    groups: tuple[GroupPlan, ...]
    weights_bytes: int | None
    """None: only a shape was given."""
    workspace_bytes: int | None
    """An estimate; None: only a shape was given."""
    graph_bytes: int
    kv_pool_bytes: int
    """What is left for KV, at least 0."""
    blocks: int
    tokens: int
    """Longest single text that the pool holds."""
    context_tokens: int
    model_context_tokens: int | None
    requests: int
    kv_bytes_per_request: int
    """In whole blocks, those behind a window freed."""
    kv_bytes_peak_per_request: int
    """While its prompt is computed; more than the above only where there are windows."""
    kv_bytes_all_requests: int
    memory_needed_bytes: int
    """Weights, workspace, graphs and KV: all requests at their length, one of them at its peak."""
    max_concurrent_requests: int
    fits: bool
    advice: tuple[str, ...] = ()
    """Flags that would each make it fit; empty if it does."""
    prefill_rate_per_s: float | None
    egress_bits_per_s: float | None
    """KV that leaves the machine at that rate."""
    cost_per_million_tokens: float | None
    cost_per_million_tokens_without_paging: float | None
    fleet: Fleet | None


def make_plan(subject: Subject, wish: Wish) -> Plan:
    """Work out what fits, without advice. Raises ConfigError for sizes beyond all machines."""
    context = wish.context_tokens or subject.context or SHAPE_CONTEXT
    dtype = subject.dtype if wish.dtype == "auto" else wish.dtype
    layout = subject.layout(block_size=wish.block_size, dtype=dtype)
    workspace = subject.workspace_bytes(
        step_tokens=wish.step_tokens, max_num_seqs=wish.max_num_seqs
    )
    gpu, memory = subject.gpu, wish.memory_bytes
    usable = memory if gpu is None else gpu.usable_bytes(memory)
    taken = (subject.weights_bytes or 0) + (workspace or 0) + subject.graph_bytes
    pool = max(0, usable - taken)
    blocks = layout.blocks_in(pool)
    per_request = layout.peak_blocks(context, 1)
    # With windows, the request whose prompt is being computed holds more than in the long run.
    first = layout.peak_blocks(context, wish.step_tokens)
    held = first + (wish.requests - 1) * per_request
    need, request_bytes = taken + held * layout.block_bytes, per_request * layout.block_bytes
    if need >= _MOST_BYTES:
        raise ConfigError(
            f"{wish.requests} requests of {context} tokens need 2^63 bytes or more: lower "
            "--requests, --context or --block-size"
        )
    rate = wish.prefill_rate_per_s
    return Plan(
        model=subject.name,
        dtype=dtype,
        memory_bytes=usable,
        gpu_memory_bytes=None if gpu is None else memory,
        gpu_memory_utilization=None if gpu is None else gpu.utilization,
        kv_bytes_per_token=layout.bytes_per_token,
        groups=_groups(layout, context),
        weights_bytes=subject.weights_bytes,
        workspace_bytes=workspace,
        graph_bytes=subject.graph_bytes,
        kv_pool_bytes=pool,
        blocks=blocks,
        tokens=layout.capacity_tokens(blocks, wish.step_tokens),
        context_tokens=context,
        model_context_tokens=subject.context,
        requests=wish.requests,
        kv_bytes_per_request=request_bytes,
        kv_bytes_peak_per_request=first * layout.block_bytes,
        kv_bytes_all_requests=wish.requests * request_bytes,
        memory_needed_bytes=need,
        max_concurrent_requests=max(0, (blocks - first) // per_request + 1),
        fits=held <= blocks and _within(context, subject.context),
        prefill_rate_per_s=rate,
        egress_bits_per_s=None if rate is None else rate * 8 * request_bytes,
        cost_per_million_tokens=wish.price.per_million(),
        cost_per_million_tokens_without_paging=wish.price.per_million(paged=False),
        fleet=plan_fleet(wish.price),
    )


def advise(subject: Subject, wish: Wish) -> Plan:
    """Work out what fits; if it does not, add flags that make it fit, most telling first.

    Each line of advice alone suffices; one that names two flags needs both.
    """
    plan = make_plan(subject, wish)
    if plan.fits:
        return plan
    changes = [one for one in _changes(subject, wish, plan) if make_plan(subject, one.wish).fits]
    named = any("--block-size" in one.flags for one in changes)
    if not changes or (_long_blocks(wish, plan) and not named):
        changes.insert(0, _together(subject, wish, plan))
    advice = tuple(f"{one.flags}: {one.why}" for one in changes)
    return msgspec.structs.replace(plan, advice=advice)


@dataclass(frozen=True, slots=True)
class _Change:
    flags: str
    why: str
    wish: Wish


def _changes(subject: Subject, wish: Wish, plan: Plan) -> list[_Change]:
    """List changes of one flag that may help."""
    blocks = _smaller_blocks(subject, wish, plan)
    # A block longer than a whole request is the first thing to be mended.
    long = _long_blocks(wish, plan)
    changes = [*(blocks if long else ()), _more_memory(subject, wish, plan)]
    if most := plan.max_concurrent_requests:
        changes.append(
            _Change(f"--requests {most}", "as many as fit", replace(wish, requests=most))
        )
    longest = _longest_context(subject, wish, plan)
    if 2 <= longest < plan.context_tokens:
        other = replace(wish, context_tokens=longest)
        changes.append(_Change(f"--context {longest}", "the longest that fits", other))
    changes += [
        _Change(f"--dtype {name}", "smaller KV", replace(wish, dtype=name))
        for name in ITEM_BYTES
        if _kv_bytes_per_token(subject, wish, name) < plan.kv_bytes_per_token
    ]
    return changes if long else changes + blocks


def _kv_bytes_per_token(subject: Subject, wish: Wish, dtype: str) -> int:
    return subject.layout(block_size=wish.block_size, dtype=dtype).bytes_per_token


def _smaller_blocks(subject: Subject, wish: Wish, plan: Plan) -> list[_Change]:
    """Return the largest smaller block that fits; none below the usual one."""
    size = 1 << (min(wish.block_size, plan.context_tokens) - 1).bit_length()
    while (size := size // 2) >= _USUAL_BLOCK:
        other = replace(wish, block_size=size)
        if make_plan(subject, other).fits:
            return [_Change(f"--block-size {size}", "less of a last block is empty", other)]
    return []


def _longest_context(subject: Subject, wish: Wish, plan: Plan) -> int:
    layout = subject.layout(block_size=wish.block_size, dtype=plan.dtype)
    # Behind a window a text holds least where a block ends, so only such lengths are tried.
    step = math.lcm(*layout.block_sizes)
    low, high = 0, plan.context_tokens // step + 1
    while high - low > 1:
        middle = (low + high) // 2
        first = layout.peak_blocks(middle * step, wish.step_tokens)
        if first + (wish.requests - 1) * layout.peak_blocks(middle * step, 1) <= plan.blocks:
            low = middle
        else:
            high = middle
    longest = low * step
    return min(longest, subject.context or longest)


def _more_memory(subject: Subject, wish: Wish, plan: Plan) -> _Change:
    need, flag = plan.memory_needed_bytes, "--memory"
    if subject.gpu is not None:
        need, flag = subject.gpu.memory_for(need), "--gpu-memory"
    requests = "1 request" if plan.requests == 1 else f"{plan.requests:,} requests"
    why = f"room for {requests} of {plan.context_tokens:,} tokens"
    return _Change(f"{flag} {ask_bytes(need)}", why, replace(wish, memory_bytes=need))


def _together(subject: Subject, wish: Wish, plan: Plan) -> _Change:
    """No single flag is enough: mend what no memory makes sensible, then ask for memory."""
    flags: list[str] = []
    reasons: list[str] = []
    if not _within(plan.context_tokens, subject.context):
        wish = replace(wish, context_tokens=subject.context)
        flags.append(f"--context {subject.context}")
        reasons.append("the model's context")
    if _long_blocks(wish, plan):
        wish = replace(wish, block_size=_USUAL_BLOCK)
        flags.append(f"--block-size {_USUAL_BLOCK}")
        reasons.append("blocks shorter than a request")
    mended = make_plan(subject, wish)
    if not mended.fits:
        more = _more_memory(subject, wish, mended)
        wish = more.wish
        flags.append(more.flags)
        reasons.append(more.why)
    return _Change(" ".join(flags), ", ".join(reasons), wish)


def _long_blocks(wish: Wish, plan: Plan) -> bool:
    return wish.block_size > max(_USUAL_BLOCK, wish.context_tokens or plan.context_tokens)


def _within(context: int, longest: int | None) -> bool:
    return longest is None or context <= longest


def _groups(layout: KVLayout, context: int) -> tuple[GroupPlan, ...]:
    return tuple(
        GroupPlan(
            name=group.name,
            layers=len(group.layers),
            kv_heads=group.kv_heads,
            head_dim=group.head_dim,
            window=group.window,
            block_size=group.block_size,
            block_bytes=layout.block_bytes,
            kv_bytes_per_token=group.bytes_per_token(layout.keys, layout.values),
            kv_bytes_per_request=group.peak_blocks(context, 1) * layout.block_bytes,
        )
        for group in layout.groups
    )
