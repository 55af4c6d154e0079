"""S3-FIFO: a small queue on probation in front of a main queue, and a memory of who left early."""

from __future__ import annotations

from collections import OrderedDict

from octavo.contract.ids import BlockId, BlockKey
from octavo.memory.block import Block
from octavo.memory.policies.checks import at_least, between
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.text_id import text_of

_MOST_HITS = 3


class _Seat:
    """Where a text stands in its queue, while its block is cached or held."""

    __slots__ = ("hits", "main", "text", "turn")

    def __init__(self, text: BlockKey) -> None:
        self.text = text
        self.turn: int | None = None
        """None: it has been hit, but never cached."""
        self.main = False
        self.hits = 0


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
        self._seats: dict[BlockId, _Seat] = {}
        self._turn = 0
        self._before: BlockKey | None = None
        """What comes before the new text that the last call added; None: it did something else."""

    def add(self, block: Block) -> None:
        """Put the block back where its text stood, with one more hit; a new one comes last."""
        text = text_of(block)
        seat = self._seats.get(block.id)
        if seat is None or seat.text != text:
            seat = self._seats[block.id] = _Seat(text)
        elif seat.hits < _MOST_HITS:
            seat.hits += 1
        if seat.turn is None:
            if block.key != self._before:  # those of one release have one turn
                self._turn += 1
            self._before = block.parent
            seat.turn, seat.main = self._turn, self._returns(text)
        else:
            self._before = None
        (self._main if seat.main else self._small).add(block, seat.turn)

    def hit(self, block: Block) -> None:
        """Note one more hit of a held block; the first cached use of it is none."""
        seat = self._seats.get(block.id)
        text = text_of(block)
        if seat is None or seat.text != text:
            # Its end will count as a hit, so that this one stands for its beginning. It has no turn
            # before it is cached: what goes on from it may be cached first, and must go first.
            self._seats[block.id] = _Seat(text)
        elif seat.hits < _MOST_HITS:
            seat.hits += 1

    def remove(self, block: Block) -> None:
        """Take the block out; its text keeps its place."""
        (self._main if self._seats[block.id].main else self._small).remove(block)
        self._before = None

    def pop(self) -> Block:
        """Take a block without hits; `IndexError` if the bag is empty."""
        self._before = None
        while True:
            small, main = len(self._small), len(self._main)
            if small and (not main or small >= self._small_share * (small + main)):
                block = self._small.pop()
                seat = self._seats[block.id]
                if seat.hits < self._promote_hits:
                    self._haunt(seat.text, small + main)
                    del self._seats[block.id]
                    return block
                self._move_to_main(block, seat, 0)
                continue
            block = self._main.pop()
            seat = self._seats[block.id]
            if not seat.hits:
                del self._seats[block.id]
                return block
            self._move_to_main(block, seat, seat.hits - 1)

    def __len__(self) -> int:
        return len(self._small) + len(self._main)

    def _returns(self, text: BlockKey) -> bool:
        """Say, once, whether a text has left the small queue not long ago."""
        if text not in self._ghosts:
            return False
        del self._ghosts[text]
        return True

    def _move_to_main(self, block: Block, seat: _Seat, hits: int) -> None:
        self._turn += 1
        seat.turn, seat.hits, seat.main = self._turn, hits, True
        self._main.add(block, self._turn)

    def _haunt(self, text: BlockKey, cached: int) -> None:
        self._ghosts[text] = None
        while len(self._ghosts) > self._ghost_share * cached:
            self._ghosts.popitem(last=False)
