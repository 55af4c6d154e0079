"""Keys and values in eight-bit floats."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.contract.formats import KVFormat

_LARGEST = 448.0
_SHARE = 2.0**-4
_FLOOR = 2.0**-10


class Fp8Codec:
    """Rounds every number to the nearest of E4M3: 4 bits of exponent, 3 of mantissa, no scale.

    Numbers beyond 448 become NaN. Source of the format: Micikevicius et al., "FP8 formats for deep
    learning" (2022, arXiv 2209.05433).
    """

    @property
    def format(self) -> KVFormat:
        """One byte a number."""
        return KVFormat("fp8_e4m3", 8)

    @property
    def stored_dtype(self) -> torch.dtype:
        """Bytes: few operations of torch know its eight-bit floats."""
        return torch.uint8

    @property
    def exact_for(self) -> frozenset[str]:
        """None."""
        return frozenset()

    @property
    def largest(self) -> float:
        """Largest number of E4M3."""
        return _LARGEST

    def encode(self, x: Tensor) -> Tensor:
        """Round: [..., head_dim] → the same shape, in bytes."""
        wide = x.float()
        # torch cuts off at the largest number on some devices and not on others.
        wide = wide.masked_fill(wide.abs() > _LARGEST, float("nan"))
        return wide.to(torch.float8_e4m3fn).view(torch.uint8)

    def decode(self, stored: Tensor, head_dim: int) -> Tensor:
        """Widen: [..., head_dim] bytes → [..., head_dim] float32."""
        assert stored.shape[-1] == head_dim, f"{stored.shape[-1]} bytes for heads of {head_dim}"
        return stored.view(torch.float8_e4m3fn).float()

    def bound(self, x: Tensor) -> Tensor:
        """Half of the distance between two neighbours, subnormal ones included."""
        return (x.float().abs() * _SHARE).clamp_min(_FLOOR)
