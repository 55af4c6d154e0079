"""Shows a device's memory to whoever watches: what has changed since the last look."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from octavo.contract.ids import BlockId, SeqId, StepId
from octavo.contract.memory_view import (
    MOST_COUNTED,
    NO_GROUP,
    BlockFacts,
    CellRows,
    CellState,
    MemoryRows,
    TableRows,
)
from octavo.memory.block import Block
from octavo.memory.groups import Groups
from octavo.memory.keys import KEY_BYTES, TOKEN_BYTES
from octavo.memory.shares import Account
from octavo.memory.table import Table
from octavo.memory.tier import Tier

_NO_KEY = bytes(KEY_BYTES)


class Look(Protocol):
    """What can be seen of a cache manager's memory, between two steps."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens per block, by KV group."""
        ...

    @property
    def num_blocks(self) -> int:
        """Of the device."""
        ...

    @property
    def sequences(self) -> int:
        """How many have blocks."""
        ...

    def take(self, *, whole: bool) -> MemoryRows:
        """Tell what has changed since the last time, or all of it; from now on it is followed."""
        ...

    def end(self) -> None:
        """Nobody looks any more: follow nothing."""
        ...

    def lends(self, block: BlockId, step: StepId) -> bool:
        """True if a step copies a block for a new text that begins with a part of it."""
        ...

    def place(self, block: BlockId) -> tuple[SeqId, int, int] | None:
        """Return a sequence that holds a block, the group, and the index there; None: none does."""
        ...

    def block(self, block: BlockId, *, prefix: bool = False) -> BlockFacts:
        """Tell of one block. prefix: with the text before it, as far as that is in memory."""
        ...


