"""Which cached block nobody holds is given up first."""

from __future__ import annotations

from typing import Protocol

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
