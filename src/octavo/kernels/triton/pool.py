"""Sums of rows, each added after the one before it, so that no bit depends on how they come."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_COLUMNS = 64
"""That one program adds up."""

_ROWS = 8
"""Rows that it reads before it adds the first of them."""


@triton.jit(do_not_specialize=["told"])
def _add_rows(
    rows_at, pools_at, totals_at, means_at, told, width, row_step,
    COLUMNS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    pool = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    inside = column < width
    first = tl.load(pools_at + pool * 4).to(tl.int64)
    count = tl.load(pools_at + pool * 4 + 1)
    before = tl.load(pools_at + pool * 4 + 2)
    place = tl.load(pools_at + pool * 4 + 3).to(tl.int64)
    total_at = totals_at + place * width + column
    total = tl.load(total_at, mask=inside & (before > 0), other=0.0)
    for begin in range(0, count, ROWS):
        for step in tl.static_range(ROWS):
            row = begin + step
            row_at = rows_at + (first + row) * row_step + column
            total += tl.load(row_at, mask=inside & (row < count), other=0.0).to(tl.float64)
    tl.store(total_at, total, mask=inside & (place >= 0))
    mean = total / (before + count).to(tl.float64)
    tl.store(means_at + pool * width + column, mean.to(tl.float32), mask=inside & (pool < told))


def add_rows(rows: Tensor, pools: Tensor, totals: Tensor, told: int) -> Tensor:
    """Add rows to totals, in double precision; return the means of the first `told` pools.

    rows: [rows, width]; totals: [places, width] float64; pools: [pools, 4] int32: the first row,
    how many there are, how many the total has already (0: what lies there counts for nothing),
    and its place, -1 if it is not kept; no place twice. Returns [told, width] float32.
    """
    width = rows.shape[1]
    assert rows.stride(1) == 1, "a row must be contiguous"
    means = torch.empty(told, width, dtype=torch.float32, device=rows.device)
    if len(pools):
        grid = (len(pools), triton.cdiv(width, _COLUMNS))
        _add_rows[grid](
            rows, pools, totals, means, told, width, rows.stride(0),
            COLUMNS=_COLUMNS, ROWS=_ROWS, num_warps=1,
        )  # fmt: skip
    return means
