"""Least recently used: the block that has been without a holder for longest goes first."""

from __future__ import annotations

from collections import OrderedDict

from octavo.contract.ids import BlockId
from octavo.memory.block import Block


class Lru:
    """Evict in the order of release. All calls O(1).

    Source: vLLM's free block queue; blocks of one release go tail first.
    """

    def __init__(self) -> None:
        self._bag: OrderedDict[BlockId, Block] = OrderedDict()

    def add(self, block: Block) -> None:
        """Put the block at the young end."""
        self._bag[block.id] = block

    def remove(self, block: Block) -> None:
        """Take the block out of the middle."""
        del self._bag[block.id]

    def pop(self) -> Block:
        """Take the block at the old end; `IndexError` if there is none."""
        if not self._bag:
            raise IndexError("pop from an empty bag")
        return self._bag.popitem(last=False)[1]

    def add_all(self, blocks: list[Block]) -> None:
        """Put blocks at the young end, the last one youngest."""
        bag = self._bag
        for block in blocks:
            bag[block.id] = block

    def remove_all(self, blocks: list[Block]) -> None:
        """Take blocks out of the middle."""
        for block in blocks:
            del self._bag[block.id]

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks at the old end."""
        pop = self._bag.popitem
        return [pop(last=False)[1] for _ in range(count)]

    def __len__(self) -> int:
        return len(self._bag)
