"""Numbers stored as they are, in one of the dtypes that weights may have."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.contract.formats import FORMATS, KVFormat
from octavo.kernels.dtypes import TORCH_DTYPES


class CastCodec:
    """Rounds every number to the nearest one of a dtype; what has that dtype is kept bit for bit.

    name: float32, float16 or bfloat16.
    """

    def __init__(self, name: str) -> None:
        self._dtype = TORCH_DTYPES[name]
        self._format = FORMATS[name]
        self._info = torch.finfo(self._dtype)
        self._exact_for = frozenset(
            other for other, dtype in TORCH_DTYPES.items() if _holds(self._dtype, dtype)
        )

    @property
    def format(self) -> KVFormat:
        """Name and bytes."""
        return self._format

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of the numbers."""
        return self._dtype

    @property
    def exact_for(self) -> frozenset[str]:
        """The dtype itself; for float32 all dtypes."""
        return self._exact_for

    @property
    def largest(self) -> float:
        """Largest number of the dtype."""
        return self._info.max

    def encode(self, x: Tensor) -> Tensor:
        """Round: [..., head_dim] → the same shape."""
        return x.to(self._dtype)

    def decode(self, stored: Tensor, head_dim: int) -> Tensor:
        """Widen to float32: [..., head_dim] → the same shape."""
        assert stored.shape[-1] == head_dim, f"{stored.shape[-1]} numbers for heads of {head_dim}"
        return stored.float()

    def bound(self, x: Tensor) -> Tensor:
        """Half of the distance between two neighbours of the dtype, subnormal ones included."""
        if self._dtype is torch.float32:
            return torch.zeros_like(x[..., :1], dtype=torch.float32)
        half = self._info.eps / 2
        return x.float().abs() * half + self._info.smallest_normal * half


def _holds(wide: torch.dtype, dtype: torch.dtype) -> bool:
    """True if every number of a dtype is one of the wide dtype too."""
    ours, theirs = torch.finfo(wide), torch.finfo(dtype)
    return ours.max >= theirs.max and ours.eps <= theirs.eps and ours.tiny <= theirs.tiny
