"""Latency against load on a simulated clock, and the largest load that a rule sustains."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import msgspec

from octavo.bench.pool import PoolShape, StepLimits, deciding_plane
from octavo.bench.requests import make_request
from octavo.bench.runner import CountingRunner
from octavo.bench.workload import Workload
from octavo.contract.batch import Batch
from octavo.memory.reservation import Reservation

_FIRST_RATE = 0.5
_GROWTH = 1.5
_HIGHEST_RATE = 1e4


class CostModel(msgspec.Struct, frozen=True):
    """How long a step takes.

    Fixed time, plus the KV bytes that its attention reads, plus the arithmetic of the tokens of
    prompts, and of texts that are computed again after a preemption. The arithmetic of one
    new token per sequence is part of the fixed time, in which the weights are read once.
    """

    fixed_s: float = 0.017
    read_bytes_per_s: float = 1.5e12
    flop_per_token: float = 26e9
    """Two for each of 13 billion weights."""
    flop_per_s: float = 200e12

    def step_s(self, batch: Batch, bytes_per_token: int) -> float:
        """Seconds that a step takes."""
        read = prompt = 0
        for piece in batch.slices:
            count = len(piece.tokens)
            read += piece.start + count
            prompt += count if count > 1 or not piece.start else 0
        return (
            self.fixed_s
            + read * bytes_per_token / self.read_bytes_per_s
            + prompt * self.flop_per_token / self.flop_per_s
        )


class CurveRow(msgspec.Struct, frozen=True):
    """One rule under one load."""

    reservation: str
    rate_per_s: float
    """Requests a second, arriving at random (Poisson)."""
    normalized_latency_s: float
    """Mean over requests of seconds from arrival to last token, divided by output tokens."""
    mean_batch: float
    """Sequences running, averaged over steps."""
    completed: int
    preemptions: int


class Sustained(msgspec.Struct, frozen=True):
    """The largest load whose normalized latency stays within the bound."""

    reservation: str
    rate_per_s: float


class Setting(msgspec.Struct, frozen=True):
    """All that does not change along a curve."""

    pool: PoolShape
    workload: Workload
    block_size: int = 16
    cost: CostModel = CostModel()
    limits: StepLimits = StepLimits()
    duration_s: float = 1200.0
    """Requests arrive for so long; all of them are then run to their end."""
    seed: int = 0
    """Of the arrivals. The same gaps, stretched, serve every rate and every rule."""


def simulate(rule: Reservation, rate_per_s: float, setting: Setting) -> CurveRow:
    """Let requests arrive at a rate and run all of them on a simulated clock.

    They take the workload's lengths in turn, and begin again where it ends.
    """
    scheduler, _ = deciding_plane(rule, setting.pool, setting.block_size, setting.limits)
    lengths = setting.workload.lengths
    arrivals = _arrivals(rate_per_s, setting)
    runner, bytes_per_token = CountingRunner(), setting.pool.bytes_per_token
    now_s = latency_sum = 0.0
    arrived = completed = running = 0
    while arrived < len(arrivals) or scheduler.busy:
        if not scheduler.busy:
            now_s = max(now_s, arrivals[arrived])
        while arrived < len(arrivals) and arrivals[arrived] <= now_s:
            scheduler.add(make_request(arrived, lengths[arrived % len(lengths)]))
            arrived += 1
        batch = scheduler.plan(now_s)
        assert batch is not None, "a fake runner leaves nothing to wait for"
        running += scheduler.queue_lengths[0]
        runner.submit(batch)
        now_s += setting.cost.step_s(batch, bytes_per_token)
        for update in scheduler.apply(batch, runner.collect()):
            if update.finish is not None:
                number = int(update.request_id)
                latency_sum += (now_s - arrivals[number]) / lengths[number % len(lengths)][1]
                completed += 1
    return CurveRow(
        rule.name,
        rate_per_s,
        latency_sum / completed,
        running / scheduler.stats.steps,
        completed,
        scheduler.stats.preemptions,
    )


def find_sustained(
    rule: Reservation,
    setting: Setting,
    *,
    bound_s: float,
    tolerance: float = 0.01,
    show: Callable[[CurveRow], None] | None = None,
) -> tuple[Sustained, list[CurveRow]]:
    """Find the largest rate whose normalized latency is at most `bound_s`; returns all points.

    The rate grows by half until the bound is passed; then the interval is bisected until it is
    shorter than `tolerance` of the rate. Its lower end counts; 0: not even the first rate is
    sustained.
    """
    rows: list[CurveRow] = []

    def sustains(rate: float) -> bool:
        row = simulate(rule, rate, setting)
        rows.append(row)
        if show is not None:
            show(row)
        return row.normalized_latency_s <= bound_s

    low, high = 0.0, _FIRST_RATE
    while high < _HIGHEST_RATE and sustains(high):
        low, high = high, _GROWTH * high
    while low and high < _HIGHEST_RATE and high - low > tolerance * low:
        middle = (low + high) / 2
        if sustains(middle):
            low = middle
        else:
            high = middle
    rows.sort(key=lambda row: row.rate_per_s)
    return Sustained(rule.name, low), rows


def _arrivals(rate_per_s: float, setting: Setting) -> list[float]:
    """Return seconds at which requests arrive, at least one."""
    random = Random(f"arrivals {setting.seed}")
    times = [random.expovariate(1.0) / rate_per_s]
    while times[-1] < setting.duration_s:
        times.append(times[-1] + random.expovariate(1.0) / rate_per_s)
    return times[:-1] or times
