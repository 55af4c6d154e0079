"""Paged attention of single queries: fixed chunks of keys, merged by log-sum-exp.

Chunks lie at absolute positions, so that a query's bits do not depend on the rest of the step as
long as the chunk size stays. Sequences whose tables begin with the same blocks can read those once:
their queries then form one matrix (`attend_shared`).

Parts that wait to be merged lie in `Parts`: entry i keeps that of chunk c at `first_part[i] + c`.
An entry of one chunk has none: what its chunk gives is the answer.
"""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.early import await_kernel, early_launch

TILE = 64
"""Keys in one step of a chunk's loop; chunks are multiples of it."""

SHARED_ROWS = 128
"""Query heads that one program of `attend_shared` serves, padding included."""

_MERGED_PARTS = 16
"""Parts that are read at once when they are merged."""

_MERGING = 4
"""Programs that merge, for each that goes through items."""

_PROGRAMS_PER_SM = 4
_HOST_PROGRAMS = 3
"""In Triton's interpreter, so that tests see programs that take several items, and none."""


@dataclass(frozen=True, slots=True)
class Entries:
    """Single queries of one step in one KV group; all int32, on the device.

    Everything may be longer than there are entries or items: `counts` says how many there are.
    """

    rows: Tensor
    """[entries] the row of each query among those of the step."""
    tables: Tensor
    """Block tables, one after the other."""
    table_starts: Tensor
    """[entries] where each table begins."""
    lengths: Tensor
    """[entries] keys of each text, the query's own included; 0: padding, nothing is attended."""
    first_part: Tensor
    """[entries] see the module."""
    items: Tensor
    """[items, 5] row, where its table begins, first key, end, part (-1: it is the answer). A team
    of programs, one for each KV head, goes through every so many-th; no key: nothing to do."""
    shared: Tensor
    """[shared items, 4] first place in `members`, how many, where their table begins, chunk."""
    members: Tensor
    """[members] entries that share blocks, group after group."""
    merged: Tensor
    """[merged] the entries of more than one chunk."""
    counts: Tensor
    """[4] items, shared items, keys of a chunk, merged."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Memory for what chunks give until it is merged."""

    out: Tensor
    """[parts, heads, head_dim] float32"""
    lse: Tensor
    """[parts, heads] float32: logarithm to base 2 of the sum of exponentials."""
    ended: Tensor
    """[tiles, kv_heads] int32: items that have ended, for `kernels.triton.exact`; zero between
    calls."""


