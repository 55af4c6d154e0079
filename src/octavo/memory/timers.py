"""What becomes due at a time: O(1) amortised for each deadline, nothing is ever scanned."""

from __future__ import annotations

import math
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_SPARE = 64


class Timers(Generic[K]):
    """One deadline per key, in whole seconds, rounded up.

    Keys of one second lie together, and only seconds are sorted: as many as are in use.
    """

    def __init__(self) -> None:
        self._seconds: dict[int, dict[K, None]] = {}
        self._order: list[int] = []
        """Heap of the seconds; those with no key left may still be in it."""
        self._second_of: dict[K, int] = {}

    def set(self, key: K, deadline_s: float) -> None:
        """Set a key's deadline, in place of the one it may have."""
        second = math.ceil(deadline_s)
        if self._second_of.get(key) == second:
            return
        self.cancel(key)
        keys = self._seconds.get(second)
        if keys is None:
            keys = self._seconds[second] = {}
            heappush(self._order, second)
            self._shrink()
        keys[key] = None
        self._second_of[key] = second

    def cancel(self, key: K) -> None:
        """Forget a key's deadline. Without one: no effect."""
        second = self._second_of.pop(key, None)
        if second is None:
            return
        keys = self._seconds[second]
        del keys[key]
        if not keys:
            del self._seconds[second]

    def due(self, now_s: float) -> list[K]:
        """Return, and forget, the keys whose deadline has come; the earliest second first."""
        found: list[K] = []
        while self._order and self._order[0] <= now_s:
            for key in self._seconds.pop(heappop(self._order), ()):
                del self._second_of[key]
                found.append(key)
        return found

    def _shrink(self) -> None:
        """Drop the seconds without keys once they are more than the others."""
        if len(self._order) > 2 * len(self._seconds) + _SPARE:
            self._order = list(self._seconds)
            heapify(self._order)

    def __contains__(self, key: K) -> bool:
        return key in self._second_of

    def __len__(self) -> int:
        return len(self._second_of)
