"""Paged causal attention of runs of queries: prompts, chunks of prompts, and what is verified."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.decode import Shape

ROWS = 128
"""Query heads of one tile: so many queries times the query heads of one KV head."""

KEYS = 64


@dataclass(frozen=True, slots=True)
class QueryTiles:
    """Runs of queries of one step in one KV group, cut into tiles; int32, on the device."""

    tables: Tensor
    """Block tables, one after the other."""
    tiles: Tensor
    """[tiles, 4] first row, queries (0: padding), position of the first, where its text's table
    begins."""


@triton.jit
def _attend_range(
    q, largest, total, out, low, high, start, end, position, pages_at, table_at, head_place, scale,
    block_step, plane_step, slot_step,
    BLOCK_SIZE: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    KEYS: tl.constexpr, CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Go on with the keys `low` … `high` - 1; CAUSAL: some queries of the tile do not see all."""
    column = tl.arange(0, WIDTH)
    inside = column < HEAD_DIM
    for key in range(low, high, KEYS):
        there = key + tl.arange(0, KEYS)
        known = there < end
        if CAUSAL:
            block = tl.load(table_at + there // BLOCK_SIZE, mask=known, other=0)
        else:
            block = tl.load(table_at + there // BLOCK_SIZE)
        if WINDOW:
            # Blocks behind the window may be gone: nothing is read of them.
            block = tl.maximum(block, 0)
            known = known & (there > start - WINDOW)
        slot = block.to(tl.int64) * block_step + (there % BLOCK_SIZE) * slot_step + head_place
        k_at = pages_at + slot[None, :] + column[:, None]
        v_at = pages_at + plane_step + slot[:, None] + column[None, :]
        if CAUSAL or WINDOW:
            k = tl.load(k_at, mask=known[None, :] & inside[:, None], other=0.0)
            v = tl.load(v_at, mask=known[:, None] & inside[None, :], other=0.0)
        else:
            k = tl.load(k_at, mask=inside[:, None], other=0.0)
            v = tl.load(v_at, mask=inside[None, :], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        if CAUSAL:
            scores = tl.where(there[None, :] <= position[:, None], scores, float("-inf"))
        if WINDOW:
            seen = there[None, :] > position[:, None] - WINDOW
            scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        # A query may see nothing of its tile's first keys: nothing minus nothing is no number.
        base = tl.where(new == float("-inf"), 0.0, new)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None]
        out = tl.dot(weights.to(q.dtype), v.to(q.dtype), out, input_precision=PRECISION)
        largest = new
    return largest, total, out


@triton.jit
def _attend_tile(
    q_at, pages_at, tables_at, tiles_at, out_at, scale,
    block_step, plane_step, slot_step, head_step,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    kv_head = tl.program_id(1)
    first_row = tl.load(tiles_at + tile * 4)
    count = tl.load(tiles_at + tile * 4 + 1)
    if count == 0:
        return
    start = tl.load(tiles_at + tile * 4 + 2)
    table_at = tables_at + tl.load(tiles_at + tile * 4 + 3)

    lane = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    query = lane // PADDED
    position = start + query
    row = (first_row + query).to(tl.int64)
    head = kv_head * GROUP + lane % PADDED
    place = ((row * KV_HEADS * GROUP + head) * HEAD_DIM)[:, None] + column[None, :]
    real = (query < count) & (lane % PADDED < GROUP)
    mask = real[:, None] & (column < HEAD_DIM)[None, :]
    q = tl.load(q_at + place, mask=mask, other=0.0)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    end = start + count
    begin = 0
    if WINDOW:
        begin = tl.maximum(start - WINDOW + 1, 0) // KEYS * KEYS
    # Up to here all queries of the tile see all keys, but for a window.
    whole = tl.maximum((start + 1) // KEYS * KEYS, begin)
    largest, total, out = _attend_range(
        q, largest, total, out, begin, whole, start, end, position, pages_at, table_at,
        kv_head * head_step, scale, block_step, plane_step, slot_step,
        BLOCK_SIZE, HEAD_DIM, WIDTH, WINDOW, KEYS, False, PRECISION,
    )  # fmt: skip
    largest, total, out = _attend_range(
        q, largest, total, out, whole, end, start, end, position, pages_at, table_at,
        kv_head * head_step, scale, block_step, plane_step, slot_step,
        BLOCK_SIZE, HEAD_DIM, WIDTH, WINDOW, KEYS, True, PRECISION,
    )  # fmt: skip
    # Padding has seen nothing.
    out = out / tl.where(total > 0.0, total, 1.0)[:, None]
    tl.store(out_at + place, out.to(out_at.dtype.element_ty), mask=mask)


def queries_per_tile(shape: Shape) -> int:
    """Say how many queries of one text a tile holds."""
    return max(1, ROWS // triton.next_power_of_2(shape.group))


def attend_prefill(
    q: Tensor, pages: Tensor, queries: QueryTiles, shape: Shape, out: Tensor
) -> None:
    """Attend with runs of queries and write their rows of `out`; other rows are left alone.

    q, out: [rows, heads, head_dim], contiguous; pages: [num_blocks, 2, block_size, kv_heads,
    head_dim], strided. Each query sees the keys up to its own, which are written already.
    """
    assert q.is_contiguous(), "queries must be contiguous"
    assert out.is_contiguous(), "the output must be contiguous"
    padded = triton.next_power_of_2(shape.group)
    _attend_tile[(queries.tiles.shape[0], shape.kv_heads)](
        q, pages, queries.tables, queries.tiles, out,
        shape.scale, *pages.stride()[:4],
        BLOCK_SIZE=shape.block_size, KV_HEADS=shape.kv_heads, GROUP=shape.group, PADDED=padded,
        ROWS=queries_per_tile(shape) * padded, HEAD_DIM=shape.head_dim, WIDTH=shape.width,
        WINDOW=shape.window or 0, KEYS=KEYS,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=3,
    )  # fmt: skip
