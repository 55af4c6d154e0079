"""The reference backend: plain torch on any device, bits that do not depend on the batch."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.attention.backend import GroupInputs, StepInputs
from octavo.contract.layout import KVGroup
from octavo.kernels.reference import KEY_TILE, QUERY_TILE, write_kv
from octavo.kernels.tiled import TilePass, attend_pass, exact_heights
from octavo.pages.arena import Arena

Ints = NDArray[np.int64]

PAIRS_PER_PASS = 128
"""Bound of the memory that one pass copies keys and values into."""


class ReferenceAttention:
    """Attention of `kernels.reference`, all slices of a step together.

    num_heads: query heads of the model, the same in every layer.
    """

    def __init__(self, arena: Arena, *, num_heads: int) -> None:
        groups = arena.layout.groups
        self._arena = arena
        self._heights = tuple(
            exact_heights(
                group=num_heads // group.kv_heads, head_dim=group.head_dim, device=arena.device
            )
            for group in groups
        )
        self._home = {
            layer: (number, index)
            for number, group in enumerate(groups)
            for index, layer in enumerate(group.layers)
        }
        self._rows = tuple(
            arena.blocks(number).view(-1, group.head_dim) for number, group in enumerate(groups)
        )
        self._inputs: StepInputs | None = None
        self._passes: tuple[list[TilePass], ...] = ()

    @property
    def batch_invariant(self) -> bool:
        """True if this machine's products of fixed shape passed the check at start."""
        return all(self._heights)

    def plan(self, inputs: StepInputs) -> None:
        """Cut the step into tiles and pairs, once for all layers."""
        self._inputs = inputs
        self._passes = tuple(
            self._plan_group(inputs, where, group, heights or (QUERY_TILE,))
            for where, group, heights in zip(
                inputs.groups, self._arena.layout.groups, self._heights, strict=True
            )
        )

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values of all rows of the step."""
        assert self._inputs is not None, "write before plan"
        number, index = self._home[layer]
        where = self._inputs.groups[number]
        write_kv(self._arena.pages(number, index), where.blocks, where.offsets, k, v)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attend with all rows of the step."""
        number, index = self._home[layer]
        group = self._arena.layout.groups[number]
        plane = group.block_size * group.kv_heads
        keys = self._rows[number][2 * index * plane :]
        values = self._rows[number][(2 * index + 1) * plane :]
        out = torch.empty_like(q)
        for tiles in self._passes[number]:
            attend_pass(q, keys, values, tiles, out)
        return out

    def _plan_group(
        self, inputs: StepInputs, where: GroupInputs, group: KVGroup, heights: tuple[int, ...]
    ) -> list[TilePass]:
        starts = np.array(inputs.starts, dtype=np.int64)
        lengths = np.array(inputs.lengths, dtype=np.int64)
        rows = np.cumsum(lengths) - lengths
        by_height: dict[int, list[int]] = defaultdict(list)
        for number, length in enumerate(inputs.lengths):
            fitting = (height for height in heights if height >= length)
            by_height[next(fitting, heights[-1])].append(number)
        passes: list[TilePass] = []
        for height, numbers in by_height.items():
            slices = np.array(numbers, dtype=np.int64)
            tiles = _Tiles(slices, starts[slices], lengths[slices], rows[slices], height=height)
            for chosen in _within_budget(tiles.key_tiles):
                passes.append(_tile_pass(tiles, chosen, where, group))
        return passes


class _Tiles:
    """The query tiles of slices that share one height, longest text first."""

    def __init__(
        self, slices: Ints, starts: Ints, lengths: Ints, rows: Ints, *, height: int
    ) -> None:
        counts = -(-lengths // height)
        owner = np.repeat(np.arange(len(slices)), counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = number * height
        filled = np.minimum(lengths[owner] - first, height)
        key_tiles = (starts[owner] + first + filled - 1) // KEY_TILE + 1
        order = np.argsort(-key_tiles, kind="stable")
        self.height = height
        self.slices = slices[owner][order]
        self.positions = (starts[owner] + first)[order]
        self.rows = (rows[owner] + first)[order]
        self.filled = filled[order]
        self.key_tiles = key_tiles[order]


def _within_budget(key_tiles: Ints) -> list[slice]:
    """Cut tiles into runs of at most `PAIRS_PER_PASS` pairs, at least one tile each."""
    runs: list[slice] = []
    begin, pairs = 0, 0
    for tile, count in enumerate(key_tiles.tolist()):
        if pairs and pairs + count > PAIRS_PER_PASS:
            runs.append(slice(begin, tile))
            begin, pairs = tile, 0
        pairs += count
    runs.append(slice(begin, len(key_tiles)))
    return runs


def _tile_pass(tiles: _Tiles, chosen: slice, where: GroupInputs, group: KVGroup) -> TilePass:
    device = where.tables.device
    height, filled = tiles.height, tiles.filled[chosen]
    inside = np.arange(height)
    clamped = np.minimum(inside, filled[:, None] - 1)
    rounds = tuple(
        int(np.count_nonzero(tiles.key_tiles[chosen] > number))
        for number in range(int(tiles.key_tiles[chosen][0]))
    )
    pair_tile = np.concatenate([np.arange(tiles_in_round) for tiles_in_round in rounds])
    pair_round = np.repeat(np.arange(len(rounds)), rounds)
    query_positions = tiles.positions[chosen][:, None] + clamped
    key_positions = pair_round[:, None] * KEY_TILE + np.arange(KEY_TILE)
    hidden = key_positions[:, None, :] > query_positions[pair_tile][:, :, None]
    real = inside < filled[:, None]

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    # Garbage times zero may be NaN: keys not yet written are replaced by one that is.
    written = np.minimum(key_positions, query_positions[pair_tile, -1][:, None])
    return TilePass(
        height=height,
        query_rows=put((tiles.rows[chosen][:, None] + clamped).ravel()),
        rounds=rounds,
        pair_tile=put(pair_tile),
        key_rows=_key_rows(put(written), put(tiles.slices[chosen][pair_tile]), where, group),
        hidden=put(hidden),
        source=put(np.flatnonzero(real.ravel())),
        target=put((tiles.rows[chosen][:, None] + np.arange(height))[real]),
    )


def _key_rows(positions: Tensor, slices: Tensor, where: GroupInputs, group: KVGroup) -> Tensor:
    """Find the rows of keys: positions [pairs, KEY_TILE] → [pairs * kv_heads * KEY_TILE]."""
    size, heads = group.block_size, group.kv_heads
    blocks = where.tables[where.table_starts[slices][:, None] + positions // size]
    tokens = blocks * (group.pages_per_block * 2 * size) + positions % size
    each = torch.arange(heads, device=positions.device)
    return (tokens[:, None, :] * heads + each[None, :, None]).reshape(-1)
