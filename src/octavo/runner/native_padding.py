"""Sizes of a model, filled up with zeros to what the native executor's kernels read at once.

The one place that knows where the zeros stand. Rows are filled up at their end, to whole groups of
32. Heads are filled up to whole tiles of 16: each half of a query or a key by itself, since pair i
of a rotation is number i of either half; values at their end. A size that is whole stays as it is.
"""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.contract.layout import KVLayout, kv_layout
from octavo.contract.model import ModelSpec
from octavo.cpu import NativeUnfit

_GROUP = 32
TILE = 16
"""Numbers of a head, and tokens, that a kernel takes at once."""

_Number = TypeVar("_Number", bound=np.generic)


def native_layout(spec: ModelSpec, *, block_size: int, dtype: str) -> KVLayout:
    """Describe the KV memory of a model on the native executor, whose heads are whole tiles.

    Raises NativeUnfit for a block size that is no multiple of 16.
    """
    if block_size % TILE:
        raise NativeUnfit(
            f"block_size is {block_size}, but the backend cpu needs a multiple of {TILE}",
            "change it",
        )
    stored = msgspec.structs.replace(spec, head_dim=whole(spec.head_dim, TILE))
    return kv_layout(stored, block_size=block_size, dtype=dtype)


def whole(count: int, unit: int = _GROUP) -> int:
    """Round up to whole groups, or other units."""
    return -(-count // unit) * unit


def filled_up(values: NDArray[_Number], length: int) -> NDArray[_Number]:
    """Add zeros at the end of the first axis."""
    missing = length - len(values)
    if not missing:
        return values
    return np.pad(values, ((0, missing), *(((0, 0),) * (values.ndim - 1))))


class Heads:
    """Puts the numbers of a model's heads where the kernels look for them."""

    def __init__(self, size: int) -> None:
        """Take the numbers of a head."""
        self._size, self._stored = size, whole(size, TILE)
        place = np.arange(size)
        second = place >= size // 2
        self._halves: NDArray[Any] = place + second * ((self._stored - size) // 2)

    def halves(self, values: NDArray[_Number]) -> NDArray[_Number]:
        """Fill up both halves of all heads along the first axis: of queries or keys."""
        return self._spread(values, self._halves)

    def ends(self, values: NDArray[_Number]) -> NDArray[_Number]:
        """Fill up the end of all heads along the first axis: of values."""
        return self._spread(values, np.arange(self._size))

    def pairs(self, values: NDArray[_Number]) -> NDArray[_Number]:
        """Fill up one number for each pair of a head; the pairs that are added do not turn."""
        return filled_up(values, self._stored // 2)

    def _spread(self, values: NDArray[_Number], places: NDArray[Any]) -> NDArray[_Number]:
        if self._size == self._stored:
            return values
        heads, beyond = len(values) // self._size, values.shape[1:]
        spread = np.zeros((heads, self._stored, *beyond), values.dtype)
        spread[:, places] = values.reshape(heads, self._size, *beyond)
        return spread.reshape(-1, *beyond)