class PagedLook:
    """A `Look` at paged memory. It costs nothing while nobody looks.

    A look costs O(blocks that have changed) and O(sequences). tables: by sequence, as they are
    at any time.
    """

    def __init__(self, groups: Groups, device: Tier, tables: Mapping[SeqId, Table]) -> None:
        self._groups = groups
        self._device = device
        self._pool = device.pool
        self._tables = tables
        self._told: dict[SeqId, list[tuple[int, int]]] = {}
        """By sequence and group, what was told of a table: leading empty entries, and entries."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """Tokens per block, by KV group."""
        return self._groups.sizes

    @property
    def num_blocks(self) -> int:
        """Of the device."""
        return self._pool.size

    @property
    def sequences(self) -> int:
        """How many have blocks."""
        return len(self._tables)

    def take(self, *, whole: bool) -> MemoryRows:
        """Tell what has changed since the last time, or all of it; from now on it is followed."""
        touched = self._pool.touched
        if whole or touched is None:
            whole = True
            self._told.clear()
            ids: Iterable[BlockId] = range(self._pool.size)
        else:
            ids = sorted(touched)
        rows = self._rows([self._pool.blocks[i] for i in ids])
        self._pool.follow(set())
        gone = tuple(self._told.keys() - self._tables.keys())
        for seq in gone:
            del self._told[seq]
        tenants = tuple([one.name for one in self._pool.shares.accounts]) if whole else ()
        return MemoryRows(
            whole=whole, cells=rows, tables=tuple(self._changes()), gone=gone, tenants=tenants
        )

    def end(self) -> None:
        """Nobody looks any more: follow nothing."""
        self._pool.follow(None)
        self._told.clear()

    def lends(self, block: BlockId, step: StepId) -> bool:
        """True if a step copies a block for a new text that begins with a part of it."""
        return self._pool.blocks[block].busy_step >= step

    def place(self, block: BlockId) -> tuple[SeqId, int, int] | None:
        """Return a sequence that holds a block, the group, and the index there; None: none does."""
        for seq, table in self._tables.items():
            for group, ids in enumerate(table.ids):
                if block in ids:
                    return seq, group, ids.index(block)
        return None

    def block(self, block: BlockId, *, prefix: bool = False) -> BlockFacts:
        """Tell of one block. prefix: with the text before it, as far as that is in memory."""
        one = self._pool.blocks[block]
        there = bool(one.refs) or one.key is not None
        owners: tuple[Account | None, ...] = (one.account, *(one.others or {}))
        chain = self._chain(one) if prefix and one.key is not None else None
        return BlockFacts(
            block=block,
            state=CellState(self._state(one)),
            group=one.group if there else None,
            refs=one.refs,
            hits=one.hits,
            filled=one.filled if there else 0,
            used_s=one.used_s,
            tenants=tuple([owner.name for owner in owners if owner is not None and there]),
            key=one.key,
            parent=one.parent if one.key is not None and one.depth else None,
            depth=one.depth,
            sequences=tuple(
                seq for seq, table in self._tables.items() if any(block in ids for ids in table.ids)
            ),
            tokens=None if one.key is None else tuple(_tokens(one.tokens)),
            prefix=chain,
        )

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _state(self, block: Block) -> CellState:
        if block.refs:
            if block.written_step:
                return CellState.TENTATIVE
            return CellState.SHARED if block.refs > 1 else CellState.IN_USE
        if block.key is None:
            gone = block.id in self._pool.quarantined
            return CellState.QUARANTINED if gone else CellState.FREE
        return CellState.PINNED if block.shelf is None else CellState.CACHED

    def _rows(self, blocks: list[Block]) -> CellRows:
        live = [block.refs or block.key is not None for block in blocks]
        pairs = list(zip(blocks, live, strict=True))
        state = self._state
        return CellRows(
            index=array("I", [block.id for block in blocks]).tobytes(),
            state=bytes([state(block) for block in blocks]),
            group=bytes([block.group if there else NO_GROUP for block, there in pairs]),
            refs=_counted([block.refs for block in blocks]),
            tokens=_counted([block.filled if there else 0 for block, there in pairs]),
            hits=_counted([block.hits for block in blocks]),
            used=array("I", [int(block.used_s * 10) for block in blocks]).tobytes(),
            tenant=array(
                "H",
                [
                    block.account.number if there and block.account is not None else 0
                    for block, there in pairs
                ],
            ).tobytes(),
            keys=b"".join([block.key or _NO_KEY for block in blocks]),
            parents=b"".join([block.parent or _NO_KEY for block in blocks]),
            depths=array("I", [block.depth for block in blocks]).tobytes(),
            also=tuple(
                [
                    (block.id, tuple(other.number for other in block.others))
                    for block in blocks
                    if block.others
                ]
            ),
        )

    def _changes(self) -> Iterator[TableRows]:
        """Tell how tables have changed, and remember that it was told."""
        groups = range(len(self._groups))
        for seq, table in self._tables.items():
            known = self._told.get(seq)
            if known is None:
                known = self._told[seq] = [(0, 0)] * len(groups)
                table.told = [0] * len(groups)
            for group in groups:
                ids, kept = table.ids[group], table.told[group]
                now = (table.first[group], len(ids))
                if now != known[group] or kept != now[1]:
                    known[group] = now
                    table.told[group] = now[1]
                    yield TableRows(seq, group, now[0], kept, array("i", ids[kept:]).tobytes())

    def _chain(self, block: Block) -> tuple[int, ...] | None:
        """Return the text up to a block's end; None: a part of it is not in memory any more."""
        pieces = [block.tokens]
        while block.depth:
            before = self._device.block_of(block.group, block.parent)
            if before is None or before.depth != block.depth - 1:
                return None
            pieces.append(before.tokens)
            block = before
        return tuple(_tokens(b"".join(reversed(pieces))))


def _counted(values: list[int]) -> bytes:
    """Write numbers as uint16; greater ones as the greatest."""
    if max(values, default=0) > MOST_COUNTED:
        values = [min(value, MOST_COUNTED) for value in values]
    return array("H", values).tobytes()


def _tokens(text: bytes) -> Iterator[int]:
    """Read tokens as blocks hold them: int32, little-endian."""
    for start in range(0, len(text), TOKEN_BYTES):
        yield int.from_bytes(text[start : start + TOKEN_BYTES], "little", signed=True)
