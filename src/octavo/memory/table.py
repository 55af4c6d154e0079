"""The blocks of one sequence, group by group."""

from __future__ import annotations

from collections.abc import Iterable

from octavo.contract.ids import BlockId, StepId

_Growth = tuple[tuple[int, ...], tuple[tuple[BlockId, ...], ...]]


class Table:
    """Ordered block ids per KV group; written by `KVCacheManager` alone."""

    __slots__ = (
        "_unchanged",
        "forked",
        "ids",
        "inherited_step",
        "last_step",
        "owed",
        "room",
        "sealed",
        "sent",
    )

    def __init__(self, groups: int) -> None:
        self.ids: tuple[list[BlockId], ...] = tuple([] for _ in range(groups))
        self.sent = [0] * groups
        """Leading entries that the runner knows."""
        self.room = 0
        """Tokens that the blocks of every group have room for."""
        self.sealed = 0
        """Leading tokens whose full blocks have been published or found published."""
        self.owed = 0
        """Blocks promised at admission and not taken yet."""
        self.forked = False
        """The partial last block may have another holder: look before writing."""
        self.last_step: StepId = 0
        """The last step that writes here."""
        self.inherited_step: StepId = 0
        """The last step that had written, or was to write, here when this table was forked."""
        self._unchanged: _Growth | None = None
        """What `growth` returns as long as no block has been added or replaced."""

    def append(self, group: int, ids: Iterable[BlockId]) -> None:
        """Add blocks at the end of one group's list."""
        self.ids[group].extend(ids)

    def measure(self, sizes: tuple[int, ...]) -> None:
        """Work out `room` again after any change. sizes: tokens per block, group by group."""
        self._unchanged = None
        self.room = min(len(ids) * size for ids, size in zip(self.ids, sizes, strict=True))

    def held_tokens(self, sizes: tuple[int, ...]) -> int | None:
        """Tokens that exactly fill every group's blocks, or None if the groups differ."""
        held = {len(ids) * size for ids, size in zip(self.ids, sizes, strict=True)}
        return held.pop() if len(held) == 1 else None

    def growth(self) -> _Growth:
        """Return (kept, blocks) for a slice, and remember that the runner knows all of it now."""
        if self._unchanged is not None:
            return self._unchanged
        kept = tuple(self.sent)
        blocks = tuple(tuple(ids[n:]) for ids, n in zip(self.ids, kept, strict=True))
        self.sent = [len(ids) for ids in self.ids]
        self._unchanged = (tuple(self.sent), ((),) * len(self.ids))
        return kept, blocks

    def fork(self) -> Table:
        """Return a table with the same blocks, none of them known to the runner."""
        child = Table(len(self.ids))
        for group, ids in enumerate(self.ids):
            child.append(group, ids)
        child.room = self.room
        child.sealed = self.sealed
        child.last_step = self.last_step
        child.inherited_step = max(self.last_step, self.inherited_step)
        child.forked = self.forked = True
        return child
