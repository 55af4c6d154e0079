"""What the pool holds while a queue is never empty: the shares of tokens and of waste."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from octavo.bench.pool import PoolShape, StepLimits, deciding_plane
from octavo.bench.requests import make_request
from octavo.bench.runner import CountingRunner
from octavo.bench.workload import Workload
from octavo.contract.batch import Batch
from octavo.contract.usage import Usage
from octavo.errors import ConfigError
from octavo.memory.reservation import Reservation
from octavo.sched.scheduler import Scheduler

Advance = Callable[[int], None]


class MemoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rule in one setting. The four shares are of the pool and sum to 1.

    All means are over the steps after which a request was still waiting.
    """

    reservation: str
    block_size: int | None
    """None for the contiguous baselines, whose unit is a slot."""
    n: int
    token_share: float
    reserved_share: float
    """Set aside for a sequence, which will fill it later."""
    internal_share: float
    """Set aside for a sequence, which will never fill it."""
    external_share: float
    """Nobody's: gaps too small for a region, rounding by the allocator, blocks that wait."""
    token_share_of_allocated: float
    mean_batch: float
    """Sequences running."""
    max_batch: int
    blocks_saved_share: float
    """1 - blocks held / entries of all tables."""
    preemptions: int
    completed: int
    """Requests of which every answer was finished, the tail of the run included."""
    recomputed_tokens: int
    """Given up by a preemption and not found again."""
    steps: int
    """That the means are taken over."""


@dataclass(slots=True)
class _Sums:
    """Sums over steps."""

    steps: int = 0
    tokens: int = 0
    reserved: int = 0
    internal: int = 0
    allocated: int = 0
    used: int = 0
    logical: int = 0
    running: int = 0
    most_running: int = 0

    def note(self, usage: Usage, running: int) -> None:
        self.steps += 1
        self.tokens += usage.tokens
        self.reserved += usage.reserved
        self.internal += usage.internal
        self.allocated += usage.allocated
        self.used += usage.blocks_used
        self.logical += usage.blocks_logical
        self.running += running
        self.most_running = max(self.most_running, running)


def measure(
    rule: Reservation,
    pool: PoolShape,
    workload: Workload,
    *,
    block_size: int = 16,
    n: int = 1,
    limits: StepLimits | None = None,
    advance: Advance | None = None,
) -> MemoryRow:
    """Run all requests of a workload, queued at once, through the real scheduler.

    advance: told how many requests have been finished since it was last called. Raises
    ConfigError if the pool is too small for one text, or so large that nobody ever waits.
    """
    scheduler, cache = deciding_plane(rule, pool, block_size, limits or StepLimits())
    for number, lengths in enumerate(workload.lengths):
        scheduler.add(make_request(number, lengths, n=n))
    paged = rule.tokens is None
    runner, sums, completed = CountingRunner(), _Sums(), 0
    open_answers = {str(number): n for number in range(len(workload.lengths))}
    while scheduler.busy:
        batch = scheduler.plan()
        assert batch is not None, "a fake runner leaves nothing to wait for"
        running, waiting = scheduler.queue_lengths
        if waiting:
            usage = cache.usage()
            sums.note(_split(usage, scheduler, batch, block_size) if paged else usage, running)
        runner.submit(batch)
        done = 0
        for update in scheduler.apply(batch, runner.collect()):
            if update.finish is not None:
                open_answers[update.request_id] -= 1
                done += not open_answers[update.request_id]
        completed += done
        if done and advance is not None:
            advance(done)
    if not sums.steps:
        raise ConfigError(
            f"all {len(workload.lengths)} requests run at once, so that nothing is measured: "
            "raise --requests or lower --memory"
        )
    return _row(rule.name, block_size if paged else None, n, pool, scheduler, sums, completed)


def _row(
    rule: str,
    block_size: int | None,
    n: int,
    pool: PoolShape,
    scheduler: Scheduler,
    sums: _Sums,
    completed: int,
) -> MemoryRow:
    slots = sums.steps * pool.slots
    taken = sums.tokens + sums.reserved + sums.internal
    return MemoryRow(
        reservation=rule,
        block_size=block_size,
        n=n,
        token_share=sums.tokens / slots,
        reserved_share=sums.reserved / slots,
        internal_share=sums.internal / slots,
        external_share=(slots - taken) / slots,
        token_share_of_allocated=sums.tokens / sums.allocated,
        mean_batch=sums.running / sums.steps,
        max_batch=sums.most_running,
        blocks_saved_share=1 - sums.used / sums.logical,
        preemptions=scheduler.stats.preemptions,
        completed=completed,
        recomputed_tokens=scheduler.stats.recomputed_tokens,
        steps=sums.steps,
    )


def _split(usage: Usage, scheduler: Scheduler, batch: Batch, block_size: int) -> Usage:
    """Tell the empty slots of paged blocks apart: never to be filled, or filled later.

    A sequence without a slice in this step counts its empty slots as filled later.
    """
    never = 0
    for piece in batch.slices:
        seq = scheduler.sequence(piece.seq)
        assert seq is not None, f"sequence {piece.seq} of a planned slice is unknown"
        # The KV of the last token is never computed: nothing follows it.
        full = -(-(seq.limit - 1) // block_size) * block_size
        if piece.start + len(piece.tokens) > full - block_size:
            never += full - (seq.limit - 1)
    empty = usage.allocated - usage.tokens
    never = min(never, empty)
    return msgspec.structs.replace(usage, internal=never, reserved=empty - never)
