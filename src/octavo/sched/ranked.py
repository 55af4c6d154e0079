"""A list of sequences in the order of their ranks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from operator import attrgetter

from octavo.contract.request import Sequence

_rank = attrgetter("rank")


class Ranked:
    """Sequences sorted by rank; ranks are unique. Look-ups are O(log n)."""

    def __init__(self) -> None:
        self._items: list[Sequence] = []

    def add(self, seq: Sequence) -> None:
        """Put a sequence in its place."""
        insort(self._items, seq, key=_rank)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out."""
        at = bisect_left(self._items, seq.rank, key=_rank)
        assert self._items[at] is seq, f"sequence {seq.id} is not in this list"
        del self._items[at]

    def snapshot(self) -> list[Sequence]:
        """Return a copy that stays as it is while the list changes."""
        return self._items.copy()

    def worst_first(self) -> Iterator[Sequence]:
        """Iterate from the last rank to the first."""
        return reversed(self._items)

    def __getitem__(self, index: int) -> Sequence:
        return self._items[index]

    def __iter__(self) -> Iterator[Sequence]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)
