"""Paged attention whose bits depend on a query and its own text alone.

The arithmetic, for each query: its keys are cut into chunks of `CHUNK` at absolute positions; each
chunk gives a normed output and a log-sum-exp; these are folded one after the other, in ascending
order. That a chunk is computed beside other queries, by another program, or not at all because the
query sees nothing of it, changes no bit: hidden keys add exact zeros. So a long text may be cut
among programs (each item one chunk) or not (an item for all of them).
"""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.decode import Parts, Shape

CHUNK = 512
"""Keys of a chunk."""

ROWS = 64
"""Query heads of one tile, padding included: the same for one query as for many."""

_KEYS = 64
_WHOLE = tl.constexpr(-1)


@dataclass(frozen=True, slots=True)
class ExactTiles:
    """Queries of one step in one KV group, cut into tiles; int32, on the device.

    `items` may be longer than there are items: `counts` says how many there are.
    """

    tables: Tensor
    """Block tables, one after the other."""
    tiles: Tensor
    """[tiles, 5] first row, queries, position of the first, where its text's table begins, and
    where the part of its chunk 0 lies: tiles that are cut among programs have one query."""
    items: Tensor
    """[items, 2] tile, and chunk; -1: all its chunks."""
    counts: Tensor
    """[1] items."""


@triton.jit
def _fold(merged, total, largest, out, lse):
    """Add one chunk to what earlier ones gave."""
    new = tl.maximum(largest, lse)
    base = tl.where(new == float("-inf"), 0.0, new)
    old, more = tl.exp2(largest - base), tl.exp2(lse - base)
    # Written out, so that both places that fold round in the same way.
    merged = tl.fma(merged, tl.broadcast_to(old[:, None], merged.shape), out * more[:, None])
    return merged, tl.fma(total, old, more), new


