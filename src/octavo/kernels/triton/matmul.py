"""Matrix products whose bits do not depend on how many rows are multiplied.

Every element is the sum of products of 16 numbers in ascending order, by the same instruction,
whatever the tile: no split of the sum, no library that chooses by shape.
"""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_GROUP = 8
"""Tiles of rows that go through the same columns one after the other: they find these in cache."""


# Compiled once, whatever the number of rows.
@triton.jit(do_not_specialize=["rows"])
def _multiply(
    x_at, weight_at, out_at, rows, columns, inner,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    row_tiles = tl.cdiv(rows, ROWS)
    column_tiles = tl.cdiv(columns, COLUMNS)
    program = tl.program_id(0)
    first = program // (GROUP * column_tiles) * GROUP
    size = tl.minimum(row_tiles - first, GROUP)
    row_tile = first + program % (GROUP * column_tiles) % size
    column_tile = program % (GROUP * column_tiles) // size
    row = row_tile * ROWS + tl.arange(0, ROWS)
    column = column_tile * COLUMNS + tl.arange(0, COLUMNS)
    number = tl.arange(0, INNER)
    # Rows that are not there repeat others: nothing is kept of them.
    x_place = (row % rows).to(tl.int64)[:, None] * inner + number[None, :]
    weight_place = (column % columns).to(tl.int64)[None, :] * inner + number[:, None]
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for begin in range(0, inner, INNER):
        inside = number < inner - begin
        x = tl.load(x_at + x_place + begin, mask=inside[None, :], other=0.0)
        weight = tl.load(weight_at + weight_place + begin, mask=inside[:, None], other=0.0)
        total = tl.dot(x, weight, total, input_precision=PRECISION)
    place = row.to(tl.int64)[:, None] * columns + column[None, :]
    kept = (row < rows)[:, None] & (column < columns)[None, :]
    tl.store(out_at + place, total.to(out_at.dtype.element_ty), mask=kept)


def multiply(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply rows by a matrix: [rows, in] @ [out, in]ᵀ → [rows, out], both contiguous.

    out: where to write; None: into new memory. A row's bits depend on that row alone.
    """
    rows, inner = x.shape
    columns = weight.shape[0]
    assert weight.shape[1] == inner, f"rows of {inner} numbers by a matrix of {weight.shape}"
    assert x.is_contiguous(), "rows must be contiguous"
    assert weight.is_contiguous(), "a matrix must be contiguous"
    if out is None:
        out = torch.empty(rows, columns, dtype=x.dtype, device=x.device)
    if not rows:
        return out
    # The sum of an element is the same in each of these.
    if rows <= 64:
        tile, wide, deep, warps, stages = 64, 32, 128, 4, 5
    else:
        tile, wide, deep, warps, stages = 128, 256, 64, 8, 3
    if x.dtype is torch.float32:
        tile, wide, deep, warps, stages = 64, 64, 32, 4, 2
    _multiply[(triton.cdiv(rows, tile) * triton.cdiv(columns, wide),)](
        x, weight, out, rows, columns, inner,
        ROWS=tile, COLUMNS=wide, INNER=deep, GROUP=_GROUP,
        PRECISION="ieee" if x.dtype is torch.float32 else "tf32",
        num_warps=warps, num_stages=stages,
    )  # fmt: skip
    return out
