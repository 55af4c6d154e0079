"""How long blocks stay, lie idle and wait to be used again: of a sample, since all would cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

from octavo.contract.ids import BlockId
from octavo.memory.block import Block

Tell = Callable[[float], None]
"""Told a number of seconds."""


class Residency:
    """Follows some of a pool's blocks, each from when it is given out until its text is evicted.

    share: of the blocks given out that are followed. lifetime, idle, gap: told, in seconds, how
    long a text had been there when it was evicted, how long nobody had used it then, and how long
    one that is used again had lain idle.
    """

    def __init__(
        self, share: float, *, lifetime: Tell, idle: Tell, gap: Tell, random: Random | None = None
    ) -> None:
        self.now_s = 0.0
        """Seconds on the engine's clock; written by the manager."""
        self._share = share
        self._lifetime = lifetime
        self._idle = idle
        self._gap = gap
        self._random = random or Random(0)
        self._since: dict[BlockId, tuple[float, float]] = {}
        """When a block that is followed was given out, and when it was in use last."""

    def begin(self, blocks: Iterable[Block]) -> None:
        """Blocks are given out."""
        for block in blocks:
            if self._random.random() < self._share:
                self._since[block.id] = (self.now_s, self.now_s)
            else:
                self._since.pop(block.id, None)  # it was free again without being evicted

    def use(self, blocks: Iterable[Block]) -> None:
        """Texts of blocks that nobody held are used again."""
        for block in blocks:
            since = self._since.get(block.id)
            if since is not None:
                self._gap(self.now_s - since[1])

    def rest(self, blocks: Iterable[Block]) -> None:
        """Blocks have lost their last holder."""
        for block in blocks:
            since = self._since.get(block.id)
            if since is not None:
                self._since[block.id] = (since[0], self.now_s)

    def end(self, blocks: Iterable[Block]) -> None:
        """Texts of blocks are evicted."""
        for block in blocks:
            since = self._since.pop(block.id, None)
            if since is not None:
                self._lifetime(self.now_s - since[0])
                self._idle(self.now_s - since[1])

    def reset(self) -> None:
        """Follow none of those that are there."""
        self._since.clear()
