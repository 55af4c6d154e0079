"""Attention over contiguous memory, written on its own: what paging must not change by one bit."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.attention.backend import StepInputs
from octavo.contract.model import ModelSpec

_KEYS = 64
_COPIES = 16


class ContiguousAttention:
    """Attention of one text that keeps its keys and values in order, without blocks or tables.

    It follows the arithmetic stated in `kernels.reference`, one query at a time; what lies behind
    a window is kept and masked. A second text needs a second object: steps of several slices are
    refused.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._windows = dict.fromkeys(spec.window_layers, spec.window)
        self._keys: dict[int, Tensor] = {}
        self._values: dict[int, Tensor] = {}
        self._start = 0

    @property
    def batch_invariant(self) -> bool:
        """True: there is never a batch."""
        return True

    @property
    def reads(self) -> frozenset[str] | None:
        """None: the arena is not used."""
        return None

    def plan(self, inputs: StepInputs) -> None:
        """Note where the step's tokens stand."""
        assert len(inputs.starts) == 1, f"one text only, got {len(inputs.starts)} slices"
        self._start = inputs.starts[0]

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Append keys and values; what lies after the step's start is replaced."""
        for memory, new in ((self._keys, k), (self._values, v)):
            old = memory.get(layer, new[:0])[: self._start]
            memory[layer] = torch.cat((old, new))

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attend, one query after the other."""
        keys, values = self._keys[layer], self._values[layer]
        window = self._windows.get(layer)
        rows = [
            _attend_one(query, keys[:end], values[:end], window)
            for end, query in enumerate(q, start=self._start + 1)
        ]
        return torch.stack(rows).to(q.dtype)


def _attend_one(query: Tensor, keys: Tensor, values: Tensor, window: int | None) -> Tensor:
    """Attend with the last position's query: [heads, head_dim] → the same shape, float32."""
    length, kv_heads, head_dim = keys.shape
    scaled = query.float() * head_dim**-0.5
    # A product of many equal rows, because one row alone may have other bits.
    rows = scaled.view(kv_heads, -1, head_dim).repeat(1, _COPIES, 1)
    missing = -length % _KEYS
    pad = keys.new_zeros(missing, kv_heads, head_dim)
    wide_keys = torch.cat((keys, pad)).float().permute(1, 2, 0).contiguous()
    wide_values = torch.cat((values, pad)).float().permute(1, 0, 2).contiguous()
    tiles = (length + missing) // _KEYS
    scores = [rows @ part for part in wide_keys.chunk(tiles, dim=2)]
    if missing:
        scores[-1][..., _KEYS - missing :] = -torch.inf
    if window is not None:
        for number, score in enumerate(scores):
            score[..., : max(length - window - number * _KEYS, 0)] = -torch.inf
    peak = torch.cat(scores, dim=2).max(dim=2, keepdim=True).values
    below, above = torch.zeros_like(peak), torch.zeros_like(rows)
    for score, part in zip(scores, wide_values.chunk(tiles, dim=1), strict=True):
        share = (score - peak).exp()
        below = below + share.sum(dim=2, keepdim=True)
        above = above + share @ part
    return (above / below)[:, : rows.shape[1] // _COPIES].reshape(query.shape)
