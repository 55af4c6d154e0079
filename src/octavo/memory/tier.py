"""A place that holds blocks: a pool, and an index from keys to blocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, KeysView, Mapping
from typing import NamedTuple

from octavo.contract.ids import BlockId, BlockKey, StepId
from octavo.contract.misses import MissReason
from octavo.errors import Corrupted
from octavo.memory.block import Block
from octavo.memory.departures import Departures
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.groups import Groups
from octavo.memory.pool import BlockPool
from octavo.memory.shares import Shares
from octavo.memory.shelves import Shelves
from octavo.memory.siblings import Siblings


class Text(NamedTuple):
    """What a block holds that can be found: full, or the kept end of a text."""

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
        siblings: Siblings | None = None,
        departures: Departures | None = None,
    ) -> None:
        """siblings, departures: kept up to date, if there are any."""
        self.name = name
        self.siblings = siblings
        """The committed blocks, by what comes before them: to find parts of blocks."""
        self.departures = departures
        """What has left, and why."""
        self.pool = BlockPool(num_blocks, policy, self._evict, slot_weights)
        self._index: tuple[dict[BlockKey, Block], ...] = tuple({} for _ in slot_weights)
        self.pool.shelves.unpinned = self._settle

    def find(self, group: int, text: Text) -> Block | None:
        """Return the block that holds this text, or None. Changes nothing.

        Compares text and predecessor as well, so that a collision of keys is a miss.
        """
        block = self._index[group].get(text.key)
        if block is None or block.tokens != text.tokens or block.parent != text.parent:
            return None
        return block

    def find_run(
        self, group: int, texts: Iterable[tuple[BlockKey, BlockKey, bytes, int]]
    ) -> list[Block]:
        """Find texts, given as the fields of `Text`, up to the first that is not here."""
        index, found = self._index[group], list[Block]()
        for key, parent, tokens, _ in texts:
            block = index.get(key)
            if block is None or block.tokens != tokens or block.parent != parent:
                break
            found.append(block)
        return found

    def block_of(self, group: int, key: BlockKey) -> Block | None:
        """Return the block that is here under a key: no proof of a text."""
        return self._index[group].get(key)

    def keys(self, group: int) -> KeysView[BlockKey]:
        """Return a view of the keys that are here: quicker than `find`, and no proof of a text."""
        return self._index[group].keys()

    def publish(self, block: Block, text: Text, *, step: StepId = 0) -> bool:
        """Make a held block findable; tentative if a step that writes it is in flight.

        False if the key is here already: then the block stays private.
        """
        index = self._index[block.group]
        if text.key in index:
            return False
        index[text.key] = block
        block.key, block.parent, block.tokens, block.depth = text
        block.written_step = step
        if self.pool.touched is not None:
            self.pool.touched.add(block.id)
        if not step and self.siblings is not None:
            self.siblings.add_all([block])
        return True

    def publish_run(
        self,
        group: int,
        blocks: Iterable[Block],
        texts: Iterable[tuple[BlockKey, BlockKey, bytes, int]],
        step: StepId,
    ) -> list[Block]:
        """Publish blocks of one group that `step` writes; returns those that were private.

        texts: the fields of a `Text` for each block. A block that can be found already, and one
        whose key is here, stay as they are.
        """
        index, published = self._index[group], list[Block]()
        for block, text in zip(blocks, texts, strict=True):
            key = text[0]
            if block.key is None and key not in index:
                index[key] = block
                block.key, block.parent, block.tokens, block.depth = text
                block.written_step = step
                published.append(block)
        if self.pool.touched is not None:
            self.pool.touched.update([block.id for block in published])
        return published

    def commit(self, blocks: list[Block]) -> None:
        """The steps that write these tentative blocks went well."""
        for block in blocks:
            block.written_step = 0
        if self.pool.touched is not None:
            self.pool.touched.update([block.id for block in blocks])
        if self.siblings is not None:
            self.siblings.add_all(blocks)

    def claim(self, block: Block) -> None:
        """Take a cached block with what is in it, as its owner's; it is found here no more."""
        self.pool.share([block.id])
        self._forget([block])

    def withdraw(self, block: Block, reason: MissReason = MissReason.FAILED) -> None:
        """Take back a publication: the text is not in the block after all, or not wanted there."""
        cached = block.refs == 0
        if self.departures is not None:
            self.departures.note(block, reason)
        self._forget([block])
        if cached:
            self.pool.discard(block)
        else:
            self.pool.holders.settle(block)  # it may have been another's for a pin alone

    def keyed(self) -> list[Block]:
        """All blocks that can be found."""
        return [block for part in self._index for block in part.values()]

    def clear(self) -> int:
        """Forget every cached block that nobody holds; return how many."""
        idle = [block for block in self.keyed() if block.refs == 0]
        for block in idle:
            self.withdraw(block, MissReason.CLEARED)
        return len(idle)

    def suspects(self, holders: Mapping[BlockId, int]) -> set[BlockId]:
        """Return the blocks about which counts or index contradict the true holders."""
        found = self.pool.suspects(holders)
        there: set[BlockId] = set()
        for group, part in enumerate(self._index):
            for key, block in part.items():
                there.add(block.id)
                if block.key != key or block.group != group:
                    found.add(block.id)
        return found | {b.id for b in self.pool.blocks if b.key is not None and b.id not in there}

    def reset(self, withheld: Collection[BlockId]) -> None:
        """Begin again without any text or holder, and never give out some of the blocks."""
        if self.departures is not None:
            for block in self.keyed():
                if block.key is not None:
                    self.departures.note(block, MissReason.CLEARED)
        for part in self._index:
            part.clear()
        if self.siblings is not None:
            self.siblings.clear()
        self.pool.reset(withheld)

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
        if self.siblings is not None:
            self.siblings.check(block for block in self.keyed() if not block.written_step)

    def _settle(self, label: tuple[int, BlockKey]) -> None:
        """A pin holds a text no more: if it lies in a held block, that may change hands."""
        block = self.block_of(*label)
        if block is not None and block.refs:
            self.pool.holders.settle(block)

    def _evict(self, blocks: list[Block]) -> None:
        if self.departures is not None:
            self.departures.evict_all(blocks)
        self._forget(blocks)

    def _forget(self, blocks: list[Block]) -> None:
        if self.siblings is not None:
            self.siblings.remove_all([block for block in blocks if not block.written_step])
        index, touched = self._index, self.pool.touched
        if touched is not None:
            touched.update([block.id for block in blocks])
        for block in blocks:
            key = block.key
            assert key is not None, f"{block} has no key to forget"
            del index[block.group][key]
            block.key = None
            block.parent = b""
            block.tokens = b""
            block.kept = None
            block.hint = None
            block.hits = 0
            block.written_step = 0


_LEAST_DEPARTURES = 1024


def device_tier(
    policy: Callable[[], EvictionPolicy],
    shares: Shares,
    groups: Groups,
    *,
    partial_blocks: bool = True,
) -> Tier:
    """Make the tier in which sequences compute, of as many blocks as there are shares of.

    partial_blocks: parts of blocks can be found in it. It remembers as many texts that have left
    as it has blocks, or a few more.
    """
    count, shelves = len(groups), Shelves(policy, shares)
    return Tier(
        "device",
        shares.size,
        shelves,
        groups.slot_weights,
        Siblings(count) if partial_blocks else None,
        Departures(count, max(_LEAST_DEPARTURES, shares.size), shelves.policy_name),
    )
