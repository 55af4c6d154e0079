"""Least frequently used: the text with the fewest uses goes first."""

from __future__ import annotations

from octavo.memory.block import Block
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.text_id import text_of, texts_of
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

    def add_all(self, blocks: list[Block]) -> None:
        """Note a use of each, and put each behind all that were used as often."""
        self._bag.add_each(blocks, self._uses.use_all(texts_of(blocks)))

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._uses.use(text_of(block))

    def remove(self, block: Block) -> None:
        """Take the block out; its text's uses are remembered."""
        self._bag.remove(block)

    def remove_all(self, blocks: list[Block]) -> None:
        """Take blocks out; their texts' uses are remembered."""
        self._bag.remove_all(blocks)

    def pop(self) -> Block:
        """Take the block of the least used text; `IndexError` if there is none."""
        self._uses.fit(len(self._bag))
        return self._bag.pop()

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks of the least used texts."""
        self._uses.fit(len(self._bag))
        return self._bag.pop_all(count)

    def __len__(self) -> int:
        return len(self._bag)
