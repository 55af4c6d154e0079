"""From a step's arrays to the pieces of work of a GPU, and to tensors there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from torch import Tensor

from octavo.attention.paged import PagedGroup, PagedStep
from octavo.attention.schedule import (
    LEAST_CHUNK,
    Cut,
    HostGroup,
    Ints,
    Runs,
    schedule_entries,
    schedule_exact,
    schedule_tiles,
)
from octavo.contract.layout import KVLayout
from octavo.kernels.triton.decode import Entries, Shape
from octavo.kernels.triton.exact import CHUNK, ExactTiles, exact_queries
from octavo.kernels.triton.prefill import QueryTiles, queries_per_tile
from octavo.runner.inputs import StepArrays
from octavo.runner.staging import Places

_ROW_FIELDS = ("blocks", "offsets")
_ENTRY_FIELDS = ("rows", "table_starts", "lengths", "first_part")


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """What the steps of one graph have room for; they are filled up to it."""

    rows: int
    entries: int
    samples: int
    tiles: int = 0
    """0: a step of decoding, in which every row is an entry and is sampled."""


class Kind(NamedTuple):
    """What the single queries of a step need besides attention to chunks of their own."""

    shared: bool
    """Chunks are read once for several texts."""
    parted: bool
    """Chunks of one text are merged."""


@dataclass(frozen=True, slots=True)
class HostStep:
    """One step, cut into pieces of work, on the host."""

    arrays: StepArrays
    groups: tuple[HostGroup, ...]

    @property
    def single(self) -> bool:
        """True if every slice is one token whose logits are wanted: a step of decoding.

        And they are wanted in the order of the slices: of a prompt that is embedded, states are
        wanted too, but after all that are sampled.
        """
        rows, wanted = len(self.arrays.tokens), self.arrays.sample_rows
        return rows == len(self.arrays.lengths) == len(wanted) and bool(
            (wanted == np.arange(rows)).all()
        )

    def fits(self, frame: Frame) -> bool:
        """Tell whether a step that has no more rows than a frame fits in it."""
        if frame.tiles == 0:
            return self.single
        return len(self.arrays.sample_rows) <= frame.samples and all(
            (group.entries is None or len(group.entries.rows) <= frame.entries)
            and (group.tiles is None or len(group.tiles) <= frame.tiles)
            and (group.exact is None or len(group.exact.tiles) <= frame.entries + frame.tiles)
            for group in self.groups
        )

    @property
    def kind(self) -> Kind:
        """Which kernels its single queries need."""
        entries = [group.entries for group in self.groups if group.entries is not None]
        return Kind(
            shared=any(len(one.shared) > 0 for one in entries),
            parted=any(one.parted for one in entries),
        )


class StepCutter:
    """Cuts steps for one layout.

    exact: so that no bit of a text depends on others, on chunks of its prompt, or on what is found
    in memory.
    """

    def __init__(
        self,
        layout: KVLayout,
        shapes: tuple[Shape, ...],
        *,
        most_parts: int,
        exact: bool = False,
    ) -> None:
        self._shapes = shapes
        self._most_parts = most_parts
        self._exact = exact
        self._cuts = tuple(
            Cut(
                block_size=group.block_size,
                window=group.window,
                kv_heads=group.kv_heads,
                programs=shape.programs,
                most_parts=most_parts,
                members=shape.shared_members,
            )
            for group, shape in zip(layout.groups, shapes, strict=True)
        )

    def cut(self, arrays: StepArrays) -> HostStep:
        """Cut a step: slices of one token into chunks of keys, longer ones into query tiles."""
        if self._exact:
            return self._cut_exactly(arrays)
        lengths = np.array(arrays.lengths, dtype=np.int64)
        starts = np.array(arrays.starts, dtype=np.int64)
        rows = np.cumsum(lengths) - lengths
        single, longer = np.flatnonzero(lengths == 1), np.flatnonzero(lengths > 1)
        groups: list[HostGroup] = []
        for group, cut, shape in zip(arrays.groups, self._cuts, self._shapes, strict=True):
            entries = runs = tiles = None
            if len(single):
                table_starts, keys = group.table_starts[single], starts[single] + 1
                entries = schedule_entries(rows[single], table_starts, keys, group.tables, cut)
            if len(longer):
                table_starts = group.table_starts[longer]
                runs = Runs(rows[longer], lengths[longer], starts[longer], table_starts)
                tiles = schedule_tiles(runs, queries_per_tile(shape))
            groups.append(
                HostGroup(group.tables, group.blocks, group.offsets, entries, runs, tiles)
            )
        return HostStep(arrays, tuple(groups))

    def _cut_exactly(self, arrays: StepArrays) -> HostStep:
        lengths = np.array(arrays.lengths, dtype=np.int64)
        starts = np.array(arrays.starts, dtype=np.int64)
        rows = np.cumsum(lengths) - lengths
        groups: list[HostGroup] = []
        for group, shape in zip(arrays.groups, self._shapes, strict=True):
            exact = schedule_exact(
                Runs(rows, lengths, starts, group.table_starts),
                per_tile=exact_queries(shape),
                chunk=CHUNK,
                window=shape.window,
                most_parts=self._most_parts,
            )
            where = group.tables, group.blocks, group.offsets
            groups.append(HostGroup(*where, None, None, None, exact))
        return HostStep(arrays, tuple(groups))


def arrays_of(step: HostStep) -> dict[str, Ints]:
    """Name all arrays of a step, in the order in which they are best laid out."""
    plain = step.arrays
    found = {
        "tokens": plain.tokens,
        "positions": plain.positions,
        "sample_rows": plain.sample_rows,
    }
    for number, group in enumerate(step.groups):
        found |= {f"{name}{number}": getattr(group, name) for name in _ROW_FIELDS}
        if group.entries is not None:
            entries = group.entries
            found |= {f"{name}{number}": getattr(entries, name) for name in _ENTRY_FIELDS}
            counts = len(entries.items), len(entries.shared), entries.chunk, len(entries.merged)
            found[f"counts{number}"] = np.array(counts)
            found[f"merged{number}"] = entries.merged
            found[f"members{number}"] = entries.members
            found[f"shared{number}"] = entries.shared
            found[f"items{number}"] = entries.items
        if group.tiles is not None:
            found[f"tiles{number}"] = group.tiles
        if group.exact is not None:
            found[f"exact_counts{number}"] = np.array([len(group.exact.items)])
            found[f"exact_tiles{number}"] = group.exact.tiles
            found[f"exact_items{number}"] = group.exact.items
        found[f"tables{number}"] = group.tables
    return found


def fill(step: HostStep, frame: Frame) -> dict[str, Ints]:
    """Name the arrays of a step, filled up with what computes nothing and keeps nothing.

    That is: rows of position 0 without a block, entries without a key, tiles without a query.
    """
    found = arrays_of(step)
    rows = frame.rows - len(step.arrays.tokens)
    for name in ("tokens", "positions"):
        found[name] = _longer(found[name], rows)
    found["sample_rows"] = _longer(found["sample_rows"], frame.samples - len(found["sample_rows"]))
    for number, group in enumerate(step.groups):
        found[f"blocks{number}"] = _longer(group.blocks, rows, -1)
        found[f"offsets{number}"] = _longer(group.offsets, rows)
        if group.exact is not None:
            continue
        if group.entries is None:
            found[f"counts{number}"] = np.array([0, 0, LEAST_CHUNK, 0])
        if frame.tiles:
            tiles = np.empty(0, np.int64) if group.tiles is None else group.tiles.reshape(-1)
            found[f"tiles{number}"] = _longer(tiles, 4 * frame.tiles - len(tiles))
    return found


def _longer(values: Ints, missing: int, padding: int = 0) -> Ints:
    return values if not missing else np.concatenate((values, np.full(missing, padding)))


def frame_places(
    frames: tuple[Frame, ...], shapes: tuple[Shape, ...], *, parts: int, blocks: tuple[int, ...],
    exact: bool,
) -> Places:  # fmt: skip
    """Lay out the steps of all frames, so that an array always lies at the same place.

    shapes: one per KV group. blocks: of all tables of a step, per KV group. exact: steps are cut so
    that no bit depends on others.
    """
    rows = max(frame.rows for frame in frames)
    entries = max(frame.entries for frame in frames)
    tiles = max(frame.tiles for frame in frames)
    samples = max(frame.samples for frame in frames)
    rooms = {"tokens": rows, "positions": rows, "sample_rows": samples}
    for number, shape in enumerate(shapes):
        rooms |= {f"{name}{number}": rows for name in _ROW_FIELDS}
        if exact:
            pieces = entries + tiles
            rooms |= {f"exact_counts{number}": 1, f"exact_tiles{number}": 5 * pieces}
            rooms[f"exact_items{number}"] = 2 * (parts + pieces)
            continue
        rooms |= {f"{name}{number}": entries for name in _ENTRY_FIELDS}
        rooms |= {f"counts{number}": 4, f"tiles{number}": 4 * tiles}
        rooms |= {f"members{number}": entries, f"merged{number}": entries}
        # Each shared item stands for many parts; in the last turn some teams may have no item.
        rooms |= {f"shared{number}": parts, f"items{number}": 5 * (parts + shape.teams)}
    for number, most in enumerate(blocks):
        rooms[f"tables{number}"] = most
    return Places.of(rooms)


def paged_step(
    views: dict[str, Tensor], groups: int, kind: Kind, frame: Frame | None = None
) -> PagedStep:
    """Put the views of a step together; frame: whose places they are, if they are fixed."""

    def rows(name: str) -> Tensor:
        return views[name] if frame is None else views[name][: frame.rows]

    def entries(number: int) -> Entries:
        def each(name: str) -> Tensor:
            field = views[f"{name}{number}"]
            return field if frame is None else field[: frame.entries]

        return Entries(
            rows=each("rows"),
            tables=views[f"tables{number}"],
            table_starts=each("table_starts"),
            lengths=each("lengths"),
            first_part=each("first_part"),
            items=views[f"items{number}"].view(-1, 5),
            shared=views[f"shared{number}"].view(-1, 4),
            members=views[f"members{number}"],
            merged=views[f"merged{number}"],
            counts=views[f"counts{number}"],
        )

    def tiles(number: int) -> QueryTiles | None:
        if f"tiles{number}" not in views or (frame is not None and not frame.tiles):
            return None
        tiles = views[f"tiles{number}"].view(-1, 4)
        return QueryTiles(
            views[f"tables{number}"], tiles if frame is None else tiles[: frame.tiles]
        )

    def exact(number: int) -> ExactTiles | None:
        if f"exact_counts{number}" not in views:
            return None
        return ExactTiles(
            views[f"tables{number}"],
            views[f"exact_tiles{number}"].view(-1, 5),
            views[f"exact_items{number}"].view(-1, 2),
            views[f"exact_counts{number}"],
        )

    def group(number: int) -> PagedGroup:
        return PagedGroup(
            blocks=rows(f"blocks{number}"),
            offsets=rows(f"offsets{number}"),
            entries=entries(number) if f"rows{number}" in views else None,
            tiles=tiles(number),
            shared=kind.shared,
            parted=kind.parted,
            exact=exact(number),
        )

    sample_rows = views["sample_rows"]
    if frame is not None:
        sample_rows = sample_rows[: frame.samples] if frame.tiles else None
    return PagedStep(
        rows("tokens"),
        rows("positions"),
        tuple(group(number) for number in range(groups)),
        sample_rows,
        captured=frame is not None,
    )
