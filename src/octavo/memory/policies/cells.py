"""A bag of cells in the order of their value; each cell is a queue of runs of blocks."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from octavo.contract.ids import BlockId
from octavo.memory.block import Block

_SLACK = 64


class Run(NamedTuple):
    """Blocks that were added together to one cell."""

    time: int
    blocks: deque[Block]
    """The first one goes first; some are gone."""


class Cells:
    """Blocks in numbered cells; the first filled cell in a given order gives its oldest block.

    `add` and `remove_all` cost O(1) a block, `pop_all` O(1) amortised, all times what it costs to
    find the first filled cell: one operation on a number of as many bits as there are cells.
    """

    def __init__(self) -> None:
        self.cells: list[deque[Run]] = []
        """By number: runs, oldest first."""
        self._home: dict[BlockId, deque[Block]] = {}
        """Of each block inside, the run in which it counts."""
        self._order: list[int] = []
        self._position: list[int] = []
        """By number of the cell: its place in the order."""
        self._filled = 0
        """A bit for each place in the order; a cell whose bit is not set is empty."""
        self._current: deque[Run] | None = None
        """The first filled cell, while that is certain."""
        self._gone = 0

    def add(self, blocks: list[Block], number: int, time: int) -> None:
        """Take blocks that are not inside into a cell, in the order given."""
        run = deque(blocks)
        self._home.update(dict.fromkeys([block.id for block in blocks], run))
        self.cells[number].append(Run(time, run))
        self._filled |= 1 << self._position[number]
        self._current = None

    def remove_all(self, blocks: list[Block]) -> None:
        """Let go of blocks that are inside."""
        for block in blocks:
            del self._home[block.id]
        self._gone += len(blocks)
        if self._gone > len(self._home) + _SLACK:
            self._compact()

    def move(self, number: int, target: int) -> None:
        """Move the oldest run of a cell to the end of another."""
        self.cells[target].append(self.cells[number].popleft())
        self._filled |= 1 << self._position[target]
        self._current = None

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, each the oldest of the first filled cell; fewer if that is all."""
        home, victims = self._home, list[Block]()
        while self._filled:
            cell = self._current
            if cell is None:
                first = (self._filled & -self._filled).bit_length() - 1
                cell = self._current = self.cells[self._order[first]]
            while cell:
                run = cell[0].blocks
                while run:
                    block = run.popleft()
                    if home.get(block.id) is run:
                        del home[block.id]
                        victims.append(block)
                        if len(victims) == count:
                            return victims
                cell.popleft()
            self._filled &= self._filled - 1  # the lowest bit is its own
            self._current = None
        return victims

    def filled(self) -> list[int]:
        """Return the numbers of all cells that hold a run, and of some that do no longer."""
        marks = bin(self._filled)[:1:-1]
        found: list[int] = []
        place = marks.find("1")
        while place >= 0:
            found.append(self._order[place])
            place = marks.find("1", place + 1)
        return found

    def arrange(self, order: Iterable[int]) -> None:
        """Set the order of the cells, the first victims first; new numbers get new cells."""
        self._order = list(order)
        self.cells += [deque() for _ in range(len(self._order) - len(self.cells))]
        self._position = [0] * len(self._order)
        for place, number in enumerate(self._order):
            self._position[number] = place
        self._filled = sum(1 << self._position[n] for n, cell in enumerate(self.cells) if cell)
        self._current = None

    def __len__(self) -> int:
        return len(self._home)

    def _compact(self) -> None:
        """Throw out what is gone. O(n), after n removals."""
        self._gone = 0
        for cell in self.cells:
            for _, run in cell:
                left = [block for block in run if self._home.get(block.id) is run]
                run.clear()
                run.extend(left)
            full = [run for run in cell if run.blocks]
            cell.clear()
            cell.extend(full)
