"""What one engine does in a second with the works of the comparison."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec

from octavo.bench.works import Work


class ThroughputRow(msgspec.Struct, frozen=True, kw_only=True):
    """One work."""

    work: str
    counts: str
    """output tokens or prompt tokens: what `tokens_per_s` is measured in."""
    tokens_per_s: float
    """Median of the rounds."""
    slowest: float
    fastest: float
    total_tokens_per_s: float
    """Prompt and output tokens together."""
    prompt_tokens: int
    output_tokens: int
    seconds: list[float]
    """Of each round."""
    read_bytes_per_s: list[float]
    """How fast this machine read memory: before the first round and after each."""


def measure_throughput(
    work: Work,
    run: Callable[[Work], float],
    *,
    rounds: int,
    bandwidth: Callable[[], float],
    advance: Callable[[float], None],
) -> ThroughputRow:
    """Run a work once uncounted, then `rounds` times.

    run: empties the prefix cache, runs a work and returns the seconds it took. bandwidth: returns
    bytes read a second.
    """
    run(work)
    advance(1)
    speeds, seconds = [bandwidth()], list[float]()
    for _ in range(rounds):
        seconds.append(run(work))
        speeds.append(bandwidth())
        advance(1)
    rates = [work.counted_tokens / passed for passed in seconds]
    total = work.prompt_tokens + work.output_tokens
    return ThroughputRow(
        work=work.name,
        counts=work.counts,
        tokens_per_s=statistics.median(rates),
        slowest=min(rates),
        fastest=max(rates),
        total_tokens_per_s=statistics.median(total / passed for passed in seconds),
        prompt_tokens=work.prompt_tokens,
        output_tokens=work.output_tokens,
        seconds=seconds,
        read_bytes_per_s=speeds,
    )
