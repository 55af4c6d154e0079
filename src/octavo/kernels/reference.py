"""Attention over paged KV in plain torch: slow, obviously right, the same bits every time.

The arithmetic, which every exact backend is compared with (all in float32):

1. Keys are walked in tiles of `KEY_TILE` positions, counted from position 0.
2. scores = (q * scale) @ kᵀ per tile; positions after the query's own are -inf, and so are those
   that its window does not reach.
3. m = the largest score of the query over all tiles.
4. p = exp(scores - m); out = Σ p @ v / Σ p, tile after tile in ascending order, from zero.

Products have fixed shapes, so that a query's bits depend on its own position and keys alone:
not on its neighbours, on how the prompt was cut into chunks, or on where blocks lie. Tiles that a
window hides from all queries of a tile are left out: hidden, they would add exact zeros.
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


def first_seen(position: int, window: int | None) -> int:
    """Return the lowest position that a query sees; window: positions seen, its own included."""
    return 0 if window is None else max(0, position - window + 1)


def gather_kv(
    pages: Tensor, table: Tensor, length: int, *, first: int = 0
) -> tuple[Tensor, Tensor]:
    """Read the tokens of a sequence at positions `first` to `length - 1` through its table.

    pages: [num_blocks, 2, block_size, kv_heads, head_dim]; table: [blocks].
    Returns keys and values, each [length - first, kv_heads, head_dim]. No other slot is read.
    """
    block_size = pages.shape[2]
    positions = torch.arange(first, length, device=pages.device)
    blocks, offsets = table[positions // block_size], positions % block_size
    return pages[blocks, 0, offsets], pages[blocks, 1, offsets]


def attend(q: Tensor, k: Tensor, v: Tensor, *, start: int, window: int | None = None) -> Tensor:
    """Let the queries at positions `start`, `start + 1`, … attend to all positions up to their own.

    q: [tokens, heads, head_dim]; k, v: [start + tokens, kv_heads, head_dim]; query head `h` reads
    KV head `h // (heads // kv_heads)`. window: positions that a query sees, its own included; what
    no query sees is not read. Returns [tokens, heads, head_dim] in the dtype of q.
    """
    tokens, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    assert k.shape[0] == start + tokens, f"{k.shape[0]} keys for positions up to {start + tokens}"
    out = torch.empty_like(q)
    for first in range(0, tokens, QUERY_TILE):
        rows = torch.arange(first, first + QUERY_TILE, device=q.device).clamp_(max=tokens - 1)
        queries = q[rows].float() * head_dim**-0.5
        grouped = queries.view(QUERY_TILE, kv_heads, heads // kv_heads, head_dim).transpose(0, 1)
        result = _attend_tile(grouped, k, v, start + rows, window)
        filled = min(QUERY_TILE, tokens - first)
        out[first : first + filled] = (
            result.transpose(0, 1).reshape(QUERY_TILE, heads, head_dim)[:filled].to(q.dtype)
        )
    return out


def _attend_tile(q: Tensor, k: Tensor, v: Tensor, positions: Tensor, window: int | None) -> Tensor:
    """Attend with one tile of queries: q and result [kv_heads, QUERY_TILE, heads/kv_heads, dim]."""
    kv_heads, _, group, head_dim = q.shape
    flat = q.reshape(kv_heads, QUERY_TILE * group, head_dim)
    first, end = first_seen(int(positions.min()), window), int(positions.max()) + 1
    begins = range(first // KEY_TILE * KEY_TILE, end, KEY_TILE)
    scores: list[Tensor] = []
    for begin in begins:
        keys = _tile(k, begin, first, end)
        behind = positions[:, None] - torch.arange(begin, begin + KEY_TILE, device=q.device)
        hidden = behind < 0
        if window is not None:
            hidden |= behind >= window
        tile = torch.bmm(flat, keys.transpose(1, 2))
        tile.view(kv_heads, QUERY_TILE, group, KEY_TILE).masked_fill_(
            hidden[None, :, None, :], float("-inf")
        )
        scores.append(tile)
    largest = torch.stack([tile.amax(dim=-1, keepdim=True) for tile in scores]).amax(dim=0)
    total = torch.zeros_like(largest)
    out = torch.zeros_like(flat)
    for begin, tile in zip(begins, scores, strict=True):
        weights = torch.exp(tile - largest)
        total += weights.sum(dim=-1, keepdim=True)
        out += torch.bmm(weights, _tile(v, begin, first, end))
    return (out / total).view(kv_heads, QUERY_TILE, group, head_dim)


def _tile(x: Tensor, begin: int, first: int, end: int) -> Tensor:
    """Cut one tile of keys or values: [kv_heads, KEY_TILE, head_dim] float32.

    It begins at `begin`, and is zero before `first` and from `end` on.
    """
    low, high = max(begin, first), min(begin + KEY_TILE, end)
    tile = x.new_zeros(KEY_TILE, *x.shape[1:], dtype=torch.float32)
    tile[low - begin : high - begin] = x[low:high].float()
    return tile.transpose(0, 1).contiguous()
