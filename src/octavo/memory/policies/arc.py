"""ARC: a queue for texts used once, one for those used again, and a share that adapts."""

from __future__ import annotations

from collections import OrderedDict

from octavo.contract.ids import BlockId, BlockKey
from octavo.memory.block import Block
from octavo.memory.policies.text_id import text_of, texts_of


class Arc:
    """Evict the oldest of the texts used once or of those used again. O(1) amortised.

    A text that returns after its eviction shows which queue was too short: the one it was
    evicted from gets a larger share. As many evicted texts are remembered as blocks are cached
    at most, for both queues together. No parameters.
    Source: Megiddo and Modha 2003, "ARC: a self-tuning, low overhead replacement cache".
    """

    def __init__(self) -> None:
        self._once: OrderedDict[BlockId, Block] = OrderedDict()
        self._again: OrderedDict[BlockId, Block] = OrderedDict()
        self._lost_once: OrderedDict[BlockKey, None] = OrderedDict()
        self._lost_again: OrderedDict[BlockKey, None] = OrderedDict()
        self._texts: dict[BlockId, BlockKey] = {}
        """Of blocks that were cached or hit and have not been evicted since."""
        self._share = 0.0
        """Blocks that those used once may take."""
        self._capacity = 0
        """Most blocks ever cached."""

    def add(self, block: Block) -> None:
        """Put the block at the young end of its queue."""
        self.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        """Put each block at the young end of its queue."""
        texts, once, again = self._texts, self._once, self._again
        for block, text in zip(blocks, texts_of(blocks), strict=True):
            if texts.get(block.id) == text or self._was_lost(text):
                again[block.id] = block
            else:
                once[block.id] = block
            texts[block.id] = text
            cached = len(once) + len(again)
            if cached > self._capacity:
                self._capacity = cached

    def hit(self, block: Block) -> None:
        """Note that a held block is used again."""
        text = text_of(block)
        self._was_lost(text)
        self._texts[block.id] = text

    def remove(self, block: Block) -> None:
        """Take the block out; if it comes back, its text has been used again."""
        if self._once.pop(block.id, None) is None:
            del self._again[block.id]

    def pop(self) -> Block:
        """Take the oldest block of the queue that has more than its share."""
        if not len(self):
            raise IndexError("pop from an empty bag")
        return self.pop_all(1)[0]

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, each the oldest of the queue that has more than its share."""
        once, again, victims = self._once, self._again, list[Block]()
        lost_once, lost_again = self._lost_once, self._lost_again
        for _ in range(count):
            if once and (not again or len(once) > self._share):
                block, lost = once.popitem(last=False)[1], lost_once
            else:
                block, lost = again.popitem(last=False)[1], lost_again
            victims.append(block)
            lost[self._texts.pop(block.id)] = None
            if len(lost_once) + len(once) > self._capacity and lost_once:
                lost_once.popitem(last=False)
            if len(lost_once) + len(lost_again) > self._capacity:
                (lost_again or lost_once).popitem(last=False)
        return victims

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def _was_lost(self, text: BlockKey) -> bool:
        """Learn from a text that was evicted and is needed again."""
        lost_once, lost_again = self._lost_once, self._lost_again
        if text in lost_once:
            change = max(1.0, len(lost_again) / len(lost_once))
            del lost_once[text]
            self._share = min(self._capacity, self._share + change)
        elif text in lost_again:
            change = max(1.0, len(lost_once) / len(lost_again))
            del lost_again[text]
            self._share = max(0.0, self._share - change)
        else:
            return False
        return True
