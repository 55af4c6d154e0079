"""An ordered bag: the block with the smallest rank leaves first, of equals the first one added."""

from __future__ import annotations

from collections import deque
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from octavo.contract.ids import BlockId
from octavo.memory.block import Block

Run: TypeAlias = deque[Block]
_SLACK = 64


class RankedBag:
    """A heap of runs: blocks added one after the other with one rank cost O(1) each.

    Other calls cost O(log n). What is removed stays in its run until it comes up, or until more
    of them are gone than left.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Run]] = []
        self._home: dict[BlockId, Run] = {}
        """Of each block inside, the run in which it counts."""
        self._open: Run = deque()
        self._rank: float | None = None
        """Of the open run; None: it is closed."""
        self._serial = 0
        self._gone = 0

    def add(self, block: Block, rank: float) -> None:
        """Take in a block that is not inside."""
        if rank != self._rank:
            self._open, self._rank = deque(), rank
            self._serial += 1
            heappush(self._heap, (rank, self._serial, self._open))
        self._open.append(block)
        self._home[block.id] = self._open

    def add_all(self, blocks: list[Block], rank: float) -> None:
        """Take in blocks that are not inside, all with one rank, in the order given."""
        run = deque(blocks)
        self._serial += 1
        heappush(self._heap, (rank, self._serial, run))
        self._home.update(dict.fromkeys([block.id for block in blocks], run))
        self._rank = None

    def remove(self, block: Block) -> None:
        """Let go of a block that is inside."""
        # If it comes back, its place in this run must not count again.
        if self._home.pop(block.id) is self._open:
            self._rank = None
        self._gone += 1
        if self._gone > len(self._home) + _SLACK:
            self._compact()

    def pop(self) -> Block:
        """Take the first block; `IndexError` if there is none."""
        heap, home = self._heap, self._home
        while heap:
            run = heap[0][2]
            while run:
                block = run.popleft()
                if home.get(block.id) is run:
                    del home[block.id]
                    return block
                self._gone -= 1
            heappop(heap)
            if run is self._open:
                self._rank = None
        raise IndexError("pop from an empty bag")

    def __contains__(self, block: Block) -> bool:
        return block.id in self._home

    def __len__(self) -> int:
        return len(self._home)

    def _compact(self) -> None:
        """Throw out what is gone. O(n), after n removals."""
        for _, _, run in self._heap:
            left = [block for block in run if self._home.get(block.id) is run]
            run.clear()
            run.extend(left)
        self._heap = [entry for entry in self._heap if entry[2]]
        heapify(self._heap)
        self._rank = None
        self._gone = 0
