"""Single kernels of the native executor against what memory and arithmetic allow."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.bench.floors import Gauge, Load, Rounds, measure_rounds
from octavo.errors import ConfigError
from octavo.sizes import show_bytes

LAYOUTS = ("shuffled", "ascending", "contiguous")
"""Block tables in any order and in order; and one block that is as long as the context."""
_FAST_READ = 65e9
_GOAL, _GOAL_OF_FAST_READ = 0.70, 0.55
"""Share of the read bandwidth at which decode attention should read, slow memory and fast."""


@dataclass(frozen=True, slots=True)
class KernelPlan:
    """What is timed; by default the matrices and the heads of the default model."""

    formats: tuple[str, ...] = ()
    """None named: all that there are."""
    layer: tuple[tuple[int, int], ...] = ((960, 576), (576, 576), (3072, 576), (576, 1536))
    """Outputs and inputs of the matrices of one layer."""
    layers: int = 30
    head: tuple[int, int] = (49_152, 576)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 256)
    heads: int = 9
    kv_heads: int = 3
    head_dim: int = 64
    block_size: int = 16
    decode: tuple[tuple[int, int], ...] = (
        (1, 1024), (1, 8192), (32, 128), (32, 1024), (32, 8192),
    )  # fmt: skip
    """Sequences and their context, the new token included."""
    prefill: tuple[int, ...] = (512, 2048)
    prefill_layers: int = 8
    prefix: tuple[int, int, int] = (32, 1024, 128)
    """Sequences, tokens that they share, and tokens of their own."""
    least_bytes: int = 256 << 20
    """That each work goes through, so that no cache holds it until the next round: whole MiB."""
    most_bytes: int = 512 << 20
    """Of KV in one layout, if a layer is not larger: then fewer layers than the model has."""

    def kv_bytes(self, tokens: int) -> int:
        """Bytes of keys and values of so many tokens in one layer, as bf16."""
        return tokens * self.kv_heads * self.head_dim * 2 * 2

    def copies(self, num_bytes: int) -> int:
        """How often so many bytes must exist for a work to be long enough."""
        return -(-self.least_bytes // num_bytes)

    def memory_bytes(self) -> int:
        """Memory that the measurement takes, about."""
        longest = max((sequences * context for sequences, context in self.decode), default=0)
        kv = max(self.most_bytes, self.kv_bytes(longest), 2 * self.least_bytes)
        weights = 4 * self.layers * sum(out * inputs for out, inputs in self.layer)
        return self.least_bytes + max(3 * kv, weights + self.least_bytes)


class LinearRow(msgspec.Struct, frozen=True, kw_only=True):
    """Linear layers with so many rows: the matrices of all layers, or the head."""

    format: str
    part: str
    """layers or head."""
    rows: int
    seconds: float
    """Median."""
    fastest_s: float
    weight_bytes: int
    operations: float
    """A product and its sum are two."""
    byte_floor_s: float
    arithmetic_floor_s: float
    reached: float
    """The larger floor over the time, as a share; bandwidth and time of the same round."""
    rounds: int


class AttentionRow(msgspec.Struct, frozen=True, kw_only=True):
    """Attention of one layer in one step."""

    kind: str
    """decode, prefill or prefix."""
    sequences: int
    tokens: int
    """New ones of each sequence."""
    context: int
    layout: str
    """shuffled, ascending or contiguous; of a prefix, unshared or shared."""
    seconds: float
    """Median."""
    fastest_s: float
    kv_bytes: int
    """Keys and values that are read, each once."""
    bytes_per_s: float
    share_of_read: float
    """Of the read bandwidth measured in the same round."""
    operations_per_s: float
    byte_floor_s: float
    arithmetic_floor_s: float
    reached: float
    """The larger floor over the time, as a share."""
    times_baseline: float
    """Time over that of the contiguous layout; of a prefix, over that of unshared blocks."""
    goal: float | None
    """Of `share_of_read`, for decode from blocks."""
    met: bool | None
    layers: int
    """Of the KV memory that was read; times are of one."""
    rounds: int


def check_memory(plan: KernelPlan, free_bytes: int) -> None:
    """Raise ConfigError if a plan takes more memory than is free."""
    if plan.memory_bytes() > free_bytes:
        raise ConfigError(
            f"the kernels are timed in {show_bytes(plan.memory_bytes())} of memory, but only "
            f"{show_bytes(free_bytes)} are free: end other programs first"
        )


def count_steps(gauge: Gauge, plan: KernelPlan) -> int:
    """Return how often the measurements call `advance`."""
    return 2 * len(_formats(gauge, plan)) + len(plan.decode) + len(plan.prefill) + 1


# ── linear layers ─────────────────────────────────────────────────────────────────────────


def measure_linear(
    gauge: Gauge, plan: KernelPlan, *, advance: Callable[[float], None]
) -> list[LinearRow]:
    """Time the linear layers, in each format and with each number of rows."""
    rows: list[LinearRow] = []
    for name in _formats(gauge, plan):
        for part, shapes in (("layers", list(plan.layer) * plan.layers), ("head", [plan.head])):
            rows += _measure_part(gauge, plan, name, part, shapes)
            advance(1)
    return rows


def _formats(gauge: Gauge, plan: KernelPlan) -> list[str]:
    return list(plan.formats) or gauge.native.formats()


def _measure_part(
    gauge: Gauge, plan: KernelPlan, name: str, part: str, shapes: list[tuple[int, int]]
) -> list[LinearRow]:
    def make(copies: int) -> Any:
        return gauge.native.LinearLoad(
            name, shapes, copies=copies, most_rows=max(plan.rows), pool=gauge.pool
        )

    load = make(1)
    copies = plan.copies(load.nbytes)
    if copies > 1:
        load = make(copies)
    works: dict[str, Callable[[], object]] = {
        str(count): lambda count=count: load.run(count) for count in plan.rows
    }
    rounds = measure_rounds(gauge, works, arithmetic=load.arithmetic)
    return [
        _linear_row(rounds, name, part, count, (load.nbytes, load.weights), copies)
        for count in plan.rows
    ]


def _linear_row(
    rounds: Rounds, name: str, part: str, count: int, sizes: tuple[int, float], copies: int
) -> LinearRow:
    nbytes, weights = sizes
    whole = Load(nbytes, 2 * weights * count)
    byte_floor, arithmetic_floor = rounds.floors(whole)
    times = rounds.times[str(count)]
    return LinearRow(
        format=name,
        part=part,
        rows=count,
        seconds=rounds.seconds(str(count)) / copies,
        fastest_s=min(times) / copies,
        weight_bytes=nbytes // copies,
        operations=whole.operations / copies,
        byte_floor_s=byte_floor / copies,
        arithmetic_floor_s=arithmetic_floor / copies,
        reached=rounds.reached(str(count), whole),
        rounds=len(times),
    )


# ── attention ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Case:
    """One step of a model with so many layers."""

    kind: str
    sequences: int
    tokens: int
    context: int
    layers: int


@dataclass(frozen=True, slots=True)
class _Step:
    """The same with its KV memory."""

    run: Callable[[], object]
    load: Load
    """Of one layer."""
    layers: int
    """That a run goes through, in all copies of the memory."""

    @property
    def whole(self) -> Load:
        """Of a run."""
        return Load(self.layers * self.load.num_bytes, self.layers * self.load.operations)


def measure_attention(
    gauge: Gauge, plan: KernelPlan, *, advance: Callable[[float], None]
) -> list[AttentionRow]:
    """Time attention in blocks and without them, and with a prefix that is shared."""
    cases = [_decode_case(plan, "decode", *numbers) for numbers in plan.decode]
    cases += [
        _Case("prefill", 1, length, length, min(plan.layers, plan.prefill_layers))
        for length in plan.prefill
    ]
    rows: list[AttentionRow] = []
    for case in cases:
        steps = {layout: _in_layout(gauge, plan, case, layout) for layout in LAYOUTS}
        rows += _attention_rows(gauge, case, steps, baseline="contiguous")
        advance(1)
    rows += _measure_prefix(gauge, plan)
    advance(1)
    return rows


def _decode_case(plan: KernelPlan, kind: str, sequences: int, context: int) -> _Case:
    fit = plan.most_bytes // plan.kv_bytes(sequences * context)
    return _Case(kind, sequences, 1, context, max(1, min(plan.layers, fit)))


def _measure_prefix(gauge: Gauge, plan: KernelPlan) -> list[AttentionRow]:
    sequences, shared, own = plan.prefix
    case = _decode_case(plan, "prefix", sequences, shared + own)
    prefix = np.arange(shared // plan.block_size, dtype=np.int32)
    tails = np.arange(sequences * (own // plan.block_size), dtype=np.int32) + prefix.size
    tables = [np.concatenate((prefix, tail)) for tail in np.split(tails, sequences)]
    steps = {
        "unshared": _in_layout(gauge, plan, case, "ascending"),
        "shared": _make_step(gauge, plan, case, tables, plan.block_size),
    }
    return _attention_rows(gauge, case, steps, baseline="unshared")


def _in_layout(gauge: Gauge, plan: KernelPlan, case: _Case, layout: str) -> _Step:
    size = case.context if layout == "contiguous" else plan.block_size
    order = np.arange(case.sequences * (case.context // size), dtype=np.int32)
    if layout == "shuffled":
        order = np.random.default_rng(0).permutation(order)
    return _make_step(gauge, plan, case, np.split(order, case.sequences), size)


def _make_step(
    gauge: Gauge, plan: KernelPlan, case: _Case, tables: list[NDArray[np.int32]], size: int
) -> _Step:
    """Make the KV memory of a case, in blocks of `size` tokens."""
    blocks = 1 + max(int(table.max()) for table in tables)
    kv_bytes = plan.kv_bytes(blocks * size)
    # What a prompt attends to was written a moment before: no need to get it out of the caches.
    copies = 1 if case.kind == "prefill" else plan.copies(case.layers * kv_bytes)
    load = gauge.native.AttentionLoad(
        [(case.tokens, case.context - case.tokens, table) for table in tables],
        shape=(plan.heads, plan.kv_heads, plan.head_dim, size),
        blocks=blocks,
        layers=case.layers,
        copies=copies,
        pool=gauge.pool,
    )
    # A token sees itself and all before it; each product and its sum are two operations, once for
    # keys and once for values.
    seen = case.tokens * (2 * case.context - case.tokens + 1) / 2
    operations = 4.0 * plan.heads * plan.head_dim * seen * case.sequences
    return _Step(load.run, Load(kv_bytes, operations), case.layers * copies)


def _attention_rows(
    gauge: Gauge, case: _Case, steps: dict[str, _Step], *, baseline: str
) -> list[AttentionRow]:
    works = {name: step.run for name, step in steps.items()}
    rounds = measure_rounds(gauge, works, arithmetic="bf16")
    fast = statistics.median(rounds.read_bytes_per_s) > _FAST_READ
    goal = _GOAL_OF_FAST_READ if fast else _GOAL
    rows: list[AttentionRow] = []
    for name, step in steps.items():
        held = case.kind == "decode" and name != baseline
        share = rounds.share_of_read(name, step.whole)
        seconds = rounds.seconds(name) / step.layers
        byte_floor, arithmetic_floor = rounds.floors(step.load)
        rows.append(
            AttentionRow(
                kind=case.kind,
                sequences=case.sequences,
                tokens=case.tokens,
                context=case.context,
                layout=name,
                seconds=seconds,
                fastest_s=min(rounds.times[name]) / step.layers,
                kv_bytes=int(step.load.num_bytes),
                bytes_per_s=step.load.num_bytes / seconds,
                share_of_read=share,
                operations_per_s=step.load.operations / seconds,
                byte_floor_s=byte_floor,
                arithmetic_floor_s=arithmetic_floor,
                reached=rounds.reached(name, step.whole),
                times_baseline=rounds.ratio(name, baseline) * steps[baseline].layers / step.layers,
                goal=goal if held else None,
                met=share >= goal if held else None,
                layers=case.layers,
                rounds=len(rounds.times[name]),
            )
        )
    return rows
