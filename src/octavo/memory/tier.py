"""A place that holds blocks: a pool, and an index from keys to blocks."""

from __future__ import annotations

from collections.abc import KeysView, Mapping
from typing import NamedTuple

from octavo.contract.ids import BlockId, BlockKey, StepId
from octavo.errors import Corrupted
from octavo.memory.block import Block
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.pool import BlockPool


class Text(NamedTuple):
    """What a full block holds."""

    key: BlockKey
    parent: BlockKey
    """Key of what comes before it."""
    tokens: bytes
    """int32, little-endian."""
    depth: int
    """Index of the block in its chain."""


class Tier:
    """The same class for the device, host memory, disk: only the bytes lie elsewhere.

    The index has one part per KV group: a key says which text, the group says which layers.
    """

    def __init__(
        self,
        name: str,
        num_blocks: int,
        policy: EvictionPolicy,
        slot_weights: tuple[int, ...] = (1,),
    ) -> None:
        self.name = name
        self.pool = BlockPool(num_blocks, policy, self._forget, slot_weights)
        self._index: tuple[dict[BlockKey, Block], ...] = tuple({} for _ in slot_weights)

    def find(self, group: int, text: Text) -> Block | None:
        """Return the block that holds this text, or None. Changes nothing.

        Compares text and predecessor as well, so that a collision of keys is a miss.
        """
        block = self._index[group].get(text.key)
        if block is None or block.tokens != text.tokens or block.parent != text.parent:
            return None
        return block

    def keys(self, group: int) -> KeysView[BlockKey]:
        """Return a view of the keys that are here: quicker than `find`, and no proof of a text."""
        return self._index[group].keys()

    def publish(self, block: Block, text: Text, *, step: StepId = 0) -> bool:
        """Make a held, full block findable; tentative if a step that writes it is in flight.

        False if the key is here already: then the block stays private.
        """
        index = self._index[block.group]
        if text.key in index:
            return False
        index[text.key] = block
        block.key, block.parent, block.tokens, block.depth = text
        block.written_step = step
        return True

    def withdraw(self, block: Block) -> None:
        """Take back a publication: the text is not in the block after all."""
        cached = block.refs == 0
        self._forget(block)
        if cached:
            self.pool.discard(block)

    def keyed(self) -> list[Block]:
        """All blocks that can be found."""
        return [block for part in self._index for block in part.values()]

    def clear(self) -> int:
        """Forget every cached block that nobody holds; return how many."""
        idle = [block for block in self.keyed() if block.refs == 0]
        for block in idle:
            self.withdraw(block)
        return len(idle)

    def check(self, holders: Mapping[BlockId, int]) -> None:
        """Check pool and index against the true holders. Raises Corrupted."""
        self.pool.check(holders)
        for group, part in enumerate(self._index):
            for key, block in part.items():
                if block.key != key or block.group != group:
                    raise Corrupted(
                        f"{self.name}: index of group {group} names a stranger: {block}"
                    )
        keyed = sum(block.key is not None for block in self.pool.blocks)
        if keyed != sum(map(len, self._index)):
            raise Corrupted(f"{self.name}: {keyed} keyed blocks, {len(self.keyed())} in the index")

    def _forget(self, block: Block) -> None:
        assert block.key is not None, f"{block} has no key to forget"
        del self._index[block.group][block.key]
        block.key = None
        block.parent = b""
        block.tokens = b""
        block.kept = None
        block.written_step = 0
