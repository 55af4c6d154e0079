"""The engine's memory as the server knows it: built up from frames, the same for all who watch."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.contract.ids import NO_BLOCK, BlockId, SeqId
from octavo.contract.memory_view import (
    NO_GROUP,
    CellRows,
    CopyNote,
    MemoryRows,
    Reserved,
    SeqFacts,
    SeqRows,
    TableRows,
)
from octavo.engine.messages import MemoryShown

KEY_BYTES = 16
NOBODY = -1
"""In `owner`."""
_MOST_NOTES = 1024
"""Ends and copies that are remembered: whoever is further behind is shown everything."""

Column: TypeAlias = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Live:
    """Sequences as they were in the last frame: columns of equal length."""

    seq: Column
    phase: Column
    tokens: Column
    computed: Column
    preemptions: Column
    paused: Column


class Table:
    """One sequence's blocks, group by group."""

    __slots__ = ("changed", "first", "groups")

    def __init__(self, groups: int) -> None:
        self.groups: list[list[BlockId]] = [[] for _ in range(groups)]
        self.first = [0] * groups
        """Leading entries that a window has passed."""
        self.changed = 0
        """Number of the frame that changed it last."""


class Mirror:
    """All blocks, tables and sequences of one engine. All frames of one are taken in, in order.

    Each row knows the number of the frame that changed it last, so that whoever is behind by any
    number of frames is told what has changed since, and nothing has to be kept for them.
    """

    def __init__(self, block_sizes: tuple[int, ...], epoch: int) -> None:
        self.block_sizes = block_sizes
        """Tokens per block, by KV group."""
        self.epoch = epoch
        """Of the engine; another one has another."""
        self.number = 0
        """Of the last frame."""
        self.news = 0
        """Of the last one that brought something new."""
        self.least = 0
        """Whoever has seen less than this frame is shown everything."""
        self.shown: MemoryShown | None = None
        self.tenants: tuple[str, ...] = ()
        self.tables: dict[SeqId, Table] = {}
        self.facts: dict[SeqId, tuple[SeqFacts, int]] = {}
        """By sequence, with the number of the frame that told them."""
        self.ended: deque[tuple[int, SeqFacts]] = deque(maxlen=_MOST_NOTES)
        self.copies: deque[tuple[int, CopyNote, SeqId]] = deque(maxlen=_MOST_NOTES)
        """With the number of the frame, and who holds the copy."""
        self.holders: dict[BlockId, list[SeqId]] = {}
        """Sequences whose tables name a block."""
        self.reserved: tuple[Reserved, ...] | None = None
        """What other rules would reserve, as last worked out."""
        self.reserving = 0
        """Sequences that had blocks then."""
        self._groups = len(block_sizes)
        self._resize(0)

    @property
    def size(self) -> int:
        """Blocks."""
        return len(self.state)

    def take_in(self, shown: MemoryShown) -> None:
        """Take in the next frame, or a whole one."""
        frame = shown.frame
        if frame.memory.whole:
            self._begin(frame.memory, frame.number)
        assert frame.memory.whole or frame.number == self.number + 1, "a frame was left out"
        if frame.number == 1 or self.shown is None or _brings(shown, self.shown):
            self.news = frame.number
        self.number, self.shown = frame.number, shown
        rows = self._take_cells(frame.memory.cells)
        owners = self._take_tables(frame.memory)
        self._own({*rows, *owners})
        for one in frame.facts:
            self.facts[one.seq] = (one, self.number)
        for seq in frame.ended:
            facts, _ = self.facts.pop(seq, (None, 0))
            if facts is not None:
                if len(self.ended) == _MOST_NOTES:
                    self.least = self.ended[0][0]
                self.ended.append((self.number, facts))
        for note in frame.copies:
            who = self.holders.get(note.dst)
            self.copies.append((self.number, note, who[0] if who else NOBODY))
        self.live = _live(frame.seqs)
        if frame.reserved is not None:
            self.reserved, self.reserving = frame.reserved, frame.sequences

    def is_tenants(self, number: int) -> Column:
        """Say of each block whether a tenant of this number may see what is in it."""
        there = self.group != NO_GROUP
        mine = there & (self.tenant == number)
        for block, others in self.also.items():
            if number in others:
                mine[block] = True
        return mine

    def counts(self) -> list[int]:
        """Count the blocks by state."""
        return np.bincount(self.state, minlength=7).tolist()

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _resize(self, count: int) -> None:
        self.state: Column = np.zeros(count, np.uint8)
        self.group: Column = np.full(count, NO_GROUP, np.uint8)
        self.refs: Column = np.zeros(count, np.uint16)
        self.tokens: Column = np.zeros(count, np.uint16)
        self.hits: Column = np.zeros(count, np.uint16)
        self.used: Column = np.zeros(count, np.uint32)
        self.tenant: Column = np.zeros(count, np.uint16)
        self.depth: Column = np.zeros(count, np.uint32)
        self.owner: Column = np.full(count, NOBODY, np.int32)
        self.changed: Column = np.zeros(count, np.uint64)
        """By block, the number of the frame that changed it last."""
        self.keys: Column = np.zeros(count, f"V{KEY_BYTES}")
        self.parents: Column = np.zeros(count, f"V{KEY_BYTES}")
        self.also: dict[BlockId, tuple[int, ...]] = {}
        """Blocks that other tenants hold too, by number of these."""
        empty = np.zeros(0, np.int32)
        self.live = Live(empty, empty, empty, empty, empty, empty)

    def _begin(self, memory: MemoryRows, number: int) -> None:
        self._resize(len(memory.cells.state))
        self.tenants = memory.tenants
        self.least = number
        for kept in (self.tables, self.facts, self.ended, self.copies, self.holders):
            kept.clear()

    def _take_cells(self, rows: CellRows) -> list[BlockId]:
        index = np.frombuffer(rows.index, np.uint32)
        for column, dtype, data in (
            (self.state, np.uint8, rows.state),
            (self.group, np.uint8, rows.group),
            (self.refs, np.uint16, rows.refs),
            (self.tokens, np.uint16, rows.tokens),
            (self.hits, np.uint16, rows.hits),
            (self.used, np.uint32, rows.used),
            (self.tenant, np.uint16, rows.tenant),
            (self.depth, np.uint32, rows.depths),
            (self.keys, f"V{KEY_BYTES}", rows.keys),
            (self.parents, f"V{KEY_BYTES}", rows.parents),
        ):
            column[index] = np.frombuffer(data, dtype)
        self.changed[index] = self.number
        blocks: list[BlockId] = index.tolist()
        if self.also or rows.also:
            for block in blocks:
                self.also.pop(block, None)
            self.also.update(rows.also)
        return blocks

    def _take_tables(self, memory: MemoryRows) -> set[BlockId]:
        """Note how tables have changed; returns the blocks that have others in them."""
        touched = set[BlockId]()
        for seq in memory.gone:
            table = self.tables.pop(seq, None)  # None: it never had a block
            for ids in () if table is None else table.groups:
                self._leave(seq, ids, touched)
        for rows in memory.tables:
            self._take_table(rows, touched)
        return touched

    def _take_table(self, rows: TableRows, touched: set[BlockId]) -> None:
        table = self.tables.get(rows.seq)
        if table is None:
            table = self.tables[rows.seq] = Table(self._groups)
        ids, first = table.groups[rows.group], table.first[rows.group]
        blocks = array("i", rows.blocks)
        self._leave(rows.seq, ids[rows.kept :], touched)
        del ids[rows.kept :]
        if rows.first > first:
            passed = min(rows.first, len(ids))
            self._leave(rows.seq, ids[first:passed], touched)
            ids[first:passed] = [NO_BLOCK] * max(0, passed - first)
        ids.extend(blocks)
        table.first[rows.group] = rows.first
        table.changed = self.number
        for block in blocks:
            if block != NO_BLOCK:
                self.holders.setdefault(block, []).append(rows.seq)
                touched.add(block)

    def _leave(self, seq: SeqId, ids: Iterable[BlockId], touched: set[BlockId]) -> None:
        for block in ids:
            if block == NO_BLOCK:
                continue
            holders = self.holders[block]
            holders.remove(seq)
            if not holders:
                del self.holders[block]
            touched.add(block)

    def _own(self, blocks: Iterable[BlockId]) -> None:
        """Work out again which sequence holds blocks; of several it is the lowest."""
        holders, owner = self.holders, self.owner
        for block in blocks:
            there = holders.get(block)
            lowest = NOBODY if there is None else there[0] if len(there) == 1 else min(there)
            if owner[block] != lowest:
                owner[block] = lowest
                self.changed[block] = self.number


def _brings(shown: MemoryShown, before: MemoryShown) -> bool:
    """True if anything is other than it was."""
    frame, memory = shown.frame, shown.frame.memory
    return bool(
        memory.whole
        or memory.cells.index
        or memory.tables
        or memory.gone
        or frame.facts
        or frame.ended
        or frame.copies
        or frame.step != before.frame.step
        or frame.seqs != before.frame.seqs
        or shown.paused != before.paused
    )


def _live(rows: SeqRows) -> Live:
    return Live(
        np.frombuffer(rows.seq, np.int32),
        np.frombuffer(rows.phase, np.uint8),
        np.frombuffer(rows.tokens, np.uint32),
        np.frombuffer(rows.computed, np.uint32),
        np.frombuffer(rows.preemptions, np.uint16),
        np.frombuffer(rows.paused, np.uint8),
    )
