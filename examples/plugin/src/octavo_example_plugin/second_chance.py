"""Second chance: a block that came back once is passed over once before it goes."""

from __future__ import annotations

from collections import OrderedDict

from octavo.memory.block import Block


class SecondChance:
    """First in, first out, but a text that was used again since it was cached gets another round.

    Source: the clock algorithm of Corbató, "A paging experiment with the Multics system" (1968).
    Amortised O(1): each pass over a block takes away the chance that a use gave it.
    """

    def __init__(self) -> None:
        self._queue: OrderedDict[int, Block] = OrderedDict()
        self._seen: dict[int, bytes | None] = {}
        self._spared: set[int] = set()

    def add(self, block: Block) -> None:
        """Cache a block; if it held the same text before, it has been used again."""
        if self._seen.get(block.id) == block.key:
            self._spared.add(block.id)
        self._seen[block.id] = block.key
        self._queue[block.id] = block

    def remove(self, block: Block) -> None:
        """Let go of a block that is held again."""
        del self._queue[block.id]
        self._spared.discard(block.id)

    def pop(self) -> Block:
        """Take the oldest block that has no chance left."""
        if not self._queue:
            raise IndexError("pop from an empty bag")
        while True:
            block_id, block = next(iter(self._queue.items()))
            if block_id not in self._spared:
                del self._queue[block_id]
                del self._seen[block_id]
                return block
            self._spared.discard(block_id)
            self._queue.move_to_end(block_id)

    def __len__(self) -> int:
        return len(self._queue)
