"""One row times a matrix: as fast as the matrix can be read."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.early import await_kernel, early_launch

_COLUMNS = 4
_INNER = 2048


@triton.jit
def _multiply_row(
    x_at, weight_at, out_at, columns, inner,
    COLUMNS: tl.constexpr, INNER: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    number = tl.arange(0, INNER)
    real = column < columns
    place = column.to(tl.int64)[:, None] * inner + number[None, :]
    mask = real[:, None] & (number < inner)[None, :]
    # Weights are on their way while the row is still being computed.
    weight = tl.load(weight_at + place, mask=mask, other=0.0)
    await_kernel(EARLY)
    x = tl.load(x_at + number, mask=number < inner, other=0.0).to(tl.float32)
    total = weight.to(tl.float32) * x[None, :]
    for begin in range(INNER, inner, INNER):
        inside = number < inner - begin
        x = tl.load(x_at + begin + number, mask=inside, other=0.0).to(tl.float32)
        mask = real[:, None] & inside[None, :]
        weight = tl.load(weight_at + place + begin, mask=mask, other=0.0)
        total += weight.to(tl.float32) * x[None, :]
    tl.store(out_at + column, tl.sum(total, axis=1).to(out_at.dtype.element_ty), mask=real)


def multiply_row(x: Tensor, weight: Tensor) -> Tensor:
    """Multiply one row by a matrix: [1, in] @ [out, in]ᵀ → [1, out], both contiguous."""
    columns, inner = weight.shape
    assert x.shape == (1, inner), f"rows of shape {tuple(x.shape)} by a matrix of {weight.shape}"
    assert x.is_contiguous(), "the row must be contiguous"
    assert weight.is_contiguous(), "the matrix must be contiguous"
    out = torch.empty(1, columns, dtype=x.dtype, device=x.device)
    _multiply_row[(triton.cdiv(columns, _COLUMNS),)](
        x, weight, out, columns, inner,
        COLUMNS=_COLUMNS, INNER=_INNER, num_warps=4, **early_launch(x.device),
    )  # fmt: skip
    return out
