"""HotPrefix: the coldest leaf of the tree of cached texts goes first."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush, heappushpop
from itertools import repeat
from typing import TypeAlias

from octavo.contract.ids import BlockId, BlockKey
from octavo.errors import ConfigError
from octavo.memory.block import Block
from octavo.memory.policies.checks import at_least
from octavo.memory.policies.text_id import of_group, text_of, texts_of
from octavo.memory.policies.use_counts import UseCounts

PRIORITIES: dict[str, Callable[[int, int, int], float] | None] = {
    "sum": lambda uses, clock, length: (uses + clock) / length,
    "ratio": lambda uses, clock, length: uses + clock / length,
    "plain": None,
}
"""Hotness of a block used so often, with so much left on its clock, so deep in its text.

None: uses + clock.
"""


_Node: TypeAlias = tuple[Block, BlockKey, BlockKey, int, int]
"""(block, text, text before it, uses, epoch of the last use) of a block in the bag."""

_Leaf: TypeAlias = tuple[bool, float, int, _Node]
"""(admitted, hotness, serial, block)."""


class HotPrefix:
    """Evict the leaf with the least hotness: uses that are kept, and a clock that runs down.

    A leaf has no cached block after it, so that a suffix never outlives its prefix. Each use sets
    a block's clock to `max_age`; it loses one each `decay_requests` released texts, down to 0.
    hotness: sum, (uses + clock) / length in blocks of the text up to this one; ratio, uses +
    clock / length; plain, uses + clock. admit_uses: texts used less often go before all others
    (1: there are none). remember: texts whose uses are kept, for each cached block. O(log n)
    amortised: a decay step costs O(leaves), and comes after as many accesses at least.

    Source: HotPrefix, Proc. ACM Manag. Data 3(4), article 250 (SIGMOD), from descriptions of it: a
    table of hashes takes the place of the cuckoo filter, promotion needs a second tier.
    """

    def __init__(
        self,
        *,
        max_age: int = 255,
        decay_requests: int = 16,
        hotness: str = "plain",
        admit_uses: int = 1,
        remember: float = 8.0,
    ) -> None:
        at_least(0, max_age=max_age)
        at_least(1, decay_requests=decay_requests, admit_uses=admit_uses)
        if hotness not in PRIORITIES:
            raise ConfigError(f"hotness {hotness!r} is not one of {', '.join(PRIORITIES)}")
        self._max_age = max_age
        self._decay_requests = decay_requests
        self._hotness = PRIORITIES[hotness]
        self._admit_uses = admit_uses
        self._uses = UseCounts(remember)
        self._nodes: dict[BlockId, _Node] = {}
        self._cached: dict[BlockKey, _Node] = {}
        """By text; of two blocks with one text, which none should give, the last."""
        self._children: dict[BlockKey, int] = {}
        """By text: cached blocks right after it."""
        self._leaves: list[_Leaf] = []
        """Heap; some are no leaves any more."""
        self._bared: _Leaf | None = None
        """The block before the last victim, not on the heap yet: often the next victim."""
        self._serial = 0
        self._epoch = 0
        self._requests = 0
        """Texts released since the last decay step."""
        self._accesses = 0

    def add(self, block: Block) -> None:
        """Note a use, and hang the block into the tree."""
        self.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        """Note a use of each block, and hang them into the tree."""
        texts = texts_of(blocks)
        parents = [
            of_group(block.parent, block.group) if block.group else block.parent for block in blocks
        ]
        children, start = self._children, 0
        for end, (text, parent) in enumerate(zip(texts, parents, strict=True), 1):
            children[parent] = children.get(parent, 0) + 1
            if text not in children:
                self._hang(blocks[start:end], texts[start:end], parents[start:end])
                self._grow_leaf(blocks[end - 1])
                start = end
        self._hang(blocks[start:], texts[start:], parents[start:])

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._uses.use(text_of(block))

    def remove(self, block: Block) -> None:
        """Take the block out; its text's uses are remembered."""
        bared = self._unhang(self._nodes[block.id])
        if bared is not None:
            heappush(self._leaves, bared)

    def pop(self) -> Block:
        """Take the coldest leaf; `IndexError` if the bag is empty."""
        if not self._nodes:
            raise IndexError("pop from an empty bag")
        return self.pop_all(1)[0]

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, each the coldest leaf once those before it are gone."""
        nodes, children, leaves = self._nodes, self._children, self._leaves
        bared, victims = self._bared, list[Block]()
        while len(victims) < count:
            node = (heappop(leaves) if bared is None else heappushpop(leaves, bared))[3]
            bared = None
            if nodes.get(node[0].id) is node and node[1] not in children:
                bared = self._unhang(node)
                victims.append(node[0])
        self._bared = bared
        return victims

    def __len__(self) -> int:
        return len(self._nodes)

    def _hang(self, blocks: list[Block], texts: list[BlockKey], parents: list[BlockKey]) -> None:
        """Note a use of each block, which counts as its parent's child already."""
        uses = self._uses.use_all(texts)
        nodes = list(zip(blocks, texts, parents, uses, repeat(self._epoch)))
        self._nodes.update(zip([block.id for block in blocks], nodes, strict=True))
        self._cached.update(zip(texts, nodes, strict=True))
        self._accesses += len(blocks)

    def _grow_leaf(self, block: Block) -> None:
        """Put a block that has come without a cached one after it on the heap."""
        self._requests += 1
        self._uses.fit(len(self._nodes))
        self._serial += 1
        heappush(self._leaves, self._leaf(self._nodes[block.id], self._serial))
        if self._requests >= self._decay_requests and self._accesses >= len(self._leaves):
            self._decay()

    def _unhang(self, node: _Node) -> _Leaf | None:
        """Take a block out of the tree; returns the one before it if that becomes a leaf."""
        block, text, parent, _, _ = node
        cached, children = self._cached, self._children
        del self._nodes[block.id]
        if cached.get(text) is node:
            del cached[text]
        left = children.pop(parent) - 1
        if left:
            children[parent] = left
            return None
        above = cached.get(parent)
        if above is None:
            return None
        self._serial += 1
        return self._leaf(above, self._serial)

    def _leaf(self, node: _Node, serial: int) -> _Leaf:
        block, _, _, uses, epoch = node
        clock = self._max_age - self._epoch + epoch
        clock = clock if clock > 0 else 0
        if self._hotness is None:
            hotness = uses + clock
        else:
            hotness = self._hotness(uses, clock, block.depth + 1)
        return uses >= self._admit_uses, hotness, serial, node

    def _decay(self) -> None:
        """Let every clock run down by one. O(leaves)."""
        self._epoch += 1
        if self._bared is not None:
            heappush(self._leaves, self._bared)
            self._bared = None
        self._requests = self._accesses = 0
        live = {
            node[0].id: (node, serial)  # a block may have been a leaf before
            for _, _, serial, node in self._leaves
            if self._nodes.get(node[0].id) is node and node[1] not in self._children
        }
        self._leaves = [self._leaf(node, serial) for node, serial in live.values()]
        heapify(self._leaves)
