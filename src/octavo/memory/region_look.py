"""Shows contiguous regions to whoever watches, as far as they have what blocks have."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
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
from octavo.contract.retention import DEFAULT_TENANT
from octavo.memory.keys import KEY_BYTES

_FREE = -1


class Region(Protocol):
    """A run of blocks."""

    start: BlockId
    blocks: int
    written: int
    """Slots that hold a token, from the front."""


class RegionLook:
    """A `Look` at regions: the baseline's, which may take longer than that at blocks.

    regions: by sequence, as they are at any time.
    """

    def __init__(self, num_blocks: int, block_size: int, regions: Mapping[SeqId, Region]) -> None:
        self.num_blocks = num_blocks
        self.sizes = (block_size,)
        self._regions = regions
        self._before: list[int] = []
        """By block, the tokens in it as they were told, or `_FREE`."""
        self._told: dict[SeqId, BlockId] = {}
        """By sequence, where the region begins that was told of."""

    @property
    def sequences(self) -> int:
        """How many have a region."""
        return len(self._regions)

    def take(self, *, whole: bool) -> MemoryRows:
        """Tell what has changed since the last time, or all of it. O(blocks)."""
        count = self.num_blocks
        now: list[int] = [_FREE] * count
        for region in self._regions.values():
            for block in range(region.start, region.start + region.blocks):
                now[block] = self._filled(region, block)
        whole = whole or not self._before
        before = self._before
        index = range(count) if whole else [i for i in range(count) if now[i] != before[i]]
        self._before = now
        told = {} if whole else self._told
        gone = tuple(told - self._regions.keys())
        fresh = {seq: one for seq, one in self._regions.items() if told.get(seq) != one.start}
        self._told = {seq: one.start for seq, one in self._regions.items()}
        return MemoryRows(
            whole=whole,
            cells=_rows(array("I", index), [now[i] for i in index]),
            tables=tuple(
                [
                    TableRows(
                        seq, 0, 0, 0, array("i", range(one.start, one.start + one.blocks)).tobytes()
                    )
                    for seq, one in fresh.items()
                ]
            ),
            gone=gone,
            tenants=(DEFAULT_TENANT,) if whole else (),
        )

    def end(self) -> None:
        """Nobody looks any more."""
        self._before.clear()
        self._told.clear()

    def lends(self, block: BlockId, step: StepId) -> bool:
        """Regions are not copied."""
        return False

    def place(self, block: BlockId) -> tuple[SeqId, int, int] | None:
        """Return whose region a block is in, group 0, and its place there; None: nobody's."""
        for seq, one in self._regions.items():
            if one.start <= block < one.start + one.blocks:
                return seq, 0, block - one.start
        return None

    def block(self, block: BlockId, *, prefix: bool = False) -> BlockFacts:
        """Tell of one block."""
        place = self.place(block)
        region = None if place is None else self._regions[place[0]]
        return BlockFacts(
            block=block,
            state=CellState.FREE if region is None else CellState.IN_USE,
            group=None if region is None else 0,
            refs=int(region is not None),
            hits=0,
            filled=0 if region is None else self._filled(region, block),
            used_s=0.0,
            tenants=() if region is None else (DEFAULT_TENANT,),
            sequences=() if place is None else (place[0],),
        )

    def _filled(self, region: Region, block: BlockId) -> int:
        (size,) = self.sizes
        left = region.written - (block - region.start) * size
        return min(MOST_COUNTED, max(0, min(size, left)))


def _rows(index: array[int], tokens: list[int]) -> CellRows:
    free, nothing, numbers = CellState.FREE, bytes(2 * len(index)), bytes(4 * len(index))
    keys = bytes(KEY_BYTES * len(index))
    return CellRows(
        index=index.tobytes(),
        state=bytes([free if count == _FREE else CellState.IN_USE for count in tokens]),
        group=bytes([NO_GROUP if count == _FREE else 0 for count in tokens]),
        refs=array("H", [count != _FREE for count in tokens]).tobytes(),
        tokens=array("H", [max(0, count) for count in tokens]).tobytes(),
        hits=nothing,
        used=numbers,
        tenant=nothing,
        keys=keys,
        parents=keys,
        depths=numbers,
    )