@triton.jit
def _attend_keys(
    q, pages_at, tables_at, seen, end, head_place, scale,
    block_step, plane_step, slot_step,
    BLOCK_SIZE: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr, HEAD_DIM: tl.constexpr,
    TILE: tl.constexpr, CHECKED: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Attend with q [ROWS, WIDTH] to keys `seen` … `end` - 1 of one text: out (normed) and lse.

    CHECKED: the first and the last tile may hold keys that are not seen.
    """
    column = tl.arange(0, WIDTH)
    inside = column < HEAD_DIM
    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    out = tl.zeros([ROWS, WIDTH], tl.float32)
    for begin in range(seen // TILE * TILE, end, TILE):
        position = begin + tl.arange(0, TILE)
        known = (position >= seen) & (position < end)
        if CHECKED:
            block = tl.load(tables_at + position // BLOCK_SIZE, mask=known, other=0)
        else:
            block = tl.load(tables_at + position // BLOCK_SIZE)
        slot = block.to(tl.int64) * block_step + (position % BLOCK_SIZE) * slot_step + head_place
        k_at = pages_at + slot[None, :] + column[:, None]
        v_at = pages_at + plane_step + slot[:, None] + column[None, :]
        if CHECKED:
            k = tl.load(k_at, mask=known[None, :] & inside[:, None], other=0.0)
            v = tl.load(v_at, mask=known[:, None] & inside[None, :], other=0.0)
        else:
            k = tl.load(k_at, mask=inside[:, None], other=0.0)
            v = tl.load(v_at, mask=inside[None, :], other=0.0)
        scores = tl.dot(q, k.to(q.dtype), input_precision=PRECISION) * scale
        if CHECKED:
            scores = tl.where(known[None, :], scores, float("-inf"))
        # Every tile holds a key that is seen, so that the largest is finite.
        new = tl.maximum(largest, tl.max(scores, axis=1))
        weights = tl.exp2(scores - new[:, None])
        shrink = tl.exp2(largest - new)
        total = total * shrink + tl.sum(weights, axis=1)
        out = out * shrink[:, None]
        out = tl.dot(weights.to(q.dtype), v.to(q.dtype), out, input_precision=PRECISION)
        largest = new
    return out / total[:, None], largest + tl.log2(total)


@triton.jit
def _attend_chunks(
    q_at, pages_at, tables_at, items_at, counts_at, parts_at, lse_at, out_at, scale,
    block_step, plane_step, slot_step, head_step,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr, PRECISION: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Go through the items with one KV head: a team's programs share an item, a head each."""
    heads = KV_HEADS * GROUP
    kv_head = tl.program_id(0) % KV_HEADS
    teams = tl.num_programs(0) // KV_HEADS
    items = tl.load(counts_at)
    member = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    mask = (member < GROUP)[:, None] & (column < HEAD_DIM)[None, :]
    head = kv_head * GROUP + member
    place = head[:, None] * HEAD_DIM + column[None, :]
    item = tl.program_id(0) // KV_HEADS
    row, start, seen, end, part = _read_item(items_at, item, items)
    await_kernel(EARLY)
    while item < items:
        # Where the next one lies is read meanwhile: one wait less between two items.
        item += teams
        next_row, next_start, next_seen, next_end, next_part = _read_item(items_at, item, items)
        if end > seen:
            q_place = row.to(tl.int64) * heads * HEAD_DIM + place
            q = tl.load(q_at + q_place, mask=mask, other=0.0)
            out, lse = _attend_keys(
                q, pages_at, tables_at + start, seen, end, kv_head * head_step, scale,
                block_step, plane_step, slot_step,
                BLOCK_SIZE, ROWS, WIDTH, HEAD_DIM, TILE, True, PRECISION,
            )  # fmt: skip
            if part < 0:
                tl.store(out_at + q_place, out.to(out_at.dtype.element_ty), mask=mask)
            else:
                there = part.to(tl.int64) * heads
                tl.store(parts_at + there * HEAD_DIM + place, out, mask=mask)
                tl.store(lse_at + there + head, lse, mask=member < GROUP)
        row, start, seen, end, part = next_row, next_start, next_seen, next_end, next_part


@triton.jit
def _read_item(items_at, item, items):
    there = items_at + item * 5
    real = item < items
    return (
        tl.load(there, mask=real, other=0),
        tl.load(there + 1, mask=real, other=0),
        tl.load(there + 2, mask=real, other=0),
        tl.load(there + 3, mask=real, other=0),
        tl.load(there + 4, mask=real, other=0),
    )


@triton.jit
def _attend_shared(
    q_at, pages_at, tables_at, rows_at, first_part_at, shared_at, members_at, counts_at,
    out_at, lse_at, scale, block_step, plane_step, slot_step, head_step,
    BLOCK_SIZE: tl.constexpr, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED: tl.constexpr,
    ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, TILE: tl.constexpr,
    PRECISION: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Go through the shared items: the queries of many entries, one chunk that all of them see."""
    heads = KV_HEADS * GROUP
    items = tl.load(counts_at + 1)
    chunk_size = tl.load(counts_at + 2)
    lane = tl.arange(0, ROWS)
    column = tl.arange(0, WIDTH)
    await_kernel(EARLY)
    for work in range(tl.program_id(0), items * KV_HEADS, tl.num_programs(0)):
        item, kv_head = work // KV_HEADS, work % KV_HEADS
        first = tl.load(shared_at + item * 4)
        count = tl.load(shared_at + item * 4 + 1)
        table_at = tables_at + tl.load(shared_at + item * 4 + 2)
        chunk = tl.load(shared_at + item * 4 + 3)
        real = (lane // PADDED < count) & (lane % PADDED < GROUP)
        entry = tl.load(members_at + first + lane // PADDED, mask=real, other=0)
        row = tl.load(rows_at + entry, mask=real, other=0).to(tl.int64)
        head = kv_head * GROUP + lane % PADDED
        mask = real[:, None] & (column < HEAD_DIM)[None, :]
        place = (head * HEAD_DIM)[:, None] + column[None, :]
        q = tl.load(q_at + (row * heads * HEAD_DIM)[:, None] + place, mask=mask, other=0.0)
        out, lse = _attend_keys(
            q, pages_at, table_at, chunk * chunk_size, chunk * chunk_size + chunk_size,
            kv_head * head_step, scale, block_step, plane_step, slot_step,
            BLOCK_SIZE, ROWS, WIDTH, HEAD_DIM, TILE, False, PRECISION,
        )  # fmt: skip
        part = (tl.load(first_part_at + entry, mask=real, other=0) + chunk).to(tl.int64)
        tl.store(out_at + (part * heads * HEAD_DIM)[:, None] + place, out, mask=mask)
        tl.store(lse_at + part * heads + head, lse, mask=real)


@triton.jit
def _merge(
    merged_at, rows_at, lengths_at, first_part_at, counts_at, parts_at, lse_at, out_at,
    HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, WIDTH: tl.constexpr, WINDOW: tl.constexpr,
    PARTS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Go through the entries of several chunks, each with all heads.

    Parts are merged `PARTS` at a time, in ascending order.
    """
    works = tl.load(counts_at + 3) * HEADS
    chunk_size = tl.load(counts_at + 2)
    column = tl.arange(0, WIDTH)
    await_kernel(EARLY)
    for work in range(tl.program_id(0), works, tl.num_programs(0)):
        entry, head = tl.load(merged_at + work // HEADS), work % HEADS
        length = tl.load(lengths_at + entry)
        row = tl.load(rows_at + entry).to(tl.int64)
        first_part = tl.load(first_part_at + entry)
        begin = 0
        if WINDOW:
            begin = tl.maximum(length - WINDOW, 0) // chunk_size
        end = (length + chunk_size - 1) // chunk_size
        largest = float("-inf")
        total = 0.0
        merged = tl.zeros([WIDTH], tl.float32)
        for start in range(begin, end, PARTS):
            chunk = start + tl.arange(0, PARTS)
            real = chunk < end
            part = (first_part + chunk) * HEADS + head
            lse = tl.load(lse_at + part, mask=real, other=float("-inf"))
            new = tl.maximum(largest, tl.max(lse, axis=0))
            weights = tl.exp2(lse - new)
            shrink = tl.exp2(largest - new)
            mask = real[:, None] & (column < HEAD_DIM)[None, :]
            place = part.to(tl.int64)[:, None] * HEAD_DIM + column[None, :]
            out = tl.load(parts_at + place, mask=mask, other=0.0)
            merged = merged * shrink + tl.sum(out * weights[:, None], axis=0)
            total = total * shrink + tl.sum(weights, axis=0)
            largest = new
        place = out_at + (row * HEADS + head) * HEAD_DIM + column
        tl.store(place, (merged / total).to(out_at.dtype.element_ty), mask=column < HEAD_DIM)


@dataclass(frozen=True, slots=True)
class Shape:
    """What the kernels of one KV group are compiled for."""

    heads: int
    kv_heads: int
    head_dim: int
    block_size: int
    window: int | None
    programs: int
    """That fill the device."""

    @property
    def teams(self) -> int:
        """Programs that go through the items together, one for each KV head: so many times."""
        return max(1, self.programs // self.kv_heads)

    @property
    def group(self) -> int:
        """Query heads of one KV head."""
        return self.heads // self.kv_heads

    @property
    def scale(self) -> float:
        """What scores are multiplied by; exponentials are powers of two."""
        return self.head_dim**-0.5 * 1.4426950408889634

    @property
    def shared_members(self) -> int:
        """Entries that one shared item can hold."""
        return max(1, SHARED_ROWS // triton.next_power_of_2(self.group))

    @property
    def width(self) -> int:
        """The head's size, up to a power of two."""
        return max(16, triton.next_power_of_2(self.head_dim))


def count_programs(device: torch.device) -> int:
    """Say how many programs fill a device."""
    if device.type != "cuda":
        return _HOST_PROGRAMS
    return _PROGRAMS_PER_SM * torch.cuda.get_device_properties(device).multi_processor_count


def attend_decode(
    q: Tensor,
    pages: Tensor,
    entries: Entries,
    parts: Parts,
    shape: Shape,
    out: Tensor,
    *,
    shared: bool,
    parted: bool,
    early: bool = True,
) -> None:
    """Attend with single queries and write their rows of `out`; other rows are left alone.

    q, out: [rows, heads, head_dim], contiguous; pages: [num_blocks, 2, block_size, kv_heads,
    head_dim], strided. shared: there may be shared items. parted: an entry may have several chunks.
    early: programs may take their places before the kernel in front has ended.
    """
    assert q.is_contiguous(), "queries must be contiguous"
    assert out.is_contiguous(), "the output must be contiguous"
    steps = pages.stride()[:4]
    precision = "ieee" if q.dtype == torch.float32 else "tf32"
    window = shape.window or 0
    padded = triton.next_power_of_2(shape.group)
    launch = early_launch(q.device)
    _attend_chunks[(shape.teams * shape.kv_heads,)](
        q, pages, entries.tables, entries.items, entries.counts, parts.out, parts.lse, out,
        shape.scale, *steps,
        BLOCK_SIZE=shape.block_size, KV_HEADS=shape.kv_heads, GROUP=shape.group,
        ROWS=max(16, padded), HEAD_DIM=shape.head_dim, WIDTH=shape.width, TILE=TILE,
        PRECISION=precision, num_warps=2, num_stages=3,
        **(launch if early else {"EARLY": False}),
    )  # fmt: skip
    if shared:
        _attend_shared[(shape.programs,)](
            q, pages, entries.tables, entries.rows, entries.first_part, entries.shared,
            entries.members, entries.counts, parts.out, parts.lse, shape.scale, *steps,
            BLOCK_SIZE=shape.block_size, KV_HEADS=shape.kv_heads, GROUP=shape.group,
            PADDED=padded, ROWS=shape.shared_members * padded, HEAD_DIM=shape.head_dim,
            WIDTH=shape.width, TILE=TILE, PRECISION=precision, num_warps=8, num_stages=3, **launch,
        )  # fmt: skip
    if parted:
        works = entries.rows.shape[0] * shape.heads
        _merge[(min(works, _MERGING * shape.programs),)](
            entries.merged, entries.rows, entries.lengths, entries.first_part, entries.counts,
            parts.out, parts.lse, out,
            HEADS=shape.heads, HEAD_DIM=shape.head_dim, WIDTH=shape.width, WINDOW=window,
            PARTS=_MERGED_PARTS, num_warps=4, **launch,
        )  # fmt: skip
