"""The last hour in numbers: points of one second for minutes, of ten seconds for an hour."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import msgspec

from octavo.engine.histogram import Histogram
from octavo.engine.messages import Snapshot
from octavo.errors import EngineGone
from octavo.server.meters import Meters
from octavo.server.metrics.requests import RequestMeters, Totals

if TYPE_CHECKING:
    from octavo.server.parts import Parts

Value = float | int | None

SPANS = ((1, 300), (10, 360))
"""Seconds of a point, and points that are kept."""

_PATIENCE_S = 5.0
_LIKELY = 0.5
_RARE = 0.95


@dataclass(frozen=True, slots=True)
class Moment:
    """All counts at one time."""

    at_s: float
    """On the clock that never goes back."""
    engine: Snapshot | None
    """None: there is no engine, or it does not say."""
    waiting: int
    """Answers that have not come to the engine."""
    totals: Totals | None
    """None: nobody counts."""


class Series:
    """Points so many seconds apart; the oldest make room."""

    def __init__(self, step_s: int, most: int) -> None:
        self.step_s = step_s
        self._rows: deque[tuple[Value, ...]] = deque(maxlen=most)
        self._before: Moment | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def note(self, now: Moment, wall_s: float) -> None:
        """Take in how things are, if the next point is due. wall_s: seconds since 1970."""
        before = self._before
        # A little early is on time: the next time is a second later.
        if before is not None and now.at_s - before.at_s < self.step_s - 0.25:
            return
        self._before = now
        if before is not None:
            self._rows.append((round(wall_s, 3), *_point(before, now).values()))

    def told(self, since_s: float) -> dict[str, object]:
        """Return the points after a time, column by column."""
        rows = [row for row in self._rows if (row[0] or 0.0) > since_s]
        columns = list(zip(*rows, strict=True)) or [()] * (len(_NAMES) + 1)
        told: dict[str, object] = {"step": self.step_s, "points": len(rows)}
        return told | dict(zip(("wall_s", *_NAMES), columns, strict=True))


class History:
    """What was, kept in bounded memory."""

    def __init__(self) -> None:
        self._series = {step: Series(step, most) for step, most in SPANS}

    def series(self, step_s: int) -> Series | None:
        """Return the points so many seconds apart; None: there are none such."""
        return self._series.get(step_s)

    def note(self, now: Moment, wall_s: float) -> None:
        """Take in how things are."""
        for series in self._series.values():
            series.note(now, wall_s)


async def keep_history(parts: Parts, every_s: float = 1.0) -> None:
    """Note how things are once a second, until cancelled.

    An engine of which nothing has been heard is left alone: it has nothing new to say.
    """
    last, moved, heard_s = await _counts(parts), True, 0.0
    while True:
        began_s, before, core = time.monotonic(), last, parts.core
        if moved or before is None or core.last_heard_s != heard_s:
            last, heard_s = await _counts(parts), core.last_heard_s
            # Something may have come with these counts that is not in them.
            moved = last is None or before is None or last.stats.steps != before.stats.steps
        parts.history.note(
            Moment(time.monotonic(), last, parts.gate.waiting, totals_of(parts.meters)), time.time()
        )
        await asyncio.sleep(max(0.0, began_s + every_s - time.monotonic()))


def totals_of(meters: Meters) -> Totals | None:
    """Return what was counted of requests, if anything was."""
    return meters.totals() if isinstance(meters, RequestMeters) else None


async def _counts(parts: Parts) -> Snapshot | None:
    if not parts.core.state.takes_requests:
        return None
    try:
        now = await asyncio.wait_for(parts.core.snapshot(), _PATIENCE_S)
    except (EngineGone, TimeoutError):
        return None
    # A copy: an engine in this process goes on counting in its own.
    return msgspec.structs.replace(now, stats=replace(now.stats))


# ── one point ─────────────────────────────────────────────────────────────────────────────────


def _point(before: Moment, now: Moment) -> dict[str, Value]:
    seconds = max(now.at_s - before.at_s, 1e-9)
    return {
        **_requests(before.totals, now.totals, seconds),
        **_memory(now.engine),
        **_work(before.engine, now.engine, seconds),
        "running": None if now.engine is None else now.engine.running,
        "waiting": now.waiting + (0 if now.engine is None else now.engine.waiting),
    }


def _requests(before: Totals | None, now: Totals | None, seconds: float) -> dict[str, Value]:
    names = ("ttft_p50_s", "ttft_p95_s", "itl_p50_s", "itl_p95_s")
    if before is None or now is None:
        return dict.fromkeys(("output_tokens_per_s", "requests_ended", *names))
    first = _difference(before.first_token, now.first_token)
    later = _difference(before.next_token, now.next_token)
    values = [quantile(one, q) for one in (first, later) for q in (_LIKELY, _RARE)]
    return {
        "output_tokens_per_s": round((now.output - before.output) / seconds, 2),
        "requests_ended": now.ended - before.ended,
        **dict(zip(names, values, strict=True)),
    }


def _memory(engine: Snapshot | None) -> dict[str, Value]:
    names = ("free", "cached", "in_use", "shared", "pinned", "quarantined")
    if engine is None:
        return dict.fromkeys((*names, "waste_share", "tokens_share"))
    usage, lost = engine.usage, engine.checks.quarantined
    rest = engine.num_blocks - usage.blocks_used - usage.blocks_cached - lost
    held = usage.allocated
    return {
        "free": rest,
        "cached": usage.blocks_cached,
        "in_use": usage.blocks_used,
        "shared": usage.blocks_shared,
        "pinned": usage.blocks_pinned,
        "quarantined": lost,
        "waste_share": round(1 - usage.tokens / held, 6) if held else None,
        "tokens_share": round(usage.tokens / usage.slots, 6) if usage.slots else 0.0,
    }


def _work(before: Snapshot | None, now: Snapshot | None, seconds: float) -> dict[str, Value]:
    names = (
        "computed_prompt_tokens_per_s",
        "cached_prompt_tokens_per_s",
        "hit_rate",
        "preemptions",
        "evictions",
    )
    if before is None or now is None or now.stats.steps < before.stats.steps:
        return dict.fromkeys(names)  # none, or another one, which counts from 0
    one, two = before.stats, now.stats
    hits = two.prefix_hit_tokens - one.prefix_hit_tokens
    asked = two.prefix_query_tokens - one.prefix_query_tokens
    computed = two.computed_prompt_tokens - one.computed_prompt_tokens
    return {
        "computed_prompt_tokens_per_s": round(computed / seconds, 2),
        "cached_prompt_tokens_per_s": round(hits / seconds, 2),
        "hit_rate": round(hits / asked, 6) if asked else None,
        "preemptions": two.preemptions - one.preemptions,
        "evictions": now.usage.evictions - before.usage.evictions,
    }


def _difference(before: Histogram, now: Histogram) -> Histogram:
    counts = [late - early for early, late in zip(before.counts, now.counts, strict=True)]
    return Histogram(now.bounds, counts, now.total - before.total)


def quantile(histogram: Histogram, share: float) -> float | None:
    """Return a value that so large a share is not above, as far as the bounds tell; None: none.

    Inside a bucket values are taken to lie evenly; what is above the last bound is that bound.
    """
    count = histogram.count
    if count <= 0:
        return None
    wanted, bounds = share * count, (0.0, *histogram.bounds)
    sums = [0, *accumulate(histogram.counts)]
    for place, (low, high) in enumerate(pairwise(bounds)):
        if sums[place + 1] >= wanted:
            inside = (wanted - sums[place]) / max(1, histogram.counts[place])
            return round(low + (high - low) * inside, 6)
    return histogram.bounds[-1]


_NAMES = tuple(_point(Moment(0.0, None, 0, None), Moment(1.0, None, 0, None)))
"""Of the columns, time apart."""
