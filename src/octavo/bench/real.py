"""The same comparison on a real engine and a real clock, bounded in time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from random import Random

import msgspec

from octavo.bench.requests import make_request
from octavo.bench.workload import Workload
from octavo.engine.engine import Engine

_OUTSTANDING = 256
"""Requests running and waiting: far more than run at once, so that the queue never ends."""


class RealRow(msgspec.Struct, frozen=True, kw_only=True):
    """One rule on a real engine whose queue is never empty."""

    reservation: str
    rate_per_s: float
    """Requests a second that the engine works off: output tokens / mean answer."""
    normalized_latency_s: float
    """Seconds that a running sequence needs for a token; waiting, which never ends, not counted."""
    mean_batch: float
    completed: int
    seconds: float
    """Measured, the warm-up left out."""
    output_tokens_per_s: float
    preemptions: int
    cpu_seconds: float
    """Of all threads; far below `seconds` times the threads: the machine had other work."""


class _Mark(msgspec.Struct, frozen=True):
    """Counters at one moment."""

    time_s: float
    cpu_s: float
    steps: int
    running: int
    preemptions: int


def run_real(
    rule: str,
    engine: Engine,
    workload: Workload,
    *,
    in_the_middle: int,
    vocab_size: int,
    seconds: float,
    clock: Callable[[], float],
    advance: Callable[[float], None] | None = None,
) -> RealRow:
    """Keep an engine's queue filled; returns what it did in `seconds` after a warm-up.

    in_the_middle: the first so many requests are given as if found in the middle of their
    answers; with as many as run at once, the batch is as mixed from the start as it will be
    later, so that a short run says something about a long one. The warm-up ends when as many
    have a token, and after `seconds` at the latest. advance: told of each step's seconds.
    """
    source = _lengths(workload, in_the_middle)
    alive: set[str] = set()
    begun: set[str] = set()
    number = tokens = completed = 0
    start = now = clock()
    mark: _Mark | None = None
    while mark is None or now - mark.time_s < seconds:
        while len(alive) < _OUTSTANDING:
            request = make_request(number, next(source), vocab_size=vocab_size)
            engine.add(request)
            alive.add(request.id)
            number += 1
        if mark is None and (len(begun) >= in_the_middle or now - start >= seconds):
            mark, tokens, completed = _mark(engine, now), 0, 0
        for output in engine.step():
            tokens += len(output.token_ids)
            begun.add(output.request_id)
            if output.finish is not None:
                completed += 1
                alive.remove(output.request_id)
        before, now = now, clock()
        if advance is not None:
            advance(now - before)
    for request_id in alive:
        engine.abort(request_id)
    end = _mark(engine, now)
    passed = end.time_s - mark.time_s
    batch = (end.running - mark.running) / max(1, end.steps - mark.steps)
    return RealRow(
        reservation=rule,
        rate_per_s=tokens / passed / workload.mean_output,
        normalized_latency_s=batch * passed / max(1, tokens),
        mean_batch=batch,
        completed=completed,
        seconds=passed,
        output_tokens_per_s=tokens / passed,
        preemptions=end.preemptions - mark.preemptions,
        cpu_seconds=end.cpu_s - mark.cpu_s,
    )


def _mark(engine: Engine, time_s: float) -> _Mark:
    stats = engine.stats
    return _Mark(time_s, time.process_time(), stats.steps, stats.running_sum, stats.preemptions)


def _lengths(workload: Workload, in_the_middle: int) -> Iterator[tuple[int, int]]:
    """Yield (prompt, answer) without end; the first ones lie partly in the past.

    Whoever looks into a running batch finds a request in proportion to the length of its
    answer, and at any place of it.
    """
    random = Random("in the middle")
    weights = [output for _, output in workload.lengths]
    for prompt, output in random.choices(workload.lengths, weights, k=in_the_middle):
        done = random.randrange(output)
        yield prompt + done, output - done
    yield from islice(cycle(workload.lengths), in_the_middle, None)
