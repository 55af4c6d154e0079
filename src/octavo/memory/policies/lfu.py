"""Least frequently used: the text with the fewest uses goes first."""

from __future__ import annotations

from octavo.memory.block import Block
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.text_id import text_of
from octavo.memory.policies.use_counts import UseCounts


class Lfu:
    """Evict the least used text, among equals the one released first. O(log n).

    remember: texts whose uses are kept, for each cached block; eviction does not end them. Old
    favourites are never forgotten while they are cached, which is why it loses to LRU on
    conversations. Source: folklore; as in SGLang's radix cache, ordered by (uses, time).
    """

    def __init__(self, *, remember: float = 8.0) -> None:
        self._bag = RankedBag()
        self._uses = UseCounts(remember)

    def add(self, block: Block) -> None:
        """Note a use, and put the block behind all that were used as often."""
        self._bag.add(block, self._uses.use(text_of(block)))

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._uses.use(text_of(block))

    def remove(self, block: Block) -> None:
        """Take the block out; its text's uses are remembered."""
        self._bag.remove(block)

    def pop(self) -> Block:
        """Take the block of the least used text; `IndexError` if there is none."""
        self._uses.fit(len(self._bag))
        return self._bag.pop()

    def __len__(self) -> int:
        return len(self._bag)
