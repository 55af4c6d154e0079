"""What a policy can tell of a text from how its blocks come: its uses, its turn, its length."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import IntEnum
from itertools import groupby, islice
from typing import NamedTuple

from octavo.contract.ids import BlockKey
from octavo.memory.block import Block
from octavo.memory.policies.text_id import of_group, texts_of
from octavo.memory.policies.use_counts import Recent, UseCounts

_LEAST_ENDS = 1024
_UNKNOWN_SIZE = 16
"""Tokens taken for a block that does not say how many it holds."""


class Origin(IntEnum):
    """How a text began."""

    FRESH = 0
    """Nothing of it was known."""
    BRANCHED = 1
    """It shares a prefix with others, and no earlier text ends there."""
    CONTINUED = 2
    """It goes on where an earlier text ended."""


class Release(NamedTuple):
    """The blocks that one sequence let go of together, and what is known of its text."""

    blocks: list[Block]
    """Tail first, as they came; blocks that others still hold are not among them."""
    texts: list[BlockKey]
    uses: list[int]
    """Per block, its uses up to now, this one included."""
    turn: int
    """1, or one more than that of the text it goes on from."""
    origin: Origin
    length_tokens: int
    """Of the whole text, the blocks that others hold included."""
    partial: bool
    """Its last block is not full: no other text can go on from there."""

    def stretches(self, weights: list[float] | None = None) -> Iterator[tuple[int, int]]:
        """Return (start, end) of full blocks with equal uses and weights, tail first."""
        alike = self.uses if weights is None else zip(self.uses, weights, strict=True)
        start = int(self.partial)
        for _, same in groupby(islice(alike, start, None)):
            end = start + len(list(same))
            yield start, end
            start = end


class Releases:
    """Puts the blocks of one release together, and remembers how often texts were used.

    A block belongs to the release before it if it is the predecessor, in its group, of the block
    that came last. Blocks wait until `close`; uses outlive eviction.
    """

    def __init__(self, remember: float, on_release: Callable[[Release], None]) -> None:
        """remember: texts, for each cached block. on_release: receives each release."""
        self.waiting: list[Block] = []
        self._on_release = on_release
        self._next: dict[int, BlockKey] = {}
        """By group: the key of the block that would continue the release."""
        self._uses = UseCounts(remember)
        self._ends: Recent[int] = Recent(_LEAST_ENDS)
        """Turns of texts, by their last two blocks: the last one may be partial."""

    def add_all(self, blocks: list[Block]) -> None:
        """Take in blocks; closes the release before each one that belongs to another."""
        for block in blocks:
            group, key = block.group, block.key
            if self.waiting and self._next.get(group, key) != key:
                self.close()
            self._next[group] = block.parent
            self.waiting.append(block)

    def close(self) -> None:
        """Hand over what waits, if anything does."""
        if self.waiting:
            blocks, self.waiting = self.waiting, []
            self._next.clear()
            self._on_release(self._study(blocks))

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._uses.use(of_group(block.key or b"", block.group))

    def fit(self, blocks: int) -> None:
        """Remember enough for a cache of so many blocks."""
        self._uses.fit(blocks)
        self._ends.bound = max(self._ends.bound, blocks)

    def _study(self, blocks: list[Block]) -> Release:
        texts = texts_of(blocks)
        uses = self._uses.use_all(texts)
        turn, origin = self._origin(blocks, texts, uses)
        for text in texts[:2]:
            self._ends.put(text, turn)
        last = blocks[0]
        above = next((one for one in blocks[1:] if one.group == last.group), last)
        length = (last.depth + 1) * (above.filled or _UNKNOWN_SIZE)
        partial = last.filled < above.filled
        return Release(blocks, texts, uses, turn, origin, length, partial)

    def _origin(
        self, blocks: list[Block], texts: list[BlockKey], uses: list[int]
    ) -> tuple[int, Origin]:
        """Look for the deepest block that was known before, and whether a text ended there."""
        if uses[0] > 1:
            # The whole text came before: a repetition is no new turn.
            turn = self._ends.get(texts[0])
            return (1, Origin.BRANCHED) if turn is None else (turn, Origin.CONTINUED)
        if max(uses) > 1:
            known = next(text for text, count in zip(texts, uses, strict=True) if count > 1)
        else:
            # All of it is new, but for what others hold.
            above = blocks[-1]
            if not above.depth:
                return 1, Origin.FRESH
            known = of_group(above.parent, above.group)
        turn = self._ends.get(known)
        return (1, Origin.BRANCHED) if turn is None else (turn + 1, Origin.CONTINUED)
