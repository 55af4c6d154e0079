"""Which committed blocks follow the same text, so that the part that two have in common is found.

Knows device blocks of one tier by the key before them, and nothing of who holds them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from operator import attrgetter

from octavo.contract.ids import BlockKey
from octavo.errors import Corrupted
from octavo.memory.block import Block
from octavo.memory.keys import TOKEN_BYTES

_LONGEST_ROW = 512
_text = attrgetter("tokens")


def common_tokens(first: bytes, second: bytes) -> int:
    """Return how many leading tokens two texts share; both are int32, little-endian."""
    length = min(len(first), len(second))
    ours, theirs = first[:length], second[:length]
    if ours == theirs:
        return length // TOKEN_BYTES
    differs = int.from_bytes(ours, "big") ^ int.from_bytes(theirs, "big")
    # Bytes from the first one that differs on.
    lost = (differs.bit_length() + 7) // 8
    return (length - lost) // TOKEN_BYTES


class Siblings:
    """Per KV group, the blocks that follow each key, in the order of their texts' bytes.

    A text's longest common prefix with any of them is that with one of its two neighbours in this
    order. `best`, and `add_all` and `remove_all` for each block, are O(log n) comparisons, whatever
    n follow one key.
    """

    def __init__(self, groups: int) -> None:
        self._families: tuple[dict[BlockKey, Block | _Family], ...] = tuple(
            {} for _ in range(groups)
        )
        """Nearly every key is followed by one block: that stands here without a family."""

    def add_all(self, blocks: Iterable[Block]) -> None:
        """Take in blocks whose texts are new here."""
        for block in blocks:
            families = self._families[block.group]
            known = families.setdefault(block.parent, block)
            if known is block:
                continue
            if isinstance(known, Block):
                known = families[block.parent] = _Family(known)
            known.add(block)

    def remove_all(self, blocks: Iterable[Block]) -> None:
        """Let go of blocks that are here; they still have their texts."""
        for block in blocks:
            families = self._families[block.group]
            known = families[block.parent]
            if known is block:
                del families[block.parent]
                continue
            assert isinstance(known, _Family), f"{block} is not among its siblings"
            known.remove(block)
            if len(known) == 1:
                (families[block.parent],) = known

    def clear(self) -> None:
        """Let go of all blocks."""
        for families in self._families:
            families.clear()

    def follow(self, group: int, parent: BlockKey) -> bool:
        """Return True if any block follows `parent`."""
        return parent in self._families[group]

    def best(self, group: int, parent: BlockKey, tokens: bytes) -> tuple[Block, int] | None:
        """Return the block after `parent` that begins most like `tokens`, and how many it shares.

        None if not even the first token is shared. Of two that share as many, the one whose text
        comes first.
        """
        known = self._families[group].get(parent)
        if known is None:
            return None
        near = (known,) if isinstance(known, Block) else known.neighbours(tokens)
        shared, block = max(
            ((common_tokens(block.tokens, tokens), block) for block in near),
            key=lambda found: found[0],
        )
        return (block, shared) if shared else None

    def check(self, committed: Iterable[Block]) -> None:
        """Compare with all blocks that should be here. Raises Corrupted."""
        here = {block.id for block in committed}
        for group, families in enumerate(self._families):
            for parent, known in families.items():
                blocks = [known] if isinstance(known, Block) else list(known)
                texts = [block.tokens for block in blocks]
                strange = [b for b in blocks if (b.group, b.parent) != (group, parent)]
                lost = [b for b in blocks if b.id not in here]
                if strange or lost or texts != sorted(texts):
                    raise Corrupted(f"siblings of group {group}: {strange or lost or blocks}")
                here -= {block.id for block in blocks}
        if here:
            raise Corrupted(f"committed blocks {sorted(here)} are not among their siblings")


class _Family:
    """Blocks after one key, sorted by text, in rows that are short enough to insert into."""

    def __init__(self, first: Block) -> None:
        self._rows = [[first]]
        self._count = 1

    def add(self, block: Block) -> None:
        row = self._rows[self._row(block.tokens)]
        insort(row, block, key=_text)
        self._count += 1
        if len(row) > _LONGEST_ROW:
            half = len(row) // 2
            self._rows.insert(self._row(row[0].tokens) + 1, row[half:])
            del row[half:]

    def remove(self, block: Block) -> None:
        number = self._row(block.tokens)
        row = self._rows[number]
        at = bisect_left(row, block.tokens, key=_text)
        assert row[at : at + 1] == [block], f"{block} is not among its siblings"
        del row[at]
        self._count -= 1
        if not row:
            del self._rows[number]

    def neighbours(self, tokens: bytes) -> list[Block]:
        """Return the last block whose text is not behind `tokens`, and the first behind it."""
        number = self._row(tokens)
        row = self._rows[number]
        at = bisect_right(row, tokens, key=_text)
        near = row[max(0, at - 1) : at + 1]
        if at == len(row) and number + 1 < len(self._rows):
            near.append(self._rows[number + 1][0])
        return near

    def _row(self, tokens: bytes) -> int:
        """Return the row in which a text stands or would stand."""
        return max(0, bisect_right(self._rows, tokens, key=_first_text) - 1)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Block]:
        for row in self._rows:
            yield from row


def _first_text(row: list[Block]) -> bytes:
    return row[0].tokens
