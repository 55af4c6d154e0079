"""The blocks of one sequence, group by group."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.contract.ids import NO_BLOCK, BlockId, StepId
from octavo.contract.layout import ANY_LENGTH
from octavo.memory.groups import Groups
from octavo.memory.kept import Keeps
from octavo.memory.shares import Account

_Growth = tuple[tuple[int, ...], tuple[tuple[BlockId, ...], ...]]


class Table:
    """Ordered block ids per KV group; written by `KVCacheManager` and `Promises` alone."""

    __slots__ = (
        "_unchanged",
        "account",
        "earlier_step",
        "first",
        "forked",
        "frees_at",
        "ids",
        "inherited_step",
        "keeps",
        "last_start",
        "last_step",
        "owed",
        "promised",
        "room",
        "sealed",
        "sent",
        "tainted",
        "told",
    )

    def __init__(self, groups: int, account: Account) -> None:
        self.account = account
        """Whose the blocks are that it takes."""
        self.keeps: Keeps = ()
        """How its blocks are kept after it."""
        self.ids: tuple[list[BlockId], ...] = tuple([] for _ in range(groups))
        """`NO_BLOCK` before `first`."""
        self.first = [0] * groups
        """Leading entries without a block: the group's window has passed them."""
        self.sent = [0] * groups
        """Leading entries that the runner knows."""
        self.told = [0] * groups
        """Leading entries that whoever watches the memory knows; written by them alone."""
        self.room = 0
        """Tokens that the blocks of every group have room for."""
        self.frees_at = ANY_LENGTH
        """From this position on a query no longer sees all blocks: some can be given up."""
        self.sealed = 0
        """Leading tokens whose full blocks have been published or found published."""
        self.promised = 0
        """Length of the text for which room was promised at admission."""
        self.owed = 0
        """Blocks promised at admission and not taken yet."""
        self.forked = False
        """The partial last block may have another holder: look before writing."""
        self.last_step: StepId = 0
        """The last step that writes here."""
        self.last_start = 0
        """The first position that it writes."""
        self.earlier_step: StepId = 0
        """The last step before that one that writes here."""
        self.tainted = False
        """A failed step wrote here, or one that read what such a step wrote."""
        self.inherited_step: StepId = 0
        """The last step that had written, or was to write, here when this table was forked; or that
        copies into a block with which it began."""
        self._unchanged: _Growth | None = None
        """What `growth` returns as long as no block has been added or replaced."""

    def append(self, group: int, ids: Iterable[BlockId]) -> None:
        """Add blocks at the end of one group's list."""
        self.ids[group].extend(ids)

    def skip(self, group: int, index: int) -> None:
        """Leave a group without blocks before entry `index`; it has no live blocks yet."""
        ids = self.ids[group]
        assert self.first[group] == len(ids), f"group {group} skips over blocks that it holds"
        ids.extend([NO_BLOCK] * (index - len(ids)))
        self.first[group] = len(ids)

    def cut_front(self, group: int, index: int) -> list[BlockId]:
        """Give up a group's blocks before entry `index`; returns them, first block first."""
        first, ids = self.first[group], self.ids[group]
        gone = ids[first:index]
        ids[first:index] = [NO_BLOCK] * len(gone)
        self.first[group] = first + len(gone)
        return gone

    def cut_end(self, group: int, index: int) -> list[BlockId]:
        """Give up a group's entries from `index` on; returns their blocks, last block first."""
        ids, first = self.ids[group], self.first[group]
        gone = ids[max(index, first) :]
        del ids[index:]
        self.first[group] = min(first, len(ids))
        self.sent[group] = min(self.sent[group], len(ids))
        self.told[group] = min(self.told[group], len(ids))
        gone.reverse()
        return gone

    def live(self, group: int) -> list[BlockId]:
        """Return the blocks that a group holds, in order."""
        first = self.first[group]
        return self.ids[group][first:] if first else self.ids[group]

    def blocks(self) -> Iterator[BlockId]:
        """Yield all blocks, group by group; one that two groups hold comes twice."""
        for group in range(len(self.ids)):
            yield from self.live(group)

    def tail_first(self, sizes: tuple[int, ...]) -> Iterable[BlockId]:
        """Return all blocks, those of later positions first. sizes: tokens per block."""
        if len(sizes) == 1:
            return reversed(self.live(0))
        placed = [
            (-index * size, group)
            for group, size in enumerate(sizes)
            for index in range(self.first[group], len(self.ids[group]))
        ]
        placed.sort()
        return [self.ids[group][-place // sizes[group]] for place, group in placed]

    def measure(self, groups: Groups) -> None:
        """Work out `room` and `frees_at` again after any change."""
        self._unchanged = None
        sizes = groups.sizes
        self.room = min(len(ids) * size for ids, size in zip(self.ids, sizes, strict=True))
        if groups.windowed:
            passed = map(groups.passed_at, range(len(sizes)), self.first)
            self.frees_at = min(passed)

    def ends_at(self, position: int, sizes: tuple[int, ...]) -> bool:
        """True if every group has the blocks of so many tokens and none beyond."""
        counts = [-(-position // size) for size in sizes]
        return counts == [len(ids) for ids in self.ids]

    def note_write(self, step: StepId, start: int) -> None:
        """Note that a step writes from position `start` on; a second note of one step adds none."""
        if step != self.last_step:
            self.earlier_step = self.last_step
            self.last_step, self.last_start = step, start

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
        child = Table(len(self.ids), self.account)
        child.keeps = self.keeps
        for group, ids in enumerate(self.ids):
            child.append(group, ids)
        child.first = self.first.copy()
        child.room = self.room
        child.frees_at = self.frees_at
        child.sealed = self.sealed
        child.note_write(self.last_step, self.last_start)
        child.earlier_step, child.tainted = self.earlier_step, self.tainted
        child.inherited_step = max(self.last_step, self.inherited_step)
        child.forked = self.forked = True
        return child
