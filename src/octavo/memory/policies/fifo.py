"""First in, first out: the text that was cached first goes first, however often it is used."""

from __future__ import annotations

from octavo.contract.ids import BlockId, BlockKey
from octavo.memory.block import Block
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.text_id import texts_of


class Fifo:
    """Evict in the order in which texts were first cached; a use does not change it. O(log n).

    A baseline: no use is rewarded, so that a text goes before what went on from it later. A text
    is cached when it first loses its last holder, so that the blocks of one text stand tail first,
    which the order of writing would turn round.
    """

    def __init__(self) -> None:
        self._bag = RankedBag()
        self._turns: dict[BlockId, tuple[BlockKey, int]] = {}
        """Of each block that was not evicted: its text, and when that was first cached."""
        self._turn = 0
        self._before: BlockKey | None = None
        """What comes before the new text that the last call added; None: it did something else."""

    def add(self, block: Block) -> None:
        """Put the block where its text stood, or last if it is new."""
        self.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        """Put each block where its text stood, or last if it is new."""
        turns, ranks = self._turns, list[int]()
        for block, text in zip(blocks, texts_of(blocks), strict=True):
            known = turns.get(block.id)
            if known is not None and known[0] == text:
                self._before = None
            else:
                if block.key != self._before:  # those of one release have one turn
                    self._turn += 1
                self._before = block.parent
                known = turns[block.id] = (text, self._turn)
            ranks.append(known[1])
        self._bag.add_each(blocks, ranks)

    def remove(self, block: Block) -> None:
        """Take the block out; its text keeps its turn."""
        self.remove_all([block])

    def remove_all(self, blocks: list[Block]) -> None:
        """Take blocks out; their texts keep their turns."""
        self._bag.remove_all(blocks)
        self._before = None

    def pop(self) -> Block:
        """Take the block of the text that was cached first; `IndexError` if there is none."""
        if not self._bag:
            raise IndexError("pop from an empty bag")
        return self.pop_all(1)[0]

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks of the texts that were cached first."""
        victims = self._bag.pop_all(count)
        for block in victims:
            del self._turns[block.id]
        self._before = None
        return victims

    def __len__(self) -> int:
        return len(self._bag)
