"""Several policies at several capacities, in parallel processes, beside what bounds them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.errors import ConfigError
from octavo.memory.eviction import EvictionPolicy
from octavo.replay.bootstrap import Bootstrap
from octavo.replay.bounds import endless, optimum
from octavo.replay.engine import EngineSettings, EngineTally, replay_engine
from octavo.replay.index import replay_index
from octavo.replay.oracle import Oracle
from octavo.replay.parallel import Advance, Task, run_tasks
from octavo.replay.rows import ENDLESS, OPTIMUM, EngineRow, ReplayRow, engine_row, replay_row
from octavo.replay.tally import Tally
from octavo.replay.trace import Trace

BASELINE = "lru"
"""What the gap to the optimum is measured from, if it is among the policies."""
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Candidate:
    """An eviction policy to be tried."""

    name: str
    make: Callable[[], EvictionPolicy]
    """Must be picklable for more than one process."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """How many blocks a cache has."""

    share: float
    """Of the working set."""
    blocks: int


class Sweep(msgspec.Struct, frozen=True):
    """What a trace gives at every capacity."""

    rows: list[ReplayRow]
    """By policy, then by capacity."""
    optimum: list[ReplayRow]
    """By capacity."""
    endless: ReplayRow


class EngineSweep(msgspec.Struct, frozen=True):
    """What a trace gives at every capacity, in an engine; the bounds are those of index mode."""

    rows: list[EngineRow]
    """By policy, then by capacity."""
    optimum: list[ReplayRow]
    """By capacity."""
    endless: ReplayRow


def capacities(trace: Trace, shares: list[float]) -> list[Capacity]:
    """Return capacities as shares of the working set. Raises ConfigError for less than a block."""
    _check_blocks(trace)
    found = [Capacity(share, share_blocks(trace, share)) for share in shares]
    small = [one.share for one in found if one.blocks < 1]
    if small:
        raise ConfigError(
            f"a capacity share of {small[0]:g} is less than one of the {trace.working_set} blocks "
            f"of {trace.name}: give more, or --capacity-blocks"
        )
    return found


def share_blocks(trace: Trace, share: float) -> int:
    """Return how many blocks a share of the working set is, rounded down."""
    # 0.29 of 100 blocks are 29, though the product is a little less.
    return int(share * trace.working_set + _ROUNDING)


def capacities_in_blocks(trace: Trace, counts: list[int]) -> list[Capacity]:
    """Return capacities of so many blocks. Raises ConfigError if there is nothing to cache."""
    _check_blocks(trace)
    return [Capacity(count / trace.working_set, count) for count in counts]


def _check_blocks(trace: Trace) -> None:
    if not trace.working_set:
        raise ConfigError(
            f"no text of {trace.name} fills a block of {trace.block_size} tokens: there is nothing "
            "to cache"
        )


def sweep(
    trace: Trace,
    candidates: list[Candidate],
    sizes: list[Capacity],
    *,
    judged_from_s: float = -math.inf,
    oracle: Oracle | None = None,
    bootstrap: int = 0,
    jobs: int = 1,
    advance: Advance | None = None,
) -> Sweep:
    """Replay a trace with every policy at every capacity in index mode, and work out the bounds.

    judged_from_s: requests before it warm the caches and do not count. oracle: says what is to
    come; None: no hints. bootstrap: draws for the intervals of what is gained on LRU; 0: none.
    jobs: processes; 1: this one. advance: told of `work(…)` requests in all. The result does not
    depend on `jobs`.
    """
    tasks: list[Task[Tally]] = [_Optimum(size.blocks, judged_from_s) for size in sizes]
    tasks += [
        _Index(one, size.blocks, judged_from_s, oracle) for one in candidates for size in sizes
    ]
    tallies = run_tasks(trace, tasks, jobs, advance)
    best = _bounds(sizes, tallies[: len(sizes)])
    named = [(one.name, size) for one in candidates for size in sizes]
    rows = [
        replay_row(name, size.share, size.blocks, tally)
        for (name, size), tally in zip(named, tallies[len(sizes) :], strict=True)
    ]
    filled = _with_gaps(rows, best)
    if bootstrap:
        filled = _with_intervals(filled, tallies, len(sizes), bootstrap)
    return Sweep(filled, best, _endless(trace, judged_from_s))


def sweep_engine(
    trace: Trace,
    candidates: list[Candidate],
    sizes: list[Capacity],
    settings: EngineSettings,
    *,
    judged_from_s: float = -math.inf,
    jobs: int = 1,
    advance: Advance | None = None,
) -> EngineSweep:
    """Replay a trace with every policy at every capacity in engine mode, and work out the bounds.

    The rest as for `sweep`.
    """
    tasks: list[Task[Tally | EngineTally]] = []
    tasks += [_Optimum(size.blocks, judged_from_s) for size in sizes]
    named = [(one, size) for one in candidates for size in sizes]
    tasks += [_Engine(one, size.blocks, settings, judged_from_s) for one, size in named]
    tallies = run_tasks(trace, tasks, jobs, advance)
    best = [one for one in tallies if isinstance(one, Tally)]
    own = [one for one in tallies if isinstance(one, EngineTally)]
    rows = [
        engine_row(one.name, size.share, size.blocks, tally, settings.cost.kv_token_bytes)
        for (one, size), tally in zip(named, own, strict=True)
    ]
    return EngineSweep(rows, _bounds(sizes, best), _endless(trace, judged_from_s))


def work(trace: Trace, candidates: int, sizes: int) -> int:
    """Requests that a sweep replays in all."""
    return len(trace.requests) * (candidates + 1) * sizes


@dataclass(frozen=True, slots=True)
class _Optimum:
    """A bound to be worked out."""

    blocks: int
    judged_from_s: float

    def run(self, trace: Trace, advance: Advance | None = None) -> Tally:
        tally = optimum(trace, self.blocks, judged_from_s=self.judged_from_s)
        if advance is not None:
            advance(len(trace.requests))
        return tally


@dataclass(frozen=True, slots=True)
class _Index:
    """A replay in index mode."""

    candidate: Candidate
    blocks: int
    judged_from_s: float
    oracle: Oracle | None

    def run(self, trace: Trace, advance: Advance | None = None) -> Tally:
        return replay_index(
            trace,
            self.candidate.make(),
            self.blocks,
            judged_from_s=self.judged_from_s,
            hints=None if self.oracle is None else self.oracle.hints(trace),
            advance=advance,
        )


@dataclass(frozen=True, slots=True)
class _Engine:
    """A replay in engine mode."""

    candidate: Candidate
    blocks: int
    settings: EngineSettings
    judged_from_s: float

    def run(self, trace: Trace, advance: Advance | None = None) -> EngineTally:
        policy, since = self.candidate.make(), self.judged_from_s
        return replay_engine(
            trace, policy, self.blocks, self.settings, judged_from_s=since, advance=advance
        )


def _bounds(sizes: list[Capacity], tallies: list[Tally]) -> list[ReplayRow]:
    return [
        replay_row(OPTIMUM, size.share, size.blocks, tally)
        for size, tally in zip(sizes, tallies, strict=True)
    ]


def _endless(trace: Trace, judged_from_s: float) -> ReplayRow:
    tally = endless(trace, judged_from_s=judged_from_s)
    return replay_row(ENDLESS, 1.0, trace.working_set, tally)


def _with_gaps(rows: list[ReplayRow], best: list[ReplayRow]) -> list[ReplayRow]:
    """Fill in what share of the gap between LRU and the optimum each policy closes."""
    most = {row.capacity_blocks: row.hits for row in best}
    least = {row.capacity_blocks: row.hits for row in rows if row.policy == BASELINE}
    filled: list[ReplayRow] = []
    for row in rows:
        low = least.get(row.capacity_blocks)
        gap = 0 if low is None else most[row.capacity_blocks] - low
        closed = (row.hits - low) / gap if low is not None and gap > 0 else None
        filled.append(msgspec.structs.replace(row, gap_closed=closed))
    return filled


def _with_intervals(
    rows: list[ReplayRow], tallies: list[Tally], sizes: int, draws: int
) -> list[ReplayRow]:
    """Fill in how sure each gain is. tallies: those of the optimum at each size, then the rows'."""
    own = tallies[sizes:]
    baselines = {
        row.capacity_blocks: tally
        for row, tally in zip(rows, own, strict=True)
        if row.policy == BASELINE
    }
    draw = Bootstrap(rows[0].requests, draws)
    filled: list[ReplayRow] = []
    for number, (row, tally) in enumerate(zip(rows, own, strict=True)):
        baseline = baselines.get(row.capacity_blocks)
        if baseline is not None and row.policy != BASELINE:
            found = draw.compare(tally, baseline, tallies[number % sizes])
            if found is not None:
                row = msgspec.structs.replace(
                    row, gain_interval=found.gain, gap_closed_interval=found.gap_closed
                )
        filled.append(row)
    return filled
