"""The reference arithmetic for many slices at once: same tiles, same bits, few torch calls.

Every (query tile, key tile) pair is one product of a fixed shape; a batch of pairs is one call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.kernels.reference import KEY_TILE, QUERY_TILE


@dataclass(frozen=True, slots=True)
class TilePass:
    """Query tiles that are computed together, longest text first, with all their key tiles.

    Pairs are listed round by round: round r holds key tile r of every query tile that has one.
    As tiles are sorted, those are the first `rounds[r]` tiles, so that merging needs no index.
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
    """[pairs * kv_heads * KEY_TILE] row of the pages for each key; padding repeats a written one.

    A row is one head of one token in plane 0 of layer 0 of its block.
    """
    hidden: Tensor
    """[pairs, height, KEY_TILE] bool: the key comes after the query."""
    source: Tensor
    """[filled] where the real queries lie among `tiles * height`."""
    target: Tensor
    """[filled] the row of the output that each of them is."""


def attend_pass(q: Tensor, keys: Tensor, values: Tensor, tiles: TilePass, out: Tensor) -> None:
    """Attend with the queries of one pass and write their rows of `out`.

    q, out: [tokens, heads, head_dim]; keys, values: [rows, head_dim], the pages of one layer seen
    as rows that `tiles.key_rows` indexes; kv_heads = len(key_rows) / (pairs * KEY_TILE).
    Every row named by `key_rows` must have been written. Arithmetic: `kernels.reference`.
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
    tile_keys = keys.index_select(0, tiles.key_rows).float().view(-1, KEY_TILE, head_dim)
    scores = torch.bmm(queries, tile_keys.transpose(1, 2))
    scores.view(pairs, kv_heads, height, group, KEY_TILE).masked_fill_(
        tiles.hidden[:, None, :, None, :], float("-inf")
    )

    scores = scores.view(pairs, kv_heads, height * group, KEY_TILE)
    largest = _merge(scores.amax(dim=-1, keepdim=True), tiles.rounds, maximum=True)
    weights = scores.sub_(largest.index_select(0, tiles.pair_tile)).exp_()
    total = _merge(weights.sum(dim=-1, keepdim=True), tiles.rounds, maximum=False)
    tile_values = values.index_select(0, tiles.key_rows).float().view(-1, KEY_TILE, head_dim)
    products = torch.bmm(weights.view(wide), tile_values)
    merged = _merge(products.view(pairs, kv_heads, -1, head_dim), tiles.rounds, maximum=False)

    result = merged.div_(total).view(count, kv_heads, height, group * head_dim).transpose(1, 2)
    result = result.reshape(count * height, heads, head_dim)
    out.index_copy_(0, tiles.target, result.index_select(0, tiles.source).to(out.dtype))


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
    *, group: int, head_dim: int, device: torch.device, candidates: tuple[int, ...] = (1, 2, 4, 8)
) -> tuple[int, ...]:
    """Find which lower query tiles give the same bits as `QUERY_TILE` on this machine.

    Matrix libraries choose their code by shape, so this is tried, with products of the shapes
    that attention uses. Returns heights in ascending order; the last is `QUERY_TILE`. Empty: even
    at that height a row's bits depend on the place of the row or on the number of products.
    """
    batch = 24
    source = torch.Generator().manual_seed(0)
    left = torch.randn(batch, QUERY_TILE, group, max(head_dim, KEY_TILE), generator=source)
    left = left.to(device)
    right = torch.randn(batch, KEY_TILE, head_dim, generator=source).to(device)
    operands = (
        (left[..., :head_dim], right.transpose(1, 2)),
        (left[..., :KEY_TILE].abs(), right),
    )
    shuffle = torch.randperm(QUERY_TILE, generator=source).to(device)

    def same(height: int) -> bool:
        for a, b in operands:
            full = torch.bmm(a.flatten(1, 2), b).view(batch, QUERY_TILE, group, -1)
            moved = torch.bmm(a[:, shuffle].flatten(1, 2), b).view(full.shape)
            if not torch.equal(moved, full[:, shuffle]):
                return False
            for products in (1, 2, 5, batch):
                for first in range(0, QUERY_TILE, height):
                    part = a[:products, first : first + height]
                    got = torch.bmm(part.flatten(1, 2), b[:products]).view(*part.shape[:3], -1)
                    if not torch.equal(got, full[:products, first : first + height]):
                        return False
        return True

    if not same(QUERY_TILE):
        return ()
    return (*(height for height in candidates if same(height)), QUERY_TILE)
