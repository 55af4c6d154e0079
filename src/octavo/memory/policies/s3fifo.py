"""S3-FIFO: a small queue on probation in front of a main queue, and a memory of who left early."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby

from octavo.contract.ids import BlockId, BlockKey
from octavo.memory.block import Block
from octavo.memory.policies.checks import at_least, between
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.text_id import text_of, texts_of

_MOST_HITS = 3


class S3Fifo:
    """Evict from a small queue what was not used again, else from the main one. O(log n) amortised.

    small_share: of the cached blocks, for the small queue (the paper's 0.1; on conversation
    traces a half is better). promote_hits: hits, 1 to 3, that move a text on to the main queue.
    ghosts: texts remembered after they left the small queue, for each cached block; one that
    comes back goes to the main queue. Hits do not reorder, so that a text may go before what went
    on from it later; in the main queue each of up to three buys one more round.
    Source: Yang et al. 2023, "FIFO queues are all you need for cache eviction".
    """

    def __init__(
        self, *, small_share: float = 0.5, promote_hits: int = 2, ghosts: float = 2.0
    ) -> None:
        between(0, 1, small_share=small_share)
        between(1, _MOST_HITS, promote_hits=promote_hits)
        at_least(0, ghosts=ghosts)
        self._small_share = small_share
        self._promote_hits = promote_hits
        self._ghost_share = ghosts
        self._small = RankedBag()
        self._main = RankedBag()
        self._ghosts: OrderedDict[BlockKey, None] = OrderedDict()
        self._texts: dict[BlockId, BlockKey] = {}
        """Of each block that is cached, or has been hit."""
        self._places: dict[BlockId, tuple[bool, int]] = {}
        """Where a text stands from when it is cached first: (in the main queue, turn)."""
        self._hits: dict[BlockId, int] = {}
        """Of those that have any."""
        self._turn = 0
        self._before: BlockKey | None = None
        """What comes before the new text that the last call added; None: it did something else."""

    def add(self, block: Block) -> None:
        """Put the block back where its text stood, with one more hit; a new one comes last."""
        self.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        """Put each block back where its text stood, with one more hit; new ones come last."""
        known, places = self._texts, list[tuple[bool, int]]()
        for block, text in zip(blocks, texts_of(blocks), strict=True):
            if known.get(block.id) == text:
                self._count_hit(block)
            else:
                self._begin(block, text)
            place = self._places.get(block.id)
            if place is None:
                if block.key != self._before:  # those of one release have one turn
                    self._turn += 1
                self._before = block.parent
                place = self._places[block.id] = self._returns(text), self._turn
            else:
                self._before = None
            places.append(place)
        start = 0
        for (main, turn), same in groupby(places):
            end = start + len(list(same))
            (self._main if main else self._small).add_all(blocks[start:end], turn)
            start = end

    def hit(self, block: Block) -> None:
        """Note one more hit of a held block; the first cached use of it is none."""
        text = text_of(block)
        if self._texts.get(block.id) == text:
            self._count_hit(block)
        else:
            # Its end will count as a hit, so that this one stands for its beginning. It has no turn
            # before it is cached: what goes on from it may be cached first, and must go first.
            self._begin(block, text)

    def remove(self, block: Block) -> None:
        """Take the block out; its text keeps its place."""
        (self._main if self._places[block.id][0] else self._small).remove(block)
        self._before = None

    def pop(self) -> Block:
        """Take a block without hits; `IndexError` if the bag is empty."""
        if not len(self):
            raise IndexError("pop from an empty bag")
        return self.pop_all(1)[0]

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks without hits."""
        self._before = None
        hits, victims, lost = self._hits, list[Block](), list[Block]()
        oldest, oldest_in_main = self._small.drain(), self._main.drain()
        small, main = len(self._small), len(self._main)
        cached = small + main
        while len(victims) < count:
            if small and (not main or small >= self._small_share * (small + main)):
                small -= 1
                block = next(oldest)
                if hits.pop(block.id, 0) < self._promote_hits:
                    cached = small + 1 + main
                    victims.append(block)
                    lost.append(block)
                else:
                    self._move_to_main(block)
                    main += 1
                continue
            block = next(oldest_in_main)
            left = hits.pop(block.id, 0)
            if left:
                if left > 1:
                    hits[block.id] = left - 1
                self._move_to_main(block)
            else:
                victims.append(block)
                main -= 1
        self._haunt([self._texts[block.id] for block in lost], cached)
        for block in victims:
            del self._texts[block.id], self._places[block.id]
        return victims

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def _begin(self, block: Block, text: BlockKey) -> None:
        """Note a text that is new in a block: it has no place yet."""
        self._texts[block.id] = text
        self._places.pop(block.id, None)
        self._hits.pop(block.id, None)

    def _returns(self, text: BlockKey) -> bool:
        """Say, once, whether a text has left the small queue not long ago."""
        if text not in self._ghosts:
            return False
        del self._ghosts[text]
        return True

    def _count_hit(self, block: Block) -> None:
        hits = self._hits.get(block.id, 0)
        if hits < _MOST_HITS:
            self._hits[block.id] = hits + 1

    def _move_to_main(self, block: Block) -> None:
        self._turn += 1
        self._places[block.id] = True, self._turn
        self._main.add(block, self._turn)

    def _haunt(self, texts: list[BlockKey], cached: int) -> None:
        """Remember texts that leave the small queue. cached: blocks, the last of them included."""
        self._ghosts.update(dict.fromkeys(texts))
        for _ in range(len(self._ghosts) - int(self._ghost_share * cached)):
            self._ghosts.popitem(last=False)
