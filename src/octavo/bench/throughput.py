"""What one engine does in a second with the works of the comparison."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import msgspec

from octavo.bench.gpu_goals import Comparison, Goal, PeerFigure
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
    output_tokens_per_s: float
    """Median, of answers alone."""
    total_tokens_per_s: float
    """Median, of prompts and answers together."""
    prompt_tokens: int
    output_tokens: int
    median_s: float
    """Seconds of the median round."""
    seconds: list[float]
    """Of each round."""
    read_bytes_per_s: list[float]
    """How fast this machine read memory: before the first round and after each; empty on a GPU."""
    peer: PeerFigure | None = None
    """What another engine did; None: nobody measured the same."""
    goal: Goal | None = None
    met: bool | None = None

    def judged(self, by: Comparison) -> ThroughputRow:
        """Return the row beside another engine's figure and our goal."""
        values = {
            "seconds": self.median_s,
            "output_tokens_per_s": self.output_tokens_per_s,
            "total_tokens_per_s": self.total_tokens_per_s,
        }
        met = by.goal.met_by(values[by.goal.measure])
        return msgspec.structs.replace(self, peer=by.peer, goal=by.goal, met=met)


def measure_throughput(
    work: Work,
    run: Callable[[Work], float],
    *,
    rounds: int,
    bandwidth: Callable[[], float] | None,
    advance: Callable[[float], None],
) -> ThroughputRow:
    """Run a work once uncounted, then `rounds` times.

    run: empties the prefix cache, runs a work and returns the seconds it took. bandwidth: returns
    bytes read a second; None: it does not matter.
    """
    run(work)
    advance(1)
    speeds, seconds = list[float](), list[float]()
    if bandwidth is not None:
        speeds.append(bandwidth())
    for _ in range(rounds):
        seconds.append(run(work))
        if bandwidth is not None:
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
        output_tokens_per_s=statistics.median(work.output_tokens / passed for passed in seconds),
        total_tokens_per_s=statistics.median(total / passed for passed in seconds),
        prompt_tokens=work.prompt_tokens,
        output_tokens=work.output_tokens,
        median_s=statistics.median(seconds),
        seconds=seconds,
        read_bytes_per_s=speeds,
    )
