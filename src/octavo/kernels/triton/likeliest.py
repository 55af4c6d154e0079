"""The likeliest token of each row of logits, and its log-probability."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

_SPLIT = 4096
"""Logits that one program reads."""


@dataclass(frozen=True, slots=True)
class Likeliest:
    """What `find_likeliest` writes; one of each for each row."""

    tokens: Tensor
    """int32: equally likely ones by the lowest id."""
    logprobs: Tensor
    """float32"""
    broken: Tensor
    """int32: logits that are not finite."""

    @classmethod
    def empty(cls, rows: int, device: torch.device) -> Likeliest:
        """Make room for so many rows."""
        return cls(
            torch.zeros(rows, dtype=torch.int32, device=device),
            torch.zeros(rows, dtype=torch.float32, device=device),
            torch.zeros(rows, dtype=torch.int32, device=device),
        )


@triton.jit
def _read_split(
    logits_at, largest_at, token_at, total_at, broken_at, vocab, row_step, splits,
    SPLIT: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    token = split * SPLIT + tl.arange(0, SPLIT)
    inside = token < vocab
    x = tl.load(logits_at + row * row_step + token, mask=inside, other=0.0).to(tl.float32)
    finite = (x == x) & (tl.abs(x) < float("inf"))
    broken = tl.sum((inside & ~finite).to(tl.int32), axis=0)
    x = tl.where(inside & finite, x, -3.0e38)
    largest = tl.max(x, axis=0)
    best = tl.min(tl.where(x == largest, token, 2147483647), axis=0)
    total = tl.sum(tl.where(inside, tl.exp(x - largest), 0.0), axis=0)
    place = row * splits + split
    tl.store(largest_at + place, largest)
    tl.store(token_at + place, best)
    tl.store(total_at + place, total)
    tl.store(broken_at + place, broken)


@triton.jit
def _merge_splits(
    largest_at, token_at, total_at, broken_at, tokens_at, logprobs_at, sums_at, splits,
    SPLITS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    inside = split < splits
    place = row * splits + split
    each = tl.load(largest_at + place, mask=inside, other=float("-inf"))
    largest = tl.max(each, axis=0)
    token = tl.load(token_at + place, mask=inside, other=2147483647)
    best = tl.min(tl.where(each == largest, token, 2147483647), axis=0)
    totals = tl.load(total_at + place, mask=inside, other=0.0)
    total = tl.sum(totals * tl.exp(each - largest), axis=0)
    broken = tl.sum(tl.load(broken_at + place, mask=inside, other=0), axis=0)
    tl.store(tokens_at + row, best)
    tl.store(logprobs_at + row, -tl.log(total))
    tl.store(sums_at + row, broken)


def find_likeliest(logits: Tensor, into: Likeliest) -> None:
    """Find the likeliest token of each row, into the first rows of `into`.

    logits: [rows, vocab], rows contiguous.
    """
    rows, vocab = logits.shape
    assert logits.stride(1) == 1, "a row of logits must be contiguous"
    assert len(into.tokens) >= rows, f"{rows} rows of logits, room for {len(into.tokens)}"
    if not rows:
        return
    splits = triton.cdiv(vocab, _SPLIT)
    floats = torch.empty(2, rows, splits, dtype=torch.float32, device=logits.device)
    whole = torch.empty(2, rows, splits, dtype=torch.int32, device=logits.device)
    _read_split[(rows, splits)](
        logits, floats[0], whole[0], floats[1], whole[1], vocab, logits.stride(0), splits,
        SPLIT=_SPLIT, num_warps=8,
    )  # fmt: skip
    _merge_splits[(rows,)](
        floats[0], whole[0], floats[1], whole[1], into.tokens, into.logprobs, into.broken, splits,
        SPLITS=triton.next_power_of_2(splits), num_warps=1,
    )  # fmt: skip
