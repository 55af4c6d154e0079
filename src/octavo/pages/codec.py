"""What stores keys and values: a codec of single vectors."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from octavo.contract.formats import KVFormat


class KVCodec(Protocol):
    """Stores each vector of a head by itself, and reads it back as float32.

    A pure function of the vector: the same numbers give the same bytes, whatever else is in the
    tensor. So blocks may be shared, copied and moved as bytes, and strict mode keeps its promise.
    Codecs that need a whole block, such as those with a scale per channel, do not fit here: they
    will need a place for the open block of each text.
    """

    @property
    def format(self) -> KVFormat:
        """Name and bytes. A codec with parameters has them in its name, which keeps texts apart."""
        ...

    @property
    def stored_dtype(self) -> torch.dtype:
        """Of what `encode` returns; uint8 where a vector is more than a row of numbers."""
        ...

    @property
    def exact_for(self) -> frozenset[str]:
        """Dtypes whose numbers come back bit for bit: none for a lossy codec."""
        ...

    @property
    def largest(self) -> float:
        """Largest magnitude of a number that can be stored."""
        ...

    def encode(self, x: Tensor) -> Tensor:
        """Store vectors: [..., head_dim] of any float dtype → [..., width] of `stored_dtype`.

        A row of the result is `format.vector_bytes(head_dim)` long, in bytes. Where x is not
        finite, so is what `decode` makes of it, in at least one place of the vector.
        """
        ...

    def decode(self, stored: Tensor, head_dim: int) -> Tensor:
        """Read vectors back: [..., width] of `stored_dtype` → [..., head_dim] float32."""
        ...

    def bound(self, x: Tensor) -> Tensor:
        """Return the largest error of each number of these vectors; it broadcasts to x's shape."""
        ...


KVCodecs = tuple[KVCodec, KVCodec]
"""The codec of keys, and that of values."""
