"""Attention over paged KV in plain torch: slow, obviously right, the same bits every time.

The arithmetic, which every exact backend is compared with (all in float32):

1. Keys are walked in tiles of `KEY_TILE` positions, counted from position 0.
2. scores = (q * scale) @ kᵀ per tile; positions after the query's own are -inf.
3. m = the largest score of the query over all tiles.
4. p = exp(scores - m); out = Σ p @ v / Σ p, tile after tile in ascending order, from zero.

Products have fixed shapes, so that a query's bits depend on its own position and keys alone:
not on its neighbours, on how the prompt was cut into chunks, or on where blocks lie.
"""

from __future__ import annotations

import torch
from torch import Tensor

KEY_TILE = 64
"""Positions in one tile of keys."""

QUERY_TILE = 16
"""Queries in one tile, padded by repeating the last one."""


def write_kv(pages: Tensor, blocks: Tensor, offsets: Tensor, k: Tensor, v: Tensor) -> None:
    """Write the keys and values of tokens into their slots.

    pages: [num_blocks, 2, block_size, kv_heads, head_dim], any strides; blocks, offsets: [tokens];
    k, v: [tokens, kv_heads, head_dim], cast to the dtype of the pages.
    """
    pages[blocks, 0, offsets] = k.to(pages.dtype)
    pages[blocks, 1, offsets] = v.to(pages.dtype)


def gather_kv(pages: Tensor, table: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Read the first `length` tokens of a sequence through its table.

    pages: [num_blocks, 2, block_size, kv_heads, head_dim]; table: [blocks].
    Returns keys and values, each [length, kv_heads, head_dim]. Slots beyond are not read.
    """
    block_size = pages.shape[2]
    positions = torch.arange(length, device=pages.device)
    blocks, offsets = table[positions // block_size], positions % block_size
    return pages[blocks, 0, offsets], pages[blocks, 1, offsets]


def attend(q: Tensor, k: Tensor, v: Tensor, *, start: int) -> Tensor:
    """Let the queries at positions `start`, `start + 1`, … attend to all positions up to their own.

    q: [tokens, heads, head_dim]; k, v: [start + tokens, kv_heads, head_dim]; query head `h` reads
    KV head `h // (heads // kv_heads)`. Returns [tokens, heads, head_dim] in the dtype of q.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    assert k.shape[0] == start + tokens, f"{k.shape[0]} keys for positions up to {start + tokens}"
    out = torch.empty_like(q)
    for first in range(0, tokens, QUERY_TILE):
        rows = torch.arange(first, first + QUERY_TILE, device=q.device).clamp_(max=tokens - 1)
        queries = q[rows].float() * head_dim**-0.5
        grouped = queries.view(QUERY_TILE, kv_heads, heads // kv_heads, head_dim).transpose(0, 1)
        result = _attend_tile(grouped, k, v, start + rows)
        filled = min(QUERY_TILE, tokens - first)
        out[first : first + filled] = (
            result.transpose(0, 1).reshape(QUERY_TILE, heads, head_dim)[:filled].to(q.dtype)
        )
    return out


def _attend_tile(q: Tensor, k: Tensor, v: Tensor, positions: Tensor) -> Tensor:
    """Attend with one tile of queries: q and result [kv_heads, QUERY_TILE, heads/kv_heads, dim]."""
    kv_heads, _, group, head_dim = q.shape
    flat = q.reshape(kv_heads, QUERY_TILE * group, head_dim)
    seen = int(positions.max()) + 1
    scores: list[Tensor] = []
    for begin in range(0, seen, KEY_TILE):
        keys = _tile(k, begin, seen)
        hidden = torch.arange(begin, begin + KEY_TILE, device=q.device) > positions[:, None]
        tile = torch.bmm(flat, keys.transpose(1, 2))
        tile.view(kv_heads, QUERY_TILE, group, KEY_TILE).masked_fill_(
            hidden[None, :, None, :], float("-inf")
        )
        scores.append(tile)
    largest = torch.stack([tile.amax(dim=-1, keepdim=True) for tile in scores]).amax(dim=0)
    total = torch.zeros_like(largest)
    out = torch.zeros_like(flat)
    for index, tile in enumerate(scores):
        weights = torch.exp(tile - largest)
        total += weights.sum(dim=-1, keepdim=True)
        out += torch.bmm(weights, _tile(v, index * KEY_TILE, seen))
    return (out / total).view(kv_heads, QUERY_TILE, group, head_dim)


def _tile(x: Tensor, begin: int, end: int) -> Tensor:
    """Cut one tile of keys or values, zeros after `end`: [kv_heads, KEY_TILE, head_dim] float32."""
    rows = x[begin : min(begin + KEY_TILE, end)].float()
    tile = rows.new_zeros(KEY_TILE, *rows.shape[1:])
    tile[: rows.shape[0]] = rows
    return tile.transpose(0, 1).contiguous()
