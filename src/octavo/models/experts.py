"""The feed-forward part of a layer: one dense network, or a mixture of experts.

Every row is treated alone: what it gets does not depend on its neighbours, only (in the last
bits) on how many rows share a product, which row tiles fix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.contract.model import ExpertSpec
from octavo.kernels.linear import linear
from octavo.models.rows import RowTiles

# (1 + tanh(x)) / 2 is 1 / (1 + exp(-2x)). Source: Hendrycks and Gimpel 2016, arXiv 1606.08415.
_GELU_SLOPE = 2 * math.sqrt(2 / math.pi)
_GELU_CUBE = 0.044715


@dataclass(frozen=True, slots=True)
class Dense:
    """A gated network: down(activation(gate(x)) * up(x))."""

    gate_up: Tensor
    """[2 * intermediate, hidden]: gate, up."""
    down: Tensor
    """[hidden, intermediate]"""
    gelu: bool = False
    """The activation is GELU, approximated by tanh, instead of SiLU."""

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it to rows: [rows, hidden] → [rows, hidden]."""
        gate, up = linear(x, self.gate_up).chunk(2, dim=-1)
        # Not F.silu: on a CPU its last elements take another path, so that bits depend on place.
        gate = gate.float()
        slope = _GELU_SLOPE * (gate + _GELU_CUBE * gate * gate * gate) if self.gelu else gate
        active = (gate / (1.0 + torch.exp(-slope))).to(up.dtype)
        return linear(active * up, self.down)


@dataclass(frozen=True, slots=True)
class Mixture:
    """Experts of one layer, and the matrix that chooses between them."""

    spec: ExpertSpec
    router: Tensor
    """[experts, hidden]"""
    experts: tuple[Dense, ...]

    def route(self, x: Tensor) -> Tensor:
        """Weigh the experts for rows: [rows, hidden] → [rows, experts] float32, 0 if not chosen."""
        shares = torch.softmax(linear(x, self.router).float(), dim=-1)
        top, chosen = torch.topk(shares, self.spec.per_token, dim=-1)
        if self.spec.normalized:
            top = top / top.sum(dim=-1, keepdim=True)
        return torch.zeros_like(shares).scatter_(1, chosen, top)

    def __call__(self, x: Tensor, tiles: RowTiles) -> Tensor:
        """Apply to each row the experts chosen for it: [rows, hidden] → [rows, hidden].

        An expert's rows are gathered and computed in row tiles, as rows outside are; results are
        added in the order of the experts, so that a row's sum never depends on other rows.
        """
        weights = self.route(x)
        # Sorted by expert, then by row.
        numbers, rows = weights.T.nonzero().unbind(1)
        counts = torch.bincount(numbers, minlength=len(self.experts)).tolist()
        out = torch.zeros_like(x)
        for number, mine in enumerate(rows.split(counts)):
            if counts[number]:
                shares = weights[mine, number, None]
                result = self._expert_rows(number, x[mine], tiles).float() * shares
                out.index_add_(0, mine, result.to(out.dtype))
        return out

    def _expert_rows(self, number: int, x: Tensor, tiles: RowTiles) -> Tensor:
        sizes = tiles.split(len(x))
        padded = F.pad(x, (0, 0, 0, sum(sizes) - len(x)))
        parts = [self.experts[number](piece) for piece in padded.split(sizes)]
        return (parts[0] if len(parts) == 1 else torch.cat(parts))[: len(x)]