@triton.jit
def _attend_chunk(
    q, pages_at, table_at, position, begin, end, head_place, scale,
    block_step, plane_step, slot_step,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr,
    WINDOW: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend to the keys `begin` … `end` - 1; a query that sees none gets zeros and -inf."""
    column = tl.arange(0, WIDTH)
    inside = column < HEAD_DIM
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    for first in range(begin // KEYS * KEYS, end, KEYS):
        key = first + tl.arange(0, KEYS)
        known = (key >= begin) & (key < end)
        block = tl.load(table_at + key // BLOCK_SIZE, mask=known, other=0).to(tl.int64)
        slot = block * block_step + (key % BLOCK_SIZE) * slot_step + head_place
        k_at = pages_at + slot[None, :] + column[:, None]
        v_at = pages_at + plane_step + slot[:, None] + column[None, :]
        k = tl.load(k_at, mask=known[None, :] & inside[:, None], other=0.0)
        v = tl.load(v_at, mask=known[:, None] & inside[None, :], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        seen = known[None, :] & (key[None, :] <= position[:, None])
        if WINDOW:
            seen = seen & (key[None, :] > position[:, None] - WINDOW)
        scores = tl.where(seen, scores, float("-inf"))
        new = tl.maximum(largest, tl.max(scores, axis=1))
        base = tl.where(new == float("-inf"), 0.0, new)
        weights = tl.exp2(scores - base[:, None])
        shrink = tl.exp2(largest - base)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None]
        out = tl.dot(weights.to(q.dtype), v.to(q.dtype), out, input_precision=PRECISION)
        largest = new
    some = total > 0.0
    sums = tl.where(some, total, 1.0)
    return out / sums[:, None], tl.where(some, largest + tl.log2(sums), float("-inf"))


@triton.jit
def _fold_parts(
    parts_at, lse_at, place, head, begin, end, heads, mask, real,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    """Fold what programs have left of one query: parts `begin` … `end` - 1."""
    merged = tl.zeros([ROWS, WIDTH], tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    for number in range(begin, end):
        part = number * heads
        # Others have written them: what this processor remembers may be old.
        out_at = parts_at + part * HEAD_DIM + place
        out = tl.load(out_at, mask=mask, other=0.0, cache_modifier=".cg")
        lse_place = lse_at + part + head
        lse = tl.load(lse_place, mask=real, other=float("-inf"), cache_modifier=".cg")
        merged, total, largest = _fold(merged, total, largest, out, lse)
    return merged, total


@triton.jit
def _attend_exact(
    q_at, pages_at, tables_at, tiles_at, items_at, counts_at, parts_at, lse_at, ended_at, out_at,
    scale, block_step, plane_step, slot_step, head_step,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    CHUNK: tl.constexpr, KEYS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    heads = KV_HEADS * GROUP
    items = tl.load(counts_at)
    lane = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    for work in range(tl.program_id(0), items * KV_HEADS, tl.num_programs(0)):
        item, kv_head = work // KV_HEADS, work % KV_HEADS
        tile = tl.load(items_at + item * 2)
        chunk = tl.load(items_at + item * 2 + 1)
        first_row = tl.load(tiles_at + tile * 5)
        count = tl.load(tiles_at + tile * 5 + 1)
        start = tl.load(tiles_at + tile * 5 + 2)
        table_at = tables_at + tl.load(tiles_at + tile * 5 + 3)
        part = tl.load(tiles_at + tile * 5 + 4)
        real = (lane // PADDED < count) & (lane % PADDED < GROUP)
        position = start + lane // PADDED
        row = (first_row + lane // PADDED).to(tl.int64)
        head = kv_head * GROUP + lane % PADDED
        mask = real[:, None] & (column < HEAD_DIM)[None, :]
        place = ((row * heads + head) * HEAD_DIM)[:, None] + column[None, :]
        q = tl.load(q_at + place, mask=mask, other=0.0)
        end = start + count
        seen = 0
        if WINDOW:
            seen = tl.maximum(start - WINDOW + 1, 0)
        last = (end + CHUNK - 1) // CHUNK
        low = tl.where(chunk == _WHOLE, seen // CHUNK, chunk)
        high = tl.where(chunk == _WHOLE, last, chunk + 1)
        merged = tl.zeros([ROWS, WIDTH], tl.float32)
        total = tl.zeros([ROWS], tl.float32)
        largest = tl.full([ROWS], float("-inf"), tl.float32)
        for number in range(low, high):
            out, lse = _attend_chunk(
                q, pages_at, table_at, position, tl.maximum(number * CHUNK, seen),
                tl.minimum(number * CHUNK + CHUNK, end), kv_head * head_step, scale,
                block_step, plane_step, slot_step,
                BLOCK_SIZE, ROWS, WIDTH, HEAD_DIM, WINDOW, KEYS, PRECISION,
            )  # fmt: skip
            if chunk == _WHOLE:
                merged, total, largest = _fold(merged, total, largest, out, lse)
            else:
                merged, largest = out, lse
        if chunk == _WHOLE:
            answer = merged / tl.where(total > 0.0, total, 1.0)[:, None]
            tl.store(out_at + place, answer.to(out_at.dtype.element_ty), mask=mask)
        else:
            # One query: a lane is a head.
            own = head[:, None] * HEAD_DIM + column[None, :]
            kept = (part + chunk).to(tl.int64) * heads
            tl.store(parts_at + kept * HEAD_DIM + own, merged, mask=mask)
            tl.store(lse_at + kept + head, largest, mask=real)
            # All threads have written before one of them says so; the last to end folds.
            tl.debug_barrier()
            begin = part + seen // CHUNK
            ended = tl.atomic_add(ended_at + tile * KV_HEADS + kv_head, 1)
            if ended == part + last - begin - 1:
                merged, total = _fold_parts(
                    parts_at, lse_at, own, head, begin, part + last, heads, mask, real,
                    ROWS, WIDTH, HEAD_DIM,
                )  # fmt: skip
                answer = merged / tl.where(total > 0.0, total, 1.0)[:, None]
                tl.store(out_at + place, answer.to(out_at.dtype.element_ty), mask=mask)
                tl.store(ended_at + tile * KV_HEADS + kv_head, 0)


def exact_queries(shape: Shape) -> int:
    """Say how many queries of one text a tile holds."""
    return max(1, ROWS // triton.next_power_of_2(shape.group))


def attend_exact(
    q: Tensor, pages: Tensor, queries: ExactTiles, parts: Parts, shape: Shape, out: Tensor
) -> None:
    """Attend with all queries of a step and write their rows of `out`.

    q, out: [rows, heads, head_dim], contiguous; pages: [num_blocks, 2, block_size, kv_heads,
    head_dim], strided. Each query sees the keys up to its own, which are written already.
    """
    assert q.is_contiguous(), "queries must be contiguous"
    assert out.is_contiguous(), "the output must be contiguous"
    padded = triton.next_power_of_2(shape.group)
    _attend_exact[(shape.programs,)](
        q, pages, queries.tables, queries.tiles, queries.items, queries.counts,
        parts.out, parts.lse, parts.ended, out, shape.scale,
        *pages.stride()[:4],
        BLOCK_SIZE=shape.block_size, KV_HEADS=shape.kv_heads, GROUP=shape.group, PADDED=padded,
        ROWS=max(16, exact_queries(shape) * padded), HEAD_DIM=shape.head_dim, WIDTH=shape.width,
        WINDOW=shape.window or 0, CHUNK=CHUNK, KEYS=_KEYS,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4, num_stages=3,
    )  # fmt: skip
