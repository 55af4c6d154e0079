"""An ordered bag: the block with the smallest rank leaves first, of equals the first one added."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import groupby, islice
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
        self.add_all([block], rank)

    def add_all(self, blocks: list[Block], rank: float) -> None:
        """Take in blocks that are not inside, all with one rank, in the order given."""
        if rank != self._rank:
            self._open, self._rank = deque(), rank
            self._serial += 1
            heappush(self._heap, (rank, self._serial, self._open))
        self._open.extend(blocks)
        self._home.update(dict.fromkeys([block.id for block in blocks], self._open))

    def add_each(self, blocks: list[Block], ranks: Iterable[float]) -> None:
        """Take in blocks that are not inside, each with its own rank, in the order given."""
        start = 0
        for rank, same in groupby(ranks):
            end = start + len(list(same))
            self.add_all(blocks[start:end], rank)
            start = end

    def remove(self, block: Block) -> None:
        """Let go of a block that is inside."""
        self.remove_all([block])

    def remove_all(self, blocks: list[Block]) -> None:
        """Let go of blocks that are inside."""
        for block in blocks:
            del self._home[block.id]
        self._rank = None  # if one comes back, its place in the open run must not count again
        self._gone += len(blocks)
        if self._gone > len(self._home) + _SLACK:
            self._compact()

    def pop(self) -> Block:
        """Take the first block; `IndexError` if there is none."""
        for block in self.drain():
            return block
        raise IndexError("pop from an empty bag")

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, the first first; fewer if there are fewer."""
        return list(islice(self.drain(), count))

    def drain(self) -> Iterator[Block]:
        """Yield the first block again and again, let go of; others may be added meanwhile."""
        home = self._home
        while self._heap:
            run = self._heap[0][2]
            if not run:
                heappop(self._heap)
                if run is self._open:
                    self._rank = None
                continue
            block = run.popleft()
            if home.get(block.id) is run:
                del home[block.id]
                yield block
            else:
                self._gone -= 1

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
