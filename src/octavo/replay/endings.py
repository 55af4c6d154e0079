"""What prefixes lose by ending at block boundaries, and what partial blocks bring back."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from octavo.replay.transcripts import TokenizedRequest, Transcript


class BlockSizeRow(msgspec.Struct, frozen=True, kw_only=True):
    """What an endless cache finds in blocks of one size; rates are shares of all prompt tokens."""

    block_size: int
    prompt_tokens: int
    hit_tokens: int
    """Of whole blocks."""
    hit_rate: float
    lost: float
    """By how much less that is than with blocks of one token."""
    partial_hit_tokens: int
    """With the common tokens of the best matching next block too."""
    partial_hit_rate: float
    partial_lost: float


def block_size_rows(
    transcript: Transcript, sizes: list[int], *, advance: Callable[[float], None] | None = None
) -> list[BlockSizeRow]:
    """Serve a transcript one call at a time from an endless cache, for each block size.

    The cache holds full blocks of prompts and answers. A prompt's last token is always computed.
    advance: told of each call served, for `sizes` and once more for blocks of one token.
    """
    total = sum(len(one.prompt) for one in transcript.requests)
    most, _ = _serve(transcript, 1, advance)
    rows: list[BlockSizeRow] = []
    for size in sizes:
        whole, partial = _serve(transcript, size, advance)
        rows.append(
            BlockSizeRow(
                block_size=size,
                prompt_tokens=total,
                hit_tokens=whole,
                hit_rate=whole / total,
                lost=(most - whole) / total,
                partial_hit_tokens=partial,
                partial_hit_rate=partial / total,
                partial_lost=(most - partial) / total,
            )
        )
    return rows


def _serve(
    transcript: Transcript, size: int, advance: Callable[[float], None] | None
) -> tuple[int, int]:
    """Return tokens that hit as whole blocks, and with partial ones."""
    known = _Endless(size)
    whole = partial = 0
    for request in transcript.requests:
        blocks, more = known.find(request.prompt)
        whole += blocks
        partial += blocks + more
        known.keep(request)
        if advance is not None:
            advance(1)
    return whole, partial


class _Endless:
    """All full blocks so far, as a tree."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._children: list[dict[bytes, int]] = [{}]
        """By node, the blocks that follow it: their tokens and their node. Node 0 is the root."""

    def find(self, prompt: array[int]) -> tuple[int, int]:
        """Return the leading tokens in known blocks, and those in common with one that follows."""
        size, node = self._size, 0
        end = len(prompt) - 1
        for start in range(0, end, size):
            piece = prompt[start : min(start + size, end)]
            found = self._children[node].get(piece.tobytes())
            if found is None:
                return start, max((_common(piece, one) for one in self._children[node]), default=0)
            node = found
        return end // size * size, 0

    def keep(self, request: TokenizedRequest) -> None:
        """Take in what a call has written: all but the last token of its answer."""
        text, size, node = request.prompt + request.answer[:-1], self._size, 0
        for start in range(0, len(text) - size + 1, size):
            piece = text[start : start + size].tobytes()
            found = self._children[node].get(piece)
            if found is None:
                found = self._children[node][piece] = len(self._children)
                self._children.append({})
            node = found


def _common(tokens: array[int], block: bytes) -> int:
    """Return how many leading tokens of a prompt a block has."""
    other = array("i", block)
    pairs = zip(tokens, other, strict=False)
    return next((at for at, (one, two) in enumerate(pairs) if one != two), len(tokens))
