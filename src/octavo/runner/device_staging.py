"""Many arrays between host and device as one copy each way, without waiting for the device."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Array = NDArray[Any]

_ALIGNED = 16
"""Bytes: each array begins at a multiple of it. Kernels are compiled for such places: others would
have them compiled once more."""
_TENSOR_TYPES = {
    np.dtype(np.int32): torch.int32,
    np.dtype(np.int64): torch.int64,
    np.dtype(np.float64): torch.float64,
}
_ARRAY_TYPES = {
    torch.int32: np.int32,
    torch.int64: np.int64,
    torch.float32: np.float32,
    torch.float64: np.float64,
}


def send(arrays: list[Array], device: torch.device) -> list[Tensor]:
    """Copy arrays of int32, int64 or float64 to a device, on the current stream.

    The arrays may be changed as soon as this returns.
    """
    starts: list[int] = []
    size = 0
    for array in arrays:
        starts.append(size)
        size += -(-array.nbytes // _ALIGNED) * _ALIGNED
    # torch does not lend pinned memory again before the copies out of it have been made.
    host = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    room = host.numpy()
    for array, start in zip(arrays, starts, strict=True):
        flat = np.ascontiguousarray(array).reshape(-1)
        room[start : start + array.nbytes] = flat.view(np.uint8)
    there = host.to(device, non_blocking=True)
    return [
        there[start : start + array.nbytes].view(_TENSOR_TYPES[array.dtype]).view(array.shape)
        for array, start in zip(arrays, starts, strict=True)
    ]


class Fetched:
    """Tensors of one device on their way to the host, on the stream that was current."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._kinds = [(tuple(one.shape), _ARRAY_TYPES[one.dtype]) for one in tensors]
        there = torch.cat([one.contiguous().view(-1).view(torch.uint8) for one in tensors])
        if there.device.type == "cuda":
            self._host = torch.empty(there.shape, dtype=torch.uint8, pin_memory=True)
            self._host.copy_(there, non_blocking=True)
        else:
            self._host = there.cpu()

    def arrays(self) -> list[Array]:
        """Return them in the order given; they mean nothing before the stream has come so far."""
        room = self._host.numpy()
        found: list[Array] = []
        start = 0
        for shape, kind in self._kinds:
            end = start + int(np.prod(shape)) * np.dtype(kind).itemsize
            found.append(room[start:end].view(kind).reshape(shape))
            start = end
        return found
