"""The reference arithmetic for many slices at once: same tiles, same bits, few torch calls.

Every (query tile, key tile) pair is one product of a fixed shape; a batch of pairs is one call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.kernels.reference import KEY_TILE, QUERY_TILE

Read: TypeAlias = Callable[[Tensor], Tensor]
"""Reads the vectors of one layer by their rows: [rows] → [rows, head_dim] float32."""


@dataclass(frozen=True, slots=True)
class TilePass:
    """Query tiles that are computed together, longest text first, with all their key tiles.

    Pairs are listed round by round: round r holds the key tile r of every query tile that has so
    many, counted from the first one that it sees. As tiles are sorted by their number, those are
    the first `rounds[r]` tiles, so that merging needs no index.
    """

    height: int
    """Queries per tile."""
    query_rows: Tensor
    """[tiles * height] row of each query; padding repeats a row."""
    rounds: tuple[int, ...]
    """Tiles that take part in each round, never growing."""
    pair_tile: Tensor
    """[pairs] the query tile of each pair."""
    key_rows: Tensor
    """[pairs * kv_heads * KEY_TILE] row of each key, as `Read` counts them.

    A key that no query of the tile sees is replaced by one that they see.
    """
    value_rows: Tensor
    """[pairs * kv_heads * KEY_TILE] row of each value."""
    hidden: Tensor
    """[pairs, height, KEY_TILE] bool: the key comes after the query, or lies behind its window."""
    source: Tensor
    """[filled] where the real queries lie among `tiles * height`."""
    target: Tensor
    """[filled] the row of the output that each of them is."""


def attend_pass(
    q: Tensor, keys: Read, values: Read, tiles: TilePass, out: Tensor, *, per_call: int = 0
) -> None:
    """Attend with the queries of one pass and write their rows of `out`.

    q, out: [tokens, heads, head_dim]; kv_heads = len(key_rows) / (pairs * KEY_TILE). Every row
    named by `key_rows` and `value_rows` must have been written. per_call: see `exact_heights`.
    Arithmetic: `kernels.reference`.
    """
    _, heads, head_dim = q.shape
    pairs = tiles.pair_tile.shape[0]
    count, height = tiles.rounds[0], tiles.height
    kv_heads = tiles.key_rows.shape[0] // (pairs * KEY_TILE)
    group = heads // kv_heads
    wide = (pairs * kv_heads, height * group, -1)

    queries = q.index_select(0, tiles.query_rows).float().mul_(head_dim**-0.5)
    queries = queries.view(count, height, kv_heads, group * head_dim).transpose(1, 2)
    queries = queries.index_select(0, tiles.pair_tile).view(wide)
    tile_keys = keys(tiles.key_rows).view(-1, KEY_TILE, head_dim)
    scores = _products(queries, tile_keys, per_call, transposed=True)
    scores.view(pairs, kv_heads, height, group, KEY_TILE).masked_fill_(
        tiles.hidden[:, None, :, None, :], float("-inf")
    )

    scores = scores.view(pairs, kv_heads, height * group, KEY_TILE)
    largest = _merge(scores.amax(dim=-1, keepdim=True), tiles.rounds, maximum=True)
    weights = scores.sub_(largest.index_select(0, tiles.pair_tile)).exp_()
    total = _merge(weights.sum(dim=-1, keepdim=True), tiles.rounds, maximum=False)
    tile_values = values(tiles.value_rows).view(-1, KEY_TILE, head_dim)
    products = _products(weights.view(wide), tile_values, per_call)
    merged = _merge(products.view(pairs, kv_heads, -1, head_dim), tiles.rounds, maximum=False)

    result = merged.div_(total).view(count, kv_heads, height, group * head_dim).transpose(1, 2)
    result = result.reshape(count * height, heads, head_dim)
    out.index_copy_(0, tiles.target, result.index_select(0, tiles.source).to(out.dtype))


def _products(a: Tensor, b: Tensor, per_call: int, *, transposed: bool = False) -> Tensor:
    """Multiply many pairs of matrices, `per_call` in each call; 0: all at once."""
    count = len(a)
    if not per_call:
        return torch.bmm(a, b.transpose(1, 2) if transposed else b)
    missing = -count % per_call
    parts = [F.pad(x, (0, 0, 0, 0, 0, missing)).split(per_call) for x in (a, b)]
    calls = [
        torch.bmm(left, right.transpose(1, 2) if transposed else right)
        for left, right in zip(*parts, strict=True)
    ]
    return (calls[0] if len(calls) == 1 else torch.cat(calls))[:count]


def _merge(parts: Tensor, rounds: tuple[int, ...], *, maximum: bool) -> Tensor:
    """Fold the pairs' results into one per tile, in ascending order of key tiles."""
    # Adding zero turns a negative zero into a positive one, as adding a hidden tile would.
    merged = parts[: rounds[0]] + 0.0
    first = rounds[0]
    for tiles in rounds[1:]:
        part, head = parts[first : first + tiles], merged[:tiles]
        if maximum:
            torch.maximum(head, part, out=head)
        else:
            head.add_(part)
        first += tiles
    return merged


def exact_heights(
    *,
    group: int,
    head_dim: int,
    device: torch.device,
    per_call: int = 0,
    candidates: tuple[int, ...] = (1, 2, 4, 8),
) -> tuple[int, ...]:
    """Find which lower query tiles give the same bits as `QUERY_TILE` on this machine.

    Matrix libraries choose their code by shape, so this is tried, with products of the shapes
    that attention uses. per_call: products in one call, the last call filled up; 0: all in one,
    for a library whose choice does not depend on their number. Returns heights in ascending
    order; the last is `QUERY_TILE`. Empty: even at that height a row's bits depend on the place
    of the row or on the number of products.
    """
    batch = 24
    source = torch.Generator().manual_seed(0)
    left = torch.randn(batch, QUERY_TILE, group, max(head_dim, KEY_TILE), generator=source)
    left = left.to(device)
    right = torch.randn(batch, KEY_TILE, head_dim, generator=source).to(device)
    weights = left[..., :KEY_TILE].abs()
    shuffle = torch.randperm(QUERY_TILE, generator=source).to(device)

    def scored(rows: Tensor, first: int) -> Tensor:
        b = right[first : first + len(rows)]
        flat = rows[..., :head_dim].flatten(1, 2)
        return _products(flat, b, per_call, transposed=True).view(*rows.shape[:3], -1)

    def summed(rows: Tensor, first: int) -> Tensor:
        flat, b = rows.flatten(1, 2), right[first : first + len(rows)]
        parts = _products(flat, b, per_call), flat.sum(dim=-1, keepdim=True)
        return torch.cat(parts, dim=-1).view(*rows.shape[:3], -1)

    def same(height: int) -> bool:
        for compute, rows in ((scored, left), (summed, weights)):
            full = compute(rows, 0)
            if not torch.equal(compute(rows[:, shuffle], 0), full[:, shuffle]):
                return False
            for products in (1, 2, 5, batch):
                for first, place in product((0, batch - products), range(0, QUERY_TILE, height)):
                    some = slice(first, first + products), slice(place, place + height)
                    if not torch.equal(compute(rows[some], first), full[some]):
                        return False
        return True

    if not same(QUERY_TILE):
        return ()
    return (*(height for height in candidates if same(height)), QUERY_TILE)
