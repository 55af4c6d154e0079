"""The reference backend: plain torch on any device, bits that do not depend on the batch."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from octavo.attention.backend import GroupInputs, StepInputs
from octavo.contract.layout import KVGroup
from octavo.kernels.reference import KEY_TILE, QUERY_TILE
from octavo.kernels.tiled import TilePass, attend_pass, exact_heights
from octavo.pages.arena import Arena
from octavo.pages.plane import Steps

Ints = NDArray[np.int64]

PAIRS_PER_PASS = 128
"""Bound of the memory that one pass copies keys and values into."""

PRODUCTS_PER_CALL = 64
"""On other devices than a CPU, whose libraries choose their code by the number of products."""


class ReferenceAttention:
    """Attention of `kernels.reference`, all slices of a step together.

    num_heads: query heads of the model, the same in every layer.
    """

    def __init__(self, arena: Arena, *, num_heads: int) -> None:
        groups = arena.layout.groups
        self._arena = arena
        self._per_call = 0 if arena.device.type == "cpu" else PRODUCTS_PER_CALL
        self._heights = tuple(
            exact_heights(
                group=num_heads // group.kv_heads,
                head_dim=group.head_dim,
                device=arena.device,
                per_call=self._per_call,
            )
            for group in groups
        )
        self._home = {
            layer: (number, index)
            for number, group in enumerate(groups)
            for index, layer in enumerate(group.layers)
        }
        self._inputs: StepInputs | None = None
        self._passes: tuple[list[TilePass], ...] = ()

    @property
    def batch_invariant(self) -> bool:
        """True if this machine's products of fixed shape passed the check at start."""
        return all(self._heights)

    @property
    def reads(self) -> frozenset[str] | None:
        """None: every codec, since vectors are decoded once they are gathered."""
        return None

    def plan(self, inputs: StepInputs) -> None:
        """Cut the step into tiles and pairs, once for all layers."""
        self._inputs = inputs
        self._passes = tuple(
            self._plan_group(inputs, number, heights or (QUERY_TILE,))
            for number, heights in enumerate(self._heights)
        )

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values of all rows of the step."""
        assert self._inputs is not None, "write before plan"
        number, index = self._home[layer]
        where = self._inputs.groups[number]
        self._arena.keys(number, index).write(where.blocks, where.offsets, k)
        self._arena.values(number, index).write(where.blocks, where.offsets, v)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attend with all rows of the step."""
        number, index = self._home[layer]
        keys = self._arena.keys(number, index).read_items
        values = self._arena.values(number, index).read_items
        out = torch.empty_like(q)
        for tiles in self._passes[number]:
            attend_pass(q, keys, values, tiles, out, per_call=self._per_call)
        return out

    def _plan_group(
        self, inputs: StepInputs, number: int, heights: tuple[int, ...]
    ) -> list[TilePass]:
        where, group = inputs.groups[number], self._arena.layout.groups[number]
        steps = self._arena.keys(number, 0).steps, self._arena.values(number, 0).steps
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
            tiles = _Tiles(
                slices,
                starts[slices],
                lengths[slices],
                rows[slices],
                height=height,
                window=group.window,
            )
            for chosen in _within_budget(tiles.key_tiles):
                passes.append(_tile_pass(tiles, chosen, where, group, steps))
        return passes


class _Tiles:
    """The query tiles of slices that share one height, those with most key tiles first."""

    def __init__(
        self,
        slices: Ints,
        starts: Ints,
        lengths: Ints,
        rows: Ints,
        *,
        height: int,
        window: int | None,
    ) -> None:
        counts = -(-lengths // height)
        owner = np.repeat(np.arange(len(slices)), counts)
        number = np.arange(len(owner)) - np.repeat(np.cumsum(counts) - counts, counts)
        first = number * height
        filled = np.minimum(lengths[owner] - first, height)
        positions = starts[owner] + first
        seen = np.zeros_like(positions) if window is None else positions - (window - 1)
        seen = np.maximum(seen, 0)
        key_tiles = (positions + filled - 1) // KEY_TILE - seen // KEY_TILE + 1
        order = np.argsort(-key_tiles, kind="stable")
        self.height = height
        self.slices = slices[owner][order]
        self.positions = positions[order]
        self.rows = (rows[owner] + first)[order]
        self.filled = filled[order]
        self.seen = seen[order]
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


def _tile_pass(
    tiles: _Tiles, chosen: slice, where: GroupInputs, group: KVGroup, steps: tuple[Steps, Steps]
) -> TilePass:
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
    seen = tiles.seen[chosen][pair_tile][:, None]
    key_positions = (seen // KEY_TILE + pair_round[:, None]) * KEY_TILE + np.arange(KEY_TILE)
    behind = query_positions[pair_tile][:, :, None] - key_positions[:, None, :]
    hidden = behind < 0
    if group.window is not None:
        hidden |= behind >= group.window
    real = inside < filled[:, None]

    def put(values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(values)).to(device)

    # Garbage times zero may be NaN: keys not yet written, or behind the window of all queries of
    # the tile, are replaced by one that is there.
    live = np.clip(key_positions, seen, query_positions[pair_tile, -1][:, None])
    places = put(live), put(tiles.slices[chosen][pair_tile])
    key_rows = _rows(*places, where, group, steps[0])
    value_rows = key_rows if steps[0] == steps[1] else _rows(*places, where, group, steps[1])
    return TilePass(
        height=height,
        query_rows=put((tiles.rows[chosen][:, None] + clamped).ravel()),
        rounds=rounds,
        pair_tile=put(pair_tile),
        key_rows=key_rows,
        value_rows=value_rows,
        hidden=put(hidden),
        source=put(np.flatnonzero(real.ravel())),
        target=put((tiles.rows[chosen][:, None] + np.arange(height))[real]),
    )


def _rows(
    positions: Tensor, slices: Tensor, where: GroupInputs, group: KVGroup, steps: Steps
) -> Tensor:
    """Find where vectors begin: positions [pairs, KEY_TILE] → [pairs * kv_heads * KEY_TILE]."""
    size = group.block_size
    blocks = where.tables[where.table_starts[slices][:, None] + positions // size]
    tokens = blocks * steps[0] + positions % size * steps[1]
    heads = torch.arange(group.kv_heads, device=positions.device) * steps[2]
    return (tokens[:, None, :] + heads[None, :, None]).reshape(-1)
