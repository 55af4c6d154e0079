"""Buddy allocation of contiguous runs: the baseline that paging replaces."""

from __future__ import annotations

from bisect import bisect_left, insort

from octavo.contract.ids import BlockId
from octavo.errors import Corrupted


class BuddyAllocator:
    """Runs of a power of two of consecutive blocks, split and merged by address.

    A pool whose size is no power of two is cut into aligned powers of two first. Among free
    runs of one size the lowest address is taken. O(log n) runs are touched per call.
    Source: Knowlton 1965, "A fast storage allocator"; the PagedAttention paper (Kwon et al.,
    SOSP 2023) assumes it for its Orca baselines.
    """

    def __init__(self, num_blocks: int) -> None:
        self.size = num_blocks
        self._free: list[list[BlockId]] = [[] for _ in range(num_blocks.bit_length())]
        self._taken: dict[BlockId, int] = {}
        start = 0
        for order in range(num_blocks.bit_length() - 1, -1, -1):
            if num_blocks >> order & 1:
                self._free[order].append(start)
                start += 1 << order
        self._tops = {run: order for order, runs in enumerate(self._free) for run in runs}

    @property
    def largest(self) -> int:
        """Blocks of the largest run that an empty pool can give."""
        return 1 << (self.size.bit_length() - 1) if self.size else 0

    def fits(self, count: int) -> bool:
        """True if `take(count)` would succeed."""
        return any(self._free[(count - 1).bit_length() :])

    def take(self, count: int) -> tuple[BlockId, int] | None:
        """Give out a run of at least `count` blocks: (first block, length). None: no room."""
        want = (count - 1).bit_length()
        order = next((o for o in range(want, len(self._free)) if self._free[o]), None)
        if order is None:
            return None
        start = self._free[order].pop(0)
        while order > want:
            order -= 1
            insort(self._free[order], start + (1 << order))
        self._taken[start] = order
        return start, 1 << order

    def drop(self, start: BlockId) -> None:
        """Take a run back and merge it with its free buddies."""
        order = self._taken.pop(start)
        while start not in self._tops or self._tops[start] != order:
            buddy = start ^ (1 << order)
            row = self._free[order]
            at = bisect_left(row, buddy)
            if at == len(row) or row[at] != buddy:
                break
            row.pop(at)
            start = min(start, buddy)
            order += 1
        insort(self._free[order], start)

    def copy(self) -> BuddyAllocator:
        """Return an allocator in the same state, to try something out."""
        twin = BuddyAllocator(self.size)
        twin._free = [runs.copy() for runs in self._free]
        twin._taken = self._taken.copy()
        return twin

    def check(self) -> None:
        """Every block lies in exactly one run. Raises Corrupted."""
        runs = sorted(
            [(start, 1 << order) for order, row in enumerate(self._free) for start in row]
            + [(start, 1 << order) for start, order in self._taken.items()]
        )
        end = 0
        for start, length in runs:
            if start != end:
                raise Corrupted(f"blocks {end} to {start} are in no run or in two")
            end = start + length
        if end != self.size:
            raise Corrupted(f"runs end at block {end} of {self.size}")
