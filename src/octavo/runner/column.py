"""Numbers in an array that grows at its end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray


class Column:
    """A list whose numbers lie in an array; to append one takes O(1) as a rule."""

    __slots__ = ("_count", "_room")

    def __init__(self, values: Iterable[float] = (), *, dtype: DTypeLike = np.int64) -> None:
        self._room: NDArray[Any] = np.array(tuple(values), dtype=dtype)
        self._count = len(self._room)

    def __len__(self) -> int:
        return self._count

    def append(self, value: float) -> None:
        """Append one number."""
        self._reserve(self._count + 1)
        self._room[self._count] = value
        self._count += 1

    def replace_end(self, kept: int, values: tuple[int, ...]) -> None:
        """Keep the first numbers, and let others follow them."""
        self._reserve(kept + len(values))
        self._count = kept + len(values)
        self._room[kept : self._count] = values

    def increment(self, place: int) -> None:
        """Add 1 to a number."""
        self._room[place] += 1

    def values(self) -> NDArray[Any]:
        """Return the numbers, valid until the next change."""
        return self._room[: self._count]

    def _reserve(self, count: int) -> None:
        if count > len(self._room):
            # What is behind the numbers means nothing.
            self._room = np.resize(self._room, max(16, 2 * count))
