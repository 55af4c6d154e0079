"""What lies between the projection of queries, keys and values and attention, in one kernel."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from octavo.kernels.triton.early import await_kernel, early_launch

_HEADS_TILE = 8


@dataclass(frozen=True, slots=True)
class HeadArithmetic:
    """What happens to the heads of one layer before they are stored; tensors of the model."""

    heads: int
    kv_heads: int
    turns: Tensor
    """[positions, head_dim] float32: cosines of the pairs, then sines; see `turn_table`."""
    bias: Tensor | None = None
    """[(heads + 2 * kv_heads) * head_dim]"""
    norm: Tensor | None = None
    """[heads + kv_heads, head_dim]"""
    eps: float = 0.0
    """Of the norm."""


@triton.jit
def _rotate_and_write(
    qkv_at,
    bias_at,
    norm_at,
    turns_at,
    positions_at,
    blocks_at,
    offsets_at,
    q_at,
    pages_at,
    heads,
    kv_heads,
    head_dim,
    eps,
    block_step,
    plane_step,
    slot_step,
    head_step,
    HAS_BIAS: tl.constexpr,
    HAS_NORM: tl.constexpr,
    HALF: tl.constexpr,
    HEADS_TILE: tl.constexpr,
    EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS_TILE + tl.arange(0, HEADS_TILE)
    pair = tl.arange(0, HALF)
    half = head_dim // 2
    total = heads + 2 * kv_heads
    inside = (head < total)[:, None] & (pair < half)[None, :]
    within = head[:, None] * head_dim + pair[None, :]
    position = tl.load(positions_at + row).to(tl.int64)
    there = position * head_dim + pair
    cos = tl.load(turns_at + there, mask=pair < half, other=1.0)[None, :]
    sin = tl.load(turns_at + there + half, mask=pair < half, other=0.0)[None, :]
    block = tl.load(blocks_at + row).to(tl.int64)
    offset = tl.load(offsets_at + row)
    await_kernel(EARLY)
    low_at = qkv_at + row * total * head_dim + within
    low = tl.load(low_at, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(low_at + half, mask=inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        low += tl.load(bias_at + within, mask=inside, other=0.0).to(tl.float32)
        high += tl.load(bias_at + within + half, mask=inside, other=0.0).to(tl.float32)

    turned = (head < heads + kv_heads)[:, None]
    if HAS_NORM:
        squares = tl.sum(low * low + high * high, axis=1) / head_dim
        scale = tl.rsqrt(squares + eps)[:, None]
        first = tl.load(norm_at + within, mask=inside & turned, other=0.0).to(tl.float32)
        second = tl.load(norm_at + within + half, mask=inside & turned, other=0.0).to(tl.float32)
        low = tl.where(turned, low * scale * first, low)
        high = tl.where(turned, high * scale * second, high)

    new_low = tl.where(turned, low * cos - high * sin, low)
    new_high = tl.where(turned, high * cos + low * sin, high)
    queries = inside & (head < heads)[:, None]
    q_place = q_at + row * heads * head_dim + within
    tl.store(q_place, new_low.to(q_at.dtype.element_ty), mask=queries)
    tl.store(q_place + half, new_high.to(q_at.dtype.element_ty), mask=queries)

    # A row without a block is padding: nothing of it is kept.
    stored = head - heads
    plane, kv_head = stored // kv_heads, stored % kv_heads
    slot = block * block_step + offset * slot_step
    place = slot + (plane * plane_step + kv_head * head_step)[:, None] + pair[None, :]
    kept = inside & (head >= heads)[:, None] & (block >= 0)
    tl.store(pages_at + place, new_low.to(pages_at.dtype.element_ty), mask=kept)
    tl.store(pages_at + place + half, new_high.to(pages_at.dtype.element_ty), mask=kept)


def rotate_and_write(
    qkv: Tensor,
    arithmetic: HeadArithmetic,
    positions: Tensor,
    blocks: Tensor,
    offsets: Tensor,
    pages: Tensor,
) -> Tensor:
    """Add the bias, norm and turn queries and keys, write keys and values; return the queries.

    qkv: [rows, (heads + 2 * kv_heads) * head_dim], contiguous; positions, blocks, offsets: [rows]
    int32, block -1 for rows whose KV is not kept; pages: [num_blocks, 2, block_size, kv_heads,
    head_dim], strided. Returns [rows, heads, head_dim] in the dtype of qkv. Computes in float32 and
    rounds once.
    """
    heads, kv_heads, head_dim = arithmetic.heads, arithmetic.kv_heads, pages.shape[-1]
    rows, total = qkv.shape[0], heads + 2 * kv_heads
    assert qkv.shape == (rows, total * head_dim), f"{tuple(qkv.shape)} for {total} x {head_dim}"
    assert head_dim % 2 == 0, f"pairs need heads of even size, got {head_dim}"
    assert qkv.is_contiguous(), "projections must be contiguous"
    assert pages.shape[1] == 2, f"pages of {tuple(pages.shape)}"
    assert pages.shape[3] == kv_heads, f"pages of {tuple(pages.shape)} for {kv_heads} KV heads"
    assert pages.stride(4) == 1, "a head's vector must be contiguous"
    q = torch.empty(rows, heads, head_dim, dtype=qkv.dtype, device=qkv.device)
    if rows:
        _rotate_and_write[(rows, triton.cdiv(total, _HEADS_TILE))](
            qkv,
            qkv if arithmetic.bias is None else arithmetic.bias,
            qkv if arithmetic.norm is None else arithmetic.norm,
            arithmetic.turns,
            positions,
            blocks,
            offsets,
            q,
            pages,
            heads,
            kv_heads,
            head_dim,
            arithmetic.eps,
            *pages.stride()[:4],
            HAS_BIAS=arithmetic.bias is not None,
            HAS_NORM=arithmetic.norm is not None,
            HALF=triton.next_power_of_2(head_dim // 2),
            HEADS_TILE=_HEADS_TILE,
            num_warps=4,
            **early_launch(qkv.device),
        )
    return q
