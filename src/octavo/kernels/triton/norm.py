"""RMSNorm, with the residual added before it."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.early import await_kernel, early_launch

_PER_WARP = 512
"""Numbers of a row for each warp, whatever the number of rows: a row's bits depend on it."""


@triton.jit
def _normed(x, weight, hidden, eps):
    wide = x.to(tl.float32)
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / hidden + eps)
    # Rounded to the weights' dtype first, as the reference does.
    rounded = (wide * scale).to(weight.dtype).to(tl.float32)
    return weight.to(tl.float32) * rounded


@triton.jit
def _add_rms_norm(
    x_at,
    delta_at,
    post_at,
    weight_at,
    out_at,
    hidden,
    eps,
    HAS_DELTA: tl.constexpr,
    HAS_POST: tl.constexpr,
    WIDTH: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * hidden
    columns = tl.arange(0, WIDTH)
    inside = columns < hidden
    weight = tl.load(weight_at + columns, mask=inside, other=0.0)
    await_kernel(EARLY)
    x = tl.load(x_at + row + columns, mask=inside, other=0.0)
    if HAS_DELTA:
        delta = tl.load(delta_at + row + columns, mask=inside, other=0.0)
        if HAS_POST:
            post = tl.load(post_at + columns, mask=inside, other=0.0)
            delta = _normed(delta, post, hidden, eps).to(delta.dtype)
        x = (x.to(tl.float32) + delta.to(tl.float32)).to(x.dtype)
        tl.store(x_at + row + columns, x, mask=inside)
    normed = _normed(x, weight, hidden, eps)
    tl.store(out_at + row + columns, normed.to(x.dtype), mask=inside)


def add_rms_norm(
    x: Tensor,
    delta: Tensor | None,
    weight: Tensor,
    *,
    eps: float,
    post_weight: Tensor | None = None,
) -> Tensor:
    """Add `delta` to the residual in place, and return its RMSNorm.

    x, delta: [rows, hidden], contiguous, of one dtype; None: nothing is added. weight: [hidden], of
    that dtype or float32. post_weight: of a norm that `delta` goes through before it is added.
    """
    rows, hidden = x.shape
    assert x.is_contiguous(), "the residual must be contiguous: it is written"
    assert weight.shape == (hidden,), f"a norm of {tuple(weight.shape)} for rows of {hidden}"
    if delta is not None:
        assert delta.shape == x.shape, f"{tuple(delta.shape)} added to {tuple(x.shape)}"
        assert delta.is_contiguous(), "what is added must be contiguous"
    out = torch.empty_like(x)
    if rows:
        width = triton.next_power_of_2(hidden)
        _add_rms_norm[(rows,)](
            x,
            x if delta is None else delta,
            weight if post_weight is None else post_weight,
            weight,
            out,
            hidden,
            eps,
            HAS_DELTA=delta is not None,
            HAS_POST=post_weight is not None,
            WIDTH=width,
            num_warps=max(1, min(16, width // _PER_WARP)),
            **early_launch(x.device),
        )
    return out
