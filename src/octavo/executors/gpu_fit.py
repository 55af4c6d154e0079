"""What to say where a model does not fit a GPU: the numbers, and flags that would make it fit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from octavo.contract.formats import ITEM_BYTES
from octavo.errors import ConfigError
from octavo.executors.gpu_memory import CONTEXT_BYTES, Card, Demand, GpuPlan, gib, total

Settings = dict[str, Any]
"""Of `EngineConfig`: values of any type."""

MOST_UTILIZATION = 0.98
"""No more is proposed: the parts of the sum are estimates."""

_FEWEST_ROWS = 64
"""Tokens in a step: fewer are no advice, they would make prompts slow."""

_TOGETHER: tuple[Settings, ...] = (
    {"dtype": "bfloat16"},
    {"gpu_memory_utilization": MOST_UTILIZATION},
    {"max_num_batched_tokens": 512},
    {"max_num_seqs": 16},
    {"enforce_eager": True},
)
"""What is tried in this order, one after the other, where no single setting is enough."""


def require_fit(
    plan: GpuPlan,
    *,
    others: Callable[[], Iterable[Card]],
    elsewhere: Callable[[], Iterable[str]],
) -> None:
    """Raise ConfigError, with what would help, if a plan does not fit its card.

    others: looks at the machine's other GPUs; elsewhere: finds flags that need no GPU. Neither is
    called for a plan that fits.
    """
    if plan.fits:
        return
    ways = propose(plan, others=others(), elsewhere=elsewhere())
    if ways:
        raise ConfigError(f"{_numbers(plan)}; it would fit with {', or '.join(ways)}")
    raise ConfigError(
        f"{_numbers(plan)}; no setting makes it fit: choose a smaller model, or a GPU of at least "
        f"{gib(_whole_card(plan))} GiB"
    )


def propose(
    plan: GpuPlan, *, others: Iterable[Card] = (), elsewhere: Iterable[str] = ()
) -> list[str]:
    """Return flags of which each line makes the plan fit; none: no setting does on this machine."""
    alone = [settings for settings in _single(plan) if fits_with(plan, settings)]
    if not alone:
        alone = _several(plan)
    ways = [flags(settings) for settings in alone]
    ways += [f"--device {card.name}" for card in others if replace(plan, card=card).fits]
    return [*ways, *elsewhere]


def fits_with(plan: GpuPlan, settings: Settings) -> bool:
    """Tell whether a plan would fit with other settings, and hold the text that was asked for."""
    try:
        demand = plan.demand.changed(**settings)
    except ConfigError:
        return False
    other = replace(plan, demand=demand)
    if not other.fits:
        return False
    # With the size of KV given, nothing else asks for a whole text.
    asked = demand.config.max_model_len or 2
    step = demand.config.max_num_batched_tokens
    return other.num_blocks >= demand.layout.peak_blocks(asked, step)


def flags(settings: Settings) -> str:
    """Write settings as they stand on a command line."""
    words: list[str] = []
    for name, value in settings.items():
        words.append("--" + name.replace("_", "-"))
        words += [] if value is True else [str(value)]
    return " ".join(words)


def _single(plan: GpuPlan) -> list[Settings]:
    """List single settings that may be enough, least harmful first."""
    config, demand = plan.demand.config, plan.demand
    given, least = config.kv_cache_memory_bytes, _least_kv(plan)
    found: list[Settings | None] = []
    if given is None:
        found.append(_utilization(plan))
    else:
        room = demand.layout.blocks_in(max(0, plan.left_bytes)) * demand.layout.block_bytes
        found.append({"kv_cache_memory_bytes": max(least, min(given, room))})
    rows, seqs = config.max_num_batched_tokens, config.max_num_seqs
    found += [
        {"dtype": "bfloat16"} if ITEM_BYTES[demand.dtype] > ITEM_BYTES["bfloat16"] else None,
        _largest(plan, "max_num_batched_tokens", rows, step=16, least=_FEWEST_ROWS),
        _largest(plan, "max_num_seqs", seqs),
        _largest(plan, "max_model_len", demand.longest, step=config.block_size, least=2),
    ]
    found += [{"kv_cache_dtype": name} for name in _smaller(demand)]
    found.append({"enforce_eager": True} if demand.sizes else None)
    return [settings for settings in found if settings is not None]


def _utilization(plan: GpuPlan) -> Settings | None:
    """Return the least share, in hundredths, that leaves enough."""
    need = plan.card.used_bytes + plan.fixed_bytes + _least_kv(plan)
    share = math.ceil(100 * need / plan.card.total_bytes) / 100
    if not plan.utilization < share <= MOST_UTILIZATION:
        return None
    return {"gpu_memory_utilization": share}


def _largest(
    plan: GpuPlan, name: str, now: int, *, step: int = 1, least: int = 1
) -> Settings | None:
    """Return the largest multiple of `step` below `now` that fits; less never needs more."""
    low, high = 0, -(-now // step)
    while high - low > 1:
        middle = (low + high) // 2
        if fits_with(plan, {name: middle * step}):
            low = middle
        else:
            high = middle
    return {name: low * step} if low * step >= least else None


def _smaller(demand: Demand) -> list[str]:
    """Name the ways to store KV in fewer bytes."""
    now = demand.layout.bytes_per_token
    return [
        name
        for name in demand.way.reads
        if demand.changed(kv_cache_dtype=name).layout.bytes_per_token < now
    ]


def _several(plan: GpuPlan) -> list[Settings]:
    """Return one set of settings that is enough, none of which could be left out; or nothing."""
    chosen: Settings = {}
    for more in _TOGETHER:
        if _is_less(plan.demand, more):
            chosen |= more
            if fits_with(plan, chosen):
                break
    asked = plan.demand.config.max_model_len
    if asked is not None and not fits_with(plan, chosen):
        try:
            smaller = replace(plan, demand=plan.demand.changed(**chosen))
        except ConfigError:
            return []
        size = plan.demand.config.block_size
        chosen |= _largest(smaller, "max_model_len", asked, step=size, least=2) or {}
    if not fits_with(plan, chosen):
        return []
    for name in list(chosen):
        fewer = {other: value for other, value in chosen.items() if other != name}
        if fits_with(plan, fewer):
            chosen = fewer
    return [chosen]


def _is_less(demand: Demand, more: Settings) -> bool:
    """Tell whether a setting of `_TOGETHER` asks for less memory, or allows more, than now."""
    ((name, value),) = more.items()
    if name == "dtype":
        return ITEM_BYTES[demand.dtype] > ITEM_BYTES[value]
    if name == "enforce_eager":
        return bool(demand.sizes)
    now = getattr(demand.config, name)
    if name == "gpu_memory_utilization":
        return demand.config.kv_cache_memory_bytes is None and (now is None or now < value)
    return now > value


def _least_kv(plan: GpuPlan) -> int:
    """Bytes of KV for the text that was asked for, or for one token and its answer."""
    demand, config = plan.demand, plan.demand.config
    blocks = demand.layout.peak_blocks(config.max_model_len or 2, config.max_num_batched_tokens)
    return blocks * demand.layout.block_bytes


def _wanted_kv(plan: GpuPlan) -> int:
    """Bytes of KV that are asked for: their size, if it was given."""
    return plan.demand.config.kv_cache_memory_bytes or _least_kv(plan)


def _numbers(plan: GpuPlan) -> str:
    """Write the sum that does not come out."""
    card, demand = plan.card, plan.demand
    given, asked = demand.config.kv_cache_memory_bytes, demand.config.max_model_len
    least = demand.least_blocks * demand.layout.block_bytes
    if given is not None and given < least:
        return (
            f"kv_cache_memory_bytes is {given}, but one sequence needs at least {least} on "
            f"{card.name}, in blocks of {demand.layout.block_bytes}"
        )
    if given is not None:
        have = f"{gib(card.free_bytes)} of its {gib(card.total_bytes)} GiB are free"
        text = "as given"
    else:
        have = (
            f"{plan.utilization:g} of its {gib(card.total_bytes)} GiB may be used, "
            f"{gib(card.used_bytes)} are in use"
        )
        text = "one token and its answer" if asked is None else f"a text of {asked:,} tokens"
    return (
        f"{card.name} has too little memory: {have}; weights in {demand.dtype} take "
        f"{gib(demand.weight_bytes)}, workspace {gib(total(demand.workspace()))}, graphs "
        f"{gib(total(demand.graphs()))}, KV ({text}) {gib(_wanted_kv(plan))}: "
        f"{gib(_wanted_kv(plan) - plan.left_bytes)} GiB too much"
    )


def _whole_card(plan: GpuPlan) -> int:
    """Return how many bytes a card must have for the plan as it is, if nobody else uses it."""
    need = plan.fixed_bytes + _wanted_kv(plan) + CONTEXT_BYTES
    given = plan.demand.config.kv_cache_memory_bytes
    return need if given is not None else math.ceil(need / plan.utilization)
