"""How sure a difference between two policies is: paired, over windows of the same requests."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import NamedTuple

from octavo.replay.tally import Tally

WINDOWS = 32
"""Stretches of the judged requests, drawn as a whole: what follows closely hangs together."""
_SIDE = 0.025
"""95 % of the draws lie between the limits."""


class Limits(NamedTuple):
    """Between what limits 95 % of the draws lie."""

    low: float
    high: float


class Intervals(NamedTuple):
    """What a policy gains on the baseline."""

    gain: Limits
    """In hit rate: shares of the block references of the same requests."""
    gap_closed: Limits | None
    """As a share of what the optimum gains; None: in some draw that gains nothing."""


class Bootstrap:
    """Draws windows of requests with replacement, the same ones for every policy."""

    def __init__(self, requests: int, draws: int, seed: int = 0) -> None:
        count = min(WINDOWS, requests)
        self._edges = [requests * number // count for number in range(count + 1)] if count else [0]
        choose = Random(seed).choices
        self._draws = [choose(range(count), k=count) for _ in range(draws if count else 0)]

    def compare(self, own: Tally, baseline: Tally, best: Tally) -> Intervals | None:
        """Say how sure the gain of a policy is. None: nothing was drawn."""
        asked = self._windows([one.references for one in own.each])
        hits, low, high = (
            self._windows([one.hits for one in tally.each]) for tally in (own, baseline, best)
        )
        gains: list[float] = []
        closed: list[float] = []
        for draw in self._draws:
            gain = sum(hits[window] - low[window] for window in draw)
            gap = sum(high[window] - low[window] for window in draw)
            gains.append(gain / max(1, sum(asked[window] for window in draw)))
            if gap > 0:
                closed.append(gain / gap)
        if not gains:
            return None
        return Intervals(_limits(gains), _limits(closed) if len(closed) == len(gains) else None)

    def _windows(self, values: list[int]) -> list[int]:
        edges = self._edges
        return [sum(values[start:end]) for start, end in pairwise(edges)]


def _limits(values: list[float]) -> Limits:
    values = sorted(values)
    cut = int(_SIDE * len(values))
    return Limits(values[cut], values[-1 - cut])
