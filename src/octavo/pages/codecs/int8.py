"""Eight bits a number and one scale a vector."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.contract.formats import FORMATS, KVFormat

_STEPS = 127
# Half a step, and what rounding in float32 adds to it.
_SHARE = 0.5 / _STEPS * (1 + 2**-12)


class Int8Codec:
    """Symmetric absmax quantization: x ≈ scale * q, with whole q from -127 to 127.

    scale = max |x| / 127 of the vector, in float32, stored behind its numbers. The error of a
    number is at most half a step, max |x| / 254. Source: the absmax quantization of Dettmers et
    al., "LLM.int8()" (2022, arXiv 2208.07339), section 2.1, applied to each vector of KV.
    """

    @property
    def format(self) -> KVFormat:
        """One byte a number, and the scale."""
        return FORMATS["int8"]

    @property
    def stored_dtype(self) -> torch.dtype:
        """Bytes: numbers, then the scale."""
        return torch.uint8

    @property
    def exact_for(self) -> frozenset[str]:
        """None."""
        return frozenset()

    @property
    def largest(self) -> float:
        """Half of the range of float32, whose last number might be rounded up to infinity."""
        return torch.finfo(torch.float32).max / 2

    def encode(self, x: Tensor) -> Tensor:
        """Quantize: [..., head_dim] → [..., head_dim + 4] bytes."""
        wide = x.float()
        # Not a division: by a constant, a GPU does it with one bit less than a CPU.
        scale = wide.abs().amax(dim=-1, keepdim=True) * (1 / _STEPS)
        # A vector of zeros has scale 0; so has one of subnormal numbers, which are as good as zero.
        steps = wide / torch.where(scale > 0, scale, 1.0)
        numbers = steps.round().clamp(-_STEPS, _STEPS).to(torch.int8)
        return torch.cat((numbers.view(torch.uint8), _apart(scale).view(torch.uint8)), dim=-1)

    def decode(self, stored: Tensor, head_dim: int) -> Tensor:
        """Multiply by the scale: [..., head_dim + 4] bytes → [..., head_dim]."""
        numbers = stored[..., :head_dim].view(torch.int8).float()
        return numbers * _apart(stored[..., head_dim:]).view(torch.float32)

    def bound(self, x: Tensor) -> Tensor:
        """Half a step of each vector: [..., 1]."""
        largest = x.float().abs().amax(dim=-1, keepdim=True)
        return largest * _SHARE + torch.finfo(torch.float32).smallest_normal


def _apart(x: Tensor) -> Tensor:
    """Copy to memory of its own, so that it can be seen as items of another size."""
    return x.clone(memory_format=torch.contiguous_format)
