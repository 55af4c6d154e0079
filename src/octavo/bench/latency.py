"""How long one waits for the first token, and from one token to the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec
import numpy as np

from octavo.bench.works import Work, WorkRequest

Tokens = Iterable[tuple[int, int]]
"""As they come: number of the request, and how many tokens of it."""


class Percentiles(msgspec.Struct, frozen=True):
    """Of some times, in seconds."""

    median: float
    p90: float
    p99: float
    count: int


class LatencyRow(msgspec.Struct, frozen=True, kw_only=True):
    """So many requests of one length that arrive together."""

    batch: int
    context: int
    """Tokens of each prompt."""
    output_tokens: int
    """Of each answer."""
    first_token_s: Percentiles
    """From the call to the first token, one for each request and round."""
    token_s: Percentiles
    """From one token of a request to its next."""
    read_bytes_per_s: list[float]
    """How fast this machine read memory: before the first round and after each."""


def even_work(batch: int, context: int, output_tokens: int, *, vocab_size: int) -> Work:
    """Draw requests of one length."""
    random = Random(f"latency-{batch}-{context}")
    requests = [
        WorkRequest([random.randrange(vocab_size) for _ in range(context)], output_tokens)
        for _ in range(batch)
    ]
    return Work(f"{batch} of {context}", requests)


def measure_latency(
    work: Work,
    stream: Callable[[Work], Tokens],
    *,
    rounds: int,
    clock: Callable[[], float],
    bandwidth: Callable[[], float],
    advance: Callable[[float], None],
) -> LatencyRow:
    """Run requests of one length once uncounted, then `rounds` times.

    stream: empties the prefix cache, and yields tokens as they come. bandwidth: returns bytes read
    a second.
    """
    for _ in stream(work):
        pass
    advance(1)
    first: list[float] = []
    gaps: list[float] = []
    speeds = [bandwidth()]
    for _ in range(rounds):
        last: dict[int, float] = {}
        start = clock()
        for request, count in stream(work):
            now = clock()
            if not count:
                continue
            if request not in last:
                first.append(now - start)
            else:
                gaps += [(now - last[request]) / count] * count
            last[request] = now
        speeds.append(bandwidth())
        advance(1)
    prompt, output = work.requests[0]
    return LatencyRow(
        batch=len(work.requests),
        context=len(prompt),
        output_tokens=output,
        first_token_s=_percentiles(first),
        token_s=_percentiles(gaps),
        read_bytes_per_s=speeds,
    )


def _percentiles(times: list[float]) -> Percentiles:
    median, p90, p99 = (float(value) for value in np.percentile(times, (50, 90, 99)))
    return Percentiles(median, p90, p99, len(times))
