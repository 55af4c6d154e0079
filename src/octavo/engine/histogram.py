"""How often a quantity was how large: counts by upper bound, as they cross between processes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

import msgspec


class Histogram(msgspec.Struct):
    """Counts of values up to each bound; those above the last one are counted apart."""

    bounds: tuple[float, ...]
    """Upper bounds, inclusive, ascending."""
    counts: list[int]
    """One more than bounds: not cumulative, the last for what is above all of them."""
    total: float = 0.0
    """Sum of all values."""

    @classmethod
    def of(cls, bounds: Iterable[float]) -> Histogram:
        """Return an empty one. bounds: ascending."""
        settled = tuple(bounds)
        assert settled == tuple(sorted(set(settled))), f"bounds must ascend: {settled}"
        return cls(settled, [0] * (len(settled) + 1))

    def add(self, value: float, times: int = 1) -> None:
        """Count a value, or so many equal ones."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.total += value * times

    @property
    def count(self) -> int:
        """Values so far."""
        return sum(self.counts)


def ladder(most: float, least: float = 1.0) -> tuple[float, ...]:
    """Return 1, 2, 5, 10, 20, … times `least`, up to the first that is at least `most`."""
    bounds: list[float] = []
    scale = least
    while True:
        for step in (1, 2, 5):
            bounds.append(step * scale)
            if bounds[-1] >= most:
                return tuple(bounds)
        scale *= 10
