"""Which cached block nobody holds is given up first."""

from __future__ import annotations

from typing import Protocol

from octavo.memory.block import Block


class EvictionPolicy(Protocol):
    """An ordered bag of the blocks that hold a known text and that nobody holds.

    Every call costs O(log n) or less. A policy decides; it never touches a block's fields.
    A released sequence adds its blocks tail first, since a suffix is useless without its
    prefix: among blocks added together, those added first should go first.
    """

    def add(self, block: Block) -> None:
        """Take in a block that has just lost its last holder."""
        ...

    def remove(self, block: Block) -> None:
        """Let go of a block in the bag: it is held again or no longer holds a known text."""
        ...

    def pop(self) -> Block:
        """Choose the next victim and let go of it. `IndexError` if the bag is empty."""
        ...

    def __len__(self) -> int: ...
