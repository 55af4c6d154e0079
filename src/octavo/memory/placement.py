"""Which committed blocks are copied to slower tiers, early, so that eviction moves no bytes."""

from __future__ import annotations

from typing import Protocol

from octavo.memory.block import Block


class PlacementPolicy(Protocol):
    """Asked once per block, when it is committed on the device."""

    def copies(self, block: Block) -> tuple[int, ...]:
        """Return the tiers to copy the block to, by index; 0 is the device. May be empty."""
        ...


class DeviceOnly:
    """Nothing is copied: the device is the only tier."""

    def copies(self, block: Block) -> tuple[int, ...]:
        """Return no tier."""
        return ()


class WriteThrough:
    """Every committed block is copied to the next tier."""

    def copies(self, block: Block) -> tuple[int, ...]:
        """Return the tier below the device."""
        return (1,)
