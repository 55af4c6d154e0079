"""Which texts have left memory, why and when: hashes only, and not too many."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.contract.ids import BlockKey
from octavo.contract.misses import MissReason
from octavo.memory.block import Block
from octavo.memory.kept import EXPIRED


class Departure(NamedTuple):
    """How a text left."""

    reason: MissReason
    at_s: float
    """Seconds on the engine's clock, when the step was planned."""
    evictions: int
    """Of the tier, before that step."""


class Departures:
    """By KV group and key, how a text left memory last; noting one costs O(1).

    Two generations of `bound` texts, and what one step evicts beyond: the last `bound` texts are
    always remembered.
    """

    def __init__(self, groups: int, bound: int, policy: str) -> None:
        self.policy = policy
        """Name of the policy that evicts."""
        self._bound = bound
        self._young: tuple[dict[BlockKey, Departure], ...] = tuple({} for _ in range(groups))
        self._old: tuple[dict[BlockKey, Departure], ...] = tuple({} for _ in range(groups))
        self._eviction = Departure(MissReason.EVICTED, 0.0, 0)

    def advance(self, now_s: float, evictions: int) -> None:
        """Begin a step. evictions: of the tier so far."""
        self._eviction = Departure(MissReason.EVICTED, now_s, evictions)
        if sum(map(len, self._young)) >= self._bound:
            self._old = self._young
            self._young = tuple({} for _ in self._old)

    def evict_all(self, blocks: Iterable[Block]) -> None:
        """Note that blocks are evicted; they still have their texts, and are kept as they were."""
        young, eviction = self._young, self._eviction
        for block in blocks:
            kept = block.kept
            if kept is not None and kept.priority == EXPIRED:
                self.note(block, MissReason.EXPIRED)
            else:
                young[block.group][block.key or b""] = eviction

    def note(self, block: Block, reason: MissReason) -> None:
        """Note that a block loses its text for another reason; it still has it."""
        assert block.key is not None, f"{block} has no text"
        self._young[block.group][block.key] = self._eviction._replace(reason=reason)

    def get(self, group: int, key: BlockKey) -> Departure | None:
        """Return how a text left last, if that is remembered."""
        return self._young[group].get(key) or self._old[group].get(key)

    @property
    def now_s(self) -> float:
        """When the step began that is being planned."""
        return self._eviction.at_s

    def __len__(self) -> int:
        """Return how many texts are remembered, one that left twice perhaps counted twice."""
        return sum(map(len, self._young)) + sum(map(len, self._old))
