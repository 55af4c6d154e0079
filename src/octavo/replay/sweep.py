"""Several policies at several capacities, in parallel processes, beside what bounds them."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from octavo.errors import ConfigError
from octavo.memory.eviction import EvictionPolicy
from octavo.replay.bootstrap import Bootstrap
from octavo.replay.bounds import endless, optimum
from octavo.replay.index import replay_index
from octavo.replay.oracle import Oracle
from octavo.replay.tally import Tally
from octavo.replay.trace import Trace

Advance: TypeAlias = Callable[[float], None]
"""Told how many requests were replayed since its last call."""

OPTIMUM = "optimum"
ENDLESS = "endless"
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


class ReplayRow(msgspec.Struct, frozen=True):
    """What one policy found at one capacity; rates are shares of 1."""

    policy: str
    """Of the bounds: optimum, endless."""
    capacity_share: float
    capacity_blocks: int
    requests: int
    references: int
    hits: int
    hit_rate: float
    full_references: int
    full_hits: int
    full_hit_rate: float
    prompt_tokens: int
    hit_tokens: int
    token_hit_rate: float
    evictions: int | None
    """None: a bound."""
    gap_closed: float | None = None
    """(this - LRU) / (optimum - LRU), in block references; None where there is no gap."""
    gain_interval: tuple[float, float] | None = None
    """Limits of this - LRU, in hit rate, for 95 % of the draws of a bootstrap."""
    gap_closed_interval: tuple[float, float] | None = None


class Sweep(msgspec.Struct, frozen=True):
    """What a trace gives at every capacity."""

    rows: list[ReplayRow]
    """By policy, then by capacity."""
    optimum: list[ReplayRow]
    """By capacity."""
    endless: ReplayRow


def capacities(trace: Trace, shares: list[float]) -> list[Capacity]:
    """Return capacities as shares of the working set. Raises ConfigError for less than a block."""
    # 0.29 of 100 blocks are 29, though the product is a little less.
    found = [Capacity(share, int(share * trace.working_set + _ROUNDING)) for share in shares]
    small = [one.share for one in found if one.blocks < 1]
    if small:
        raise ConfigError(
            f"a capacity share of {small[0]:g} is less than one of the {trace.working_set} blocks "
            f"of {trace.name}: give at least {1 / trace.working_set:.2g}"
        )
    return found


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
    jobs: processes; 1: this one. advance: told of `work(…)` requests in all.
    The result does not depend on `jobs`.
    """
    tasks = [
        _Task(one, size, judged_from_s, oracle) for one in (None, *candidates) for size in sizes
    ]
    jobs = min(jobs, len(tasks))
    run = _run_here if jobs == 1 else _run_beside
    tallies = [Tally()] * len(tasks)
    for number, tally in run(trace, tasks, jobs, advance):
        tallies[number] = tally
    rows = [
        _row(OPTIMUM if task.candidate is None else task.candidate.name, task.size, tally)
        for task, tally in zip(tasks, tallies, strict=True)
    ]
    best, own = rows[: len(sizes)], rows[len(sizes) :]
    whole = Capacity(1.0, trace.working_set)
    seen = _row(ENDLESS, whole, endless(trace, judged_from_s=judged_from_s))
    best = [_bound(row) for row in best]
    filled = _with_gaps(own, best)
    if bootstrap:
        filled = _with_intervals(filled, tallies, len(sizes), bootstrap)
    return Sweep(filled, best, _bound(seen))


def work(trace: Trace, candidates: int, sizes: int) -> int:
    """Requests that a sweep replays in all."""
    return len(trace.requests) * (candidates + 1) * sizes


@dataclass(frozen=True, slots=True)
class _Task:
    """One replay."""

    candidate: Candidate | None
    """None: the optimum."""
    size: Capacity
    judged_from_s: float
    oracle: Oracle | None

    def run(self, trace: Trace, advance: Advance | None = None) -> Tally:
        blocks, judged_from_s = self.size.blocks, self.judged_from_s
        if self.candidate is not None:
            return replay_index(
                trace,
                self.candidate.make(),
                blocks,
                judged_from_s=judged_from_s,
                hints=None if self.oracle is None else self.oracle.hints(trace),
                advance=advance,
            )
        tally = optimum(trace, blocks, judged_from_s=judged_from_s)
        if advance is not None:
            advance(len(trace.requests))
        return tally


_Numbered: TypeAlias = Iterator[tuple[int, Tally]]


def _run_here(trace: Trace, tasks: list[_Task], jobs: int, advance: Advance | None) -> _Numbered:
    for number, task in enumerate(tasks):
        yield number, task.run(trace, advance)


def _run_beside(trace: Trace, tasks: list[_Task], jobs: int, advance: Advance | None) -> _Numbered:
    # Not forked: this process may have threads, a progress bar's for one.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, context, initializer=_end_with_parent)
    try:
        numbers = {pool.submit(task.run, trace): number for number, task in enumerate(tasks)}
        for done in as_completed(numbers):
            yield numbers[done], done.result()
            if advance is not None:
                advance(len(trace.requests))
    except BrokenProcessPool:
        raise ConfigError(
            f"one of {jobs} processes ended before its replay did, perhaps for lack of memory: "
            "give fewer --jobs"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _end_with_parent() -> None:
    """End at once by Ctrl-C, without a traceback, and when the process that waits is gone."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    threading.Thread(target=_leave_after_parent, daemon=True).start()


def _leave_after_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None, "this process was started by nobody"
    parent.join()
    os._exit(1)


def _row(policy: str, size: Capacity, tally: Tally) -> ReplayRow:
    return ReplayRow(
        policy=policy,
        capacity_share=size.share,
        capacity_blocks=size.blocks,
        requests=tally.requests,
        references=tally.references,
        hits=tally.hits,
        hit_rate=tally.hit_rate,
        full_references=tally.full_references,
        full_hits=tally.full_hits,
        full_hit_rate=tally.full_hit_rate,
        prompt_tokens=tally.prompt_tokens,
        hit_tokens=tally.hit_tokens,
        token_hit_rate=tally.token_hit_rate,
        evictions=tally.evictions,
    )


def _bound(row: ReplayRow) -> ReplayRow:
    return msgspec.structs.replace(row, evictions=None)


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
