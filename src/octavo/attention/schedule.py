"""How a step's attention is cut into pieces of work for a GPU: arrays worked out on the host.

Needs numpy only. Positions, rows and places are those of `runner.inputs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

LEAST_CHUNK = 64
"""Keys of a chunk at least: the kernels' tile."""

_ITEM_KEYS = 45
"""What beginning an item costs, in keys that its team could read meanwhile. Measured on an H200,
as are the next three."""

_MERGE_KEYS = 40
"""What it costs to merge parts at all."""

_MERGED_KEYS = 2
"""And for each query that has some."""

_ALONE = 2 / 3
"""How long a team takes for a key where most others are done, as a share of what it takes beside
them: they wait for the same memory."""

SHARING = 4
"""Texts that must begin with the same blocks before reading these once for all is worth it."""

LEAST_SHARED = 256
"""Keys that they must share."""

_SMALLER = 4
"""Programs of single queries that run beside each other where one of shared chunks does."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """How the entries of one KV group are to be cut."""

    block_size: int
    window: int | None
    kv_heads: int
    programs: int
    """That fill the device; those that go through the items are teams of one for each KV head."""
    most_parts: int
    """Room for parts."""
    members: int
    """Entries that one shared item holds."""
    chunk: int | None = None
    """Keys of a chunk; None: as the step needs it, so that bits depend on the step."""
    share: bool = True
    """Read blocks that texts share once."""

    @property
    def teams(self) -> int:
        """Teams that go through the items."""
        return max(1, self.programs // self.kv_heads)


@dataclass(frozen=True, slots=True)
class EntrySchedule:
    """Single queries and their items; the words are those of `kernels.triton.decode.Entries`."""

    rows: Ints
    table_starts: Ints
    lengths: Ints
    first_part: Ints
    items: Ints
    """[items, 5]"""
    shared: Ints
    """[shared items, 4]"""
    members: Ints
    merged: Ints
    chunk: int

    @property
    def parted(self) -> bool:
        """Whether some query has more than one chunk."""
        return len(self.merged) > 0


@dataclass(frozen=True, slots=True)
class Runs:
    """Slices of more than one query; one number of each for each run."""

    first_rows: Ints
    counts: Ints
    """Queries."""
    positions: Ints
    """Of the first query of each."""
    table_starts: Ints


@dataclass(frozen=True, slots=True)
class ExactSchedule:
    """All queries of a step; the words are those of `kernels.triton.exact.ExactTiles`."""

    tiles: Ints
    """[tiles, 5]"""
    items: Ints
    """[items, 2]"""


@dataclass(frozen=True, slots=True)
class HostGroup:
    """One KV group of a step, cut, on the host."""

    tables: Ints
    blocks: Ints
    offsets: Ints
    entries: EntrySchedule | None
    """Slices of one query."""
    runs: Runs | None
    tiles: Ints | None
    """[tiles, 4] the runs, cut; as `kernels.triton.prefill.QueryTiles` has them."""
    exact: ExactSchedule | None = None
    """All slices, cut so that no bit depends on others; then the three before it are None."""


def schedule_entries(
    rows: Ints, table_starts: Ints, lengths: Ints, tables: Ints, cut: Cut
) -> EntrySchedule:
    """Cut the keys of single queries into chunks, and find the chunks that texts share."""
    first_key = np.zeros_like(lengths)
    if cut.window is not None:
        first_key = np.maximum(lengths - cut.window, 0)
    groups = _find_groups(table_starts, lengths, tables, cut)
    if cut.chunk is not None:
        chunk = cut.chunk
    elif groups:
        chunk = _shared_chunk_size(lengths, groups, cut)
    else:
        chunk = _chunk_size(lengths - first_key, cut)
    begin, end = first_key // chunk, -(-lengths // chunk)
    counts = end - begin
    first_part = np.cumsum(counts) - counts - begin
    entry = np.repeat(np.arange(len(rows)), counts)
    number = np.arange(len(entry)) - first_part[entry]
    shared = np.zeros(len(rows), dtype=np.int64)
    for group in groups:
        shared[group.members] = group.keys // chunk
    alone = number >= shared[entry]
    entry, number = entry[alone], number[alone]
    seen = np.maximum(number * chunk, first_key[entry])
    end = np.minimum((number + 1) * chunk, lengths[entry])
    part = np.where(counts[entry] > 1, first_part[entry] + number, -1)
    items = np.stack((rows[entry], table_starts[entry], seen, end, part), axis=1)
    order = _deal(end - seen, cut.teams)[0]
    members, shared_items = _shared_items(groups, table_starts, chunk, cut)
    return EntrySchedule(
        rows=rows,
        table_starts=table_starts,
        lengths=lengths,
        first_part=first_part,
        # The last one is nothing to do.
        items=np.concatenate((items, np.zeros((1, 5), dtype=np.int64)))[order],
        shared=shared_items,
        members=members,
        merged=np.flatnonzero(counts > 1),
        chunk=chunk,
    )


def _chunk_size(keys: Ints, cut: Cut) -> int:
    """Choose the chunk with which all teams are done soonest, and merging is.

    keys: of each query. Looks at sizes around one item for each team.
    """
    total, longest = int(keys.sum()), int(keys.max())
    middle = _with_room(total, len(keys), total // cut.teams, cut)
    best, least = middle, math.inf
    for chunk in (4 * middle, 2 * middle, middle, middle // 2, middle // 4):
        if chunk < LEAST_CHUNK or _parts(total, len(keys), chunk) > cut.most_parts:
            break
        whole, rest = int((keys // chunk).sum()), keys % chunk
        sizes = np.concatenate((np.full(whole, chunk), rest[rest > 0]))
        mean = (total + len(sizes) * _ITEM_KEYS) / cut.teams
        cost = max(mean, _ALONE * _deal(sizes, cut.teams)[1])
        if longest > chunk:
            cost += _MERGE_KEYS + _MERGED_KEYS * int((keys > chunk).sum())
        if cost < least:
            best, least = chunk, cost
    return best


def _deal(sizes: Ints, teams: int) -> tuple[Ints, int]:
    """Deal items of so many keys out to teams, one each in every turn.

    Large ones first, and in each turn the largest to the team that has had least. Returns the
    items turn after turn, -1 where there is none left, and what the busiest team has to do.
    """
    turns = -(-len(sizes) // teams)
    largest_first = np.full(turns * teams, -1)
    largest_first[: len(sizes)] = np.argsort(-sizes, kind="stable")
    costs = np.zeros(turns * teams, dtype=np.int64)
    costs[: len(sizes)] = sizes[largest_first[: len(sizes)]] + _ITEM_KEYS
    load = np.zeros(teams, dtype=np.int64)
    dealt = np.empty_like(largest_first).reshape(turns, teams)
    for turn, (row, cost) in enumerate(
        zip(largest_first.reshape(turns, teams), costs.reshape(turns, teams), strict=True)
    ):
        least_first = np.argsort(load, kind="stable")
        dealt[turn, least_first] = row
        load[least_first] += cost
    return dealt.reshape(-1), int(load.max())


def _with_room(keys: int, queries: int, wanted: int, cut: Cut) -> int:
    """Return the first size from `wanted` on whose parts there is room for."""
    chunk = LEAST_CHUNK
    while chunk < wanted or _parts(keys, queries, chunk) > cut.most_parts:
        chunk *= 2
    return chunk


def _parts(keys: int, queries: int, chunk: int) -> int:
    """Return a bound of the parts that queries have: the first and the last may be smaller."""
    return keys // chunk + 2 * queries


@dataclass(frozen=True, slots=True)
class _Group:
    """Texts that begin with the same blocks."""

    members: Ints
    keys: int
    """That they share."""


def _find_groups(table_starts: Ints, lengths: Ints, tables: Ints, cut: Cut) -> list[_Group]:
    """Find the texts that begin with the same blocks, where reading these once is worth it."""
    if not cut.share or cut.window is not None or len(lengths) < SHARING:
        return []
    heads = tables[table_starts]
    order = np.argsort(heads, kind="stable")
    edges = np.flatnonzero(np.diff(heads[order])) + 1
    if len(edges) > len(lengths) - SHARING:
        return []
    groups: list[_Group] = []
    for members in np.split(order, edges):
        if len(members) < SHARING:
            continue
        # The block that a text is still written to is its own.
        blocks = int(lengths[members].min() - 1) // cut.block_size
        each = tables[table_starts[members][:, None] + np.arange(blocks)]
        same = (each == each[:1]).all(axis=0)
        keys = (blocks if same.all() else int(same.argmin())) * cut.block_size
        if keys >= LEAST_SHARED:
            groups.append(_Group(members, keys))
    return groups


def _shared_chunk_size(lengths: Ints, groups: list[_Group], cut: Cut) -> int:
    """Choose a chunk with which the shared items, whose programs are large, fill the GPU once."""
    tiles = sum(group.keys * -(-len(group.members) // cut.members) for group in groups)
    wanted = tiles * cut.kv_heads * _SMALLER // cut.programs
    chunk = _with_room(int(lengths.sum()), len(lengths), wanted, cut)
    # At least one chunk of the group that shares least has to fit.
    shortest = min(group.keys for group in groups)
    while (
        chunk > shortest and _parts(int(lengths.sum()), len(lengths), chunk // 2) <= cut.most_parts
    ):
        chunk //= 2
    return chunk


def _shared_items(
    groups: list[_Group], table_starts: Ints, chunk: int, cut: Cut
) -> tuple[Ints, Ints]:
    """List the members of all groups, and the items: [items, 4]."""
    members: list[Ints] = []
    items: list[tuple[int, int, int, int]] = []
    placed = 0
    for group in groups:
        chunks = group.keys // chunk
        if not chunks:
            continue
        start, size = int(table_starts[group.members[0]]), len(group.members)
        for first in range(0, size, cut.members):
            count = min(cut.members, size - first)
            items += [(placed + first, count, start, number) for number in range(chunks)]
        members.append(group.members)
        placed += size
    if not members:
        return np.empty(0, dtype=np.int64), np.empty((0, 4), dtype=np.int64)
    return np.concatenate(members), np.array(items, dtype=np.int64)


def schedule_tiles(runs: Runs, per_tile: int) -> Ints:
    """Cut runs into tiles of at most `per_tile` queries, those that see most keys first."""
    tiles = _cut_runs(runs, per_tile)[:, :4]
    return tiles[np.argsort(-tiles[:, 2], kind="stable")]


def schedule_exact(
    runs: Runs, *, per_tile: int, chunk: int, window: int | None, most_parts: int
) -> ExactSchedule:
    """Cut slices of any length into tiles, and the keys of single queries into chunks.

    Whether a text's keys are cut among programs changes no bit: they are if there is room.
    """
    order = np.argsort(runs.counts > 1, kind="stable")  # single queries first
    runs = Runs(*(getattr(runs, name)[order] for name in Runs.__slots__))
    single = int((runs.counts == 1).sum())
    begin = np.zeros(single, dtype=np.int64)
    if window is not None:
        begin = np.maximum(runs.positions[:single] - window + 1, 0) // chunk
    chunks = runs.positions[:single] // chunk + 1 - begin
    cut = (chunks > 1) & (np.cumsum(chunks) <= most_parts)
    parts = np.where(cut, chunks, 0)
    first = np.cumsum(parts) - parts - begin
    tile = np.repeat(np.arange(single), parts)
    numbers = np.arange(len(tile)) - first[tile]
    tiles = _cut_runs(runs, per_tile)
    tiles[:single, 4] = np.where(cut, first, 0)
    whole = np.flatnonzero(np.concatenate((~cut, np.ones(len(tiles) - single, dtype=bool))))
    whole = whole[np.argsort(-tiles[whole, 2], kind="stable")]  # what sees most keys begins first
    items = np.concatenate(
        (
            np.stack((whole, np.full(len(whole), -1)), axis=1),
            np.stack((tile, numbers), axis=1),
        )
    )
    return ExactSchedule(tiles, items)


def _cut_runs(runs: Runs, per_tile: int) -> Ints:
    """Cut runs into tiles, in their order: [tiles, 5], without their parts."""
    tiles = -(-runs.counts // per_tile)
    run = np.repeat(np.arange(len(tiles)), tiles)
    ahead = (np.arange(len(run)) - np.repeat(np.cumsum(tiles) - tiles, tiles)) * per_tile
    filled = np.minimum(runs.counts[run] - ahead, per_tile)
    columns = (
        runs.first_rows[run] + ahead,
        filled,
        runs.positions[run] + ahead,
        runs.table_starts[run],
        np.zeros_like(ahead),
    )
    return np.stack(columns, axis=1)
