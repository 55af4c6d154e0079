"""The gate of a feed-forward network: activation(gate) * up."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.early import await_kernel, early_launch

# (1 + tanh(x)) / 2 is 1 / (1 + exp(-2x)). Source: Hendrycks and Gimpel 2016, arXiv 1606.08415.
_GELU_SLOPE = tl.constexpr(1.5957691216057308)
_GELU_CUBE = tl.constexpr(0.044715)
_TILE = 1024


@triton.jit
def _gate(gate_up_at, out_at, width, GELU: tl.constexpr, TILE: tl.constexpr, EARLY: tl.constexpr):
    await_kernel(EARLY)
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * TILE + tl.arange(0, TILE)
    inside = columns < width
    gate = tl.load(gate_up_at + row * 2 * width + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_at + (row * 2 + 1) * width + columns, mask=inside, other=0.0)
    slope = gate
    if GELU:
        slope = _GELU_SLOPE * (gate + _GELU_CUBE * gate * gate * gate)
    active = (gate / (1.0 + tl.exp(-slope))).to(up.dtype).to(tl.float32)
    product = (active * up.to(tl.float32)).to(up.dtype)
    tl.store(out_at + row * width + columns, product, mask=inside)


def gate(gate_up: Tensor, *, gelu: bool = False) -> Tensor:
    """Apply SiLU (or GELU by tanh) to the first half of each row and multiply by the second.

    gate_up: [rows, 2 * width], contiguous → [rows, width].
    """
    rows, both = gate_up.shape
    assert both % 2 == 0, f"gate and up need rows of even width, got {both}"
    assert gate_up.is_contiguous(), "gate and up must be contiguous"
    width = both // 2
    out = torch.empty(rows, width, dtype=gate_up.dtype, device=gate_up.device)
    if rows:
        _gate[(rows, triton.cdiv(width, _TILE))](
            gate_up, out, width, GELU=gelu, TILE=_TILE, num_warps=4, **early_launch(out.device)
        )
    return out
