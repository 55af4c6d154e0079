"""Which cached block nobody holds is given up first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias

from octavo.memory.block import Block


class EvictionPolicy(Protocol):
    """An ordered bag of the blocks that hold a known text and that nobody holds.

    Every call costs O(log n) or less, on average over the calls. A policy decides; it never
    touches a block's fields. A released sequence adds its blocks tail first, since a suffix is
    useless without its prefix: among blocks added together, those added first should go first,
    unless the policy knows that they differ. No clock but the calls: the same calls always give
    the same victims.
    """

    def add(self, block: Block) -> None:
        """Take in a block that has just lost its last holder: one use of its text has ended."""
        ...

    def remove(self, block: Block) -> None:
        """Let go of a block in the bag: it is held again or no longer holds a known text.

        In the second case its key and parent are gone already.
        """
        ...

    def pop(self) -> Block:
        """Choose the next victim and let go of it. `IndexError` if the bag is empty."""
        ...

    def __len__(self) -> int: ...


class NoticesHits(EvictionPolicy, Protocol):
    """A policy that also wants to hear of uses that overlap; without `hit` it is not told."""

    def hit(self, block: Block) -> None:
        """Note that another sequence takes up the text of a block that is held, not in the bag.

        With it, the uses of a text are its `add` calls and its `hit` calls together.
        """
        ...


class HearsHints(EvictionPolicy, Protocol):
    """A policy that heeds `Block.hint`; one without `hears_hints` is taken to heed none."""

    @property
    def hears_hints(self) -> bool:
        """What callers say of the further use of a text changes who is evicted."""
        ...


class InBulk(EvictionPolicy, Protocol):
    """A policy with verbs for several blocks, all or some of these; else they go one by one.

    Each leads to the same victims as so many calls for one block.
    """

    def add_all(self, blocks: list[Block]) -> None:
        """Take in blocks, at least one, that have lost their last holder together, in order."""
        ...

    def remove_all(self, blocks: list[Block]) -> None:
        """Let go of blocks, at least one, in the bag: they are held again."""
        ...

    def pop_all(self, count: int) -> list[Block]:
        """Choose so many victims, the first first. count: from 1 to as many as there are."""
        ...


_Bulk: TypeAlias = tuple[
    Callable[[list[Block]], None], Callable[[list[Block]], None], Callable[[int], list[Block]]
]


def hears_hints(policy: EvictionPolicy) -> bool:
    """Return True if a policy says that it heeds hints."""
    return bool(getattr(policy, "hears_hints", False))


def in_bulk(policy: EvictionPolicy) -> _Bulk:
    """Return `add_all`, `remove_all` and `pop_all` of any policy: its own, or made of single calls.

    A class that overrides the verb for one block, and not the other, is called for each block.
    """

    def add_all(blocks: list[Block]) -> None:
        for block in blocks:
            policy.add(block)

    def remove_all(blocks: list[Block]) -> None:
        for block in blocks:
            policy.remove(block)

    def pop_all(count: int) -> list[Block]:
        return [policy.pop() for _ in range(count)]

    return (
        _own(policy, "add_all", "add") or add_all,
        _own(policy, "remove_all", "remove") or remove_all,
        _own(policy, "pop_all", "pop") or pop_all,
    )


def _own(policy: EvictionPolicy, verb: str, single: str) -> Any:
    for one in type(policy).__mro__:
        if verb in vars(one):
            return getattr(policy, verb)
        if single in vars(one):
            break
    return None
