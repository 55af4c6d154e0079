"""ARC: a queue for texts used once, one for those used again, and a share that adapts."""

from __future__ import annotations

from collections import OrderedDict

from octavo.contract.ids import BlockId, BlockKey
from octavo.memory.block import Block
from octavo.memory.policies.text_id import text_of


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
        text = text_of(block)
        if self._texts.get(block.id) == text or self._was_lost(text):
            self._again[block.id] = block
        else:
            self._once[block.id] = block
        self._texts[block.id] = text
        self._capacity = max(self._capacity, len(self))

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
        if self._once and (not self._again or len(self._once) > self._share):
            block, lost = self._once.popitem(last=False)[1], self._lost_once
        elif self._again:
            block, lost = self._again.popitem(last=False)[1], self._lost_again
        else:
            raise IndexError("pop from an empty bag")
        lost[self._texts.pop(block.id)] = None
        if len(self._lost_once) + len(self._once) > self._capacity and self._lost_once:
            self._lost_once.popitem(last=False)
        if len(self._lost_once) + len(self._lost_again) > self._capacity:
            (self._lost_again or self._lost_once).popitem(last=False)
        return block

    def __len__(self) -> int:
        return len(self._once) + len(self._again)

    def _was_lost(self, text: BlockKey) -> bool:
        """Learn from a text that was evicted and is needed again."""
        once, again = len(self._lost_once), len(self._lost_again)
        if text in self._lost_once:
            del self._lost_once[text]
            self._share = min(self._capacity, self._share + max(1.0, again / once))
        elif text in self._lost_again:
            del self._lost_again[text]
            self._share = max(0.0, self._share - max(1.0, once / again))
        else:
            return False
        return True
