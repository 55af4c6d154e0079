"""Read safetensors files without torch, bfloat16 included.

Knows the container only; what the tensors mean is the business of `families`.
"""

from __future__ import annotations

import json
import math
import mmap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.errors import ModelError
from octavo.models.mapping import drop_pages, map_file

_AGAIN = "The file is damaged or not complete: download it again."

DTYPES = {"F32": ("float32", 4), "F16": ("float16", 2), "BF16": ("bfloat16", 2)}
"""Our name and the bytes of one number, by the name in the file."""


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where one tensor lies in its file."""

    shape: tuple[int, ...]
    dtype: str
    """float32, float16 or bfloat16."""
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class SafetensorsFile:
    """An open safetensors file; weights are read from the map when asked for.

    Raises `ModelError` if the path is not a complete safetensors file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            size = path.stat().st_size
            if size < 8:
                raise ModelError(f"{path} has only {size} bytes. {_AGAIN}")
            self._data = map_file(path)
        except OSError as error:
            raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
        self.tensors: dict[str, StoredTensor] = _read_table(path, self._data)

    def raw(self, name: str) -> NDArray[np.uint8]:
        """Return a tensor's bytes as they lie in the file: a read-only view, nothing is copied."""
        entry = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, entry.num_bytes, entry.offset)

    def release(self, name: str) -> None:
        """Give back the memory that a tensor's part of the map takes; `raw` stays of use."""
        entry = self.tensors[name]
        drop_pages(self._data, entry.offset, entry.num_bytes)

    def tensor(self, name: str, part: int | None = None) -> NDArray[np.float32]:
        """Return a tensor as float32 in an array of its own; part: one entry of its first axis."""
        entry = self.tensors[name]
        raw, shape = self.raw(name), entry.shape
        if part is not None:
            raw, shape = raw.reshape(shape[0], -1)[part], shape[1:]
        match entry.dtype:
            case "bfloat16":
                # bfloat16 is the upper half of a float32.
                values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
            case "float16":
                values = raw.view("<f2").astype(np.float32)
            case _:
                values = raw.view("<f4").astype(np.float32)
        return values.reshape(shape)


def _read_table(path: Path, data: mmap.mmap) -> dict[str, StoredTensor]:
    start = 8 + int.from_bytes(data[:8], "little")
    if start > len(data):
        raise ModelError(
            f"{path}: the header ends at byte {start:,}, but the file has only {len(data):,}. "
            f"{_AGAIN}"
        )
    try:
        header = json.loads(data[8:start])
    except (ValueError, RecursionError):
        raise ModelError(f"{path}: the header is not JSON. {_AGAIN}") from None
    if not isinstance(header, dict):
        raise ModelError(f"{path}: the header is not a table of tensors. {_AGAIN}")
    header.pop("__metadata__", None)
    return {name: _entry(path, name, row, start, len(data)) for name, row in header.items()}


def _entry(path: Path, name: str, row: Any, start: int, size: int) -> StoredTensor:  # JSON
    try:
        dtype_name, shape = str(row["dtype"]), tuple(row["shape"])
        begin, end = row["data_offsets"]
        if not all(isinstance(number, int) and number >= 0 for number in (*shape, begin, end)):
            raise ValueError
    except (KeyError, TypeError, ValueError):
        broken = f"{path}: the header's row of tensor {name!r} is broken. {_AGAIN}"
        raise ModelError(broken) from None
    if dtype_name not in DTYPES:
        raise ModelError(
            f"{path}: tensor {name!r} has dtype {dtype_name}, which is not read. "
            f"Dtypes read: {', '.join(DTYPES)}. Get the model in one of them, or as GGUF."
        )
    dtype, item_bytes = DTYPES[dtype_name]
    if end - begin != math.prod(shape) * item_bytes:
        raise ModelError(
            f"{path}: tensor {name!r} of shape {list(shape)} and dtype {dtype_name} has "
            f"{end - begin:,} bytes. {_AGAIN}"
        )
    if start + end > size:
        raise ModelError(
            f"{path}: tensor {name!r} ends at byte {start + end:,}, but the file has only "
            f"{size:,}. {_AGAIN}"
        )
    return StoredTensor(shape, dtype, start + begin, end - begin)
