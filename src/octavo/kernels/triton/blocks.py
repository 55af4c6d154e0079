"""Copies of whole blocks inside the device, and the token ids of a step."""

# Triton's launches and constants have types that a checker does not know.
# pyright: reportCallIssue=false, reportArgumentType=false, reportOperatorIssue=false

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_WORDS = 4096
"""Eight-byte words that one program copies."""


@triton.jit
def _copy_blocks(raw_at, pairs_at, words, WORDS: tl.constexpr):
    pair = tl.program_id(0)
    source = tl.load(pairs_at + pair * 2).to(tl.int64)
    target = tl.load(pairs_at + pair * 2 + 1).to(tl.int64)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = word < words
    tl.store(
        raw_at + target * words + word,
        tl.load(raw_at + source * words + word, mask=inside),
        mask=inside,
    )


def copy_blocks(raw: Tensor, pairs: Tensor) -> None:
    """Copy blocks; no target may be a source, or a target twice.

    raw: [num_blocks, block_bytes] uint8, contiguous, block_bytes a multiple of 8; pairs: [copies,
    2] int32, source and target.
    """
    words = raw.view(torch.int64)
    if len(pairs):
        grid = (len(pairs), triton.cdiv(words.shape[1], _WORDS))
        _copy_blocks[grid](words, pairs, words.shape[1], WORDS=_WORDS, num_warps=8)


# Compiled once, whatever the number of rows.
@triton.jit(do_not_specialize=["rows"])
def _settle_tokens(tokens_at, newest_at, out_at, rows, TILE: tl.constexpr):
    row = tl.program_id(0) * TILE + tl.arange(0, TILE)
    inside = row < rows
    token = tl.load(tokens_at + row, mask=inside, other=0)
    pending = inside & (token < 0)
    newest = tl.load(newest_at - token - 1, mask=pending, other=0)
    tl.store(out_at + row, tl.where(pending, newest, token).to(tl.int64), mask=inside)


def settle_tokens(tokens: Tensor, newest: Tensor) -> Tensor:
    """Put in the tokens that the step before has chosen.

    tokens: [rows] int32, -1 - i where it is `newest[i]` (int32). Returns [rows] int64.
    """
    out = torch.empty(len(tokens), dtype=torch.int64, device=tokens.device)
    if len(tokens):
        tile = 256
        grid = (triton.cdiv(len(tokens), tile),)
        _settle_tokens[grid](tokens, newest, out, len(tokens), TILE=tile, num_warps=2)
    return out
