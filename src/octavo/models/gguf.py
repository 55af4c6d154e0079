"""Read GGUF files: metadata, tensor table, weights as float32.

Knows the container only; what the tensors mean is the business of `families`.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo import cpu
from octavo.errors import ModelError
from octavo.models.mapping import drop_pages, map_file

VERSIONS = (2, 3)
"""Versions of the container that are read; they differ in nothing that we use."""

_AGAIN = "The file is damaged or not complete: download it again."

_SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
_FLOATS = {"F32": "<f4", "F16": "<f2"}

_STRING = 8
_ARRAY = 9

_LONG = 1000
"""Arrays of so many entries are read when asked for."""

_MAX_DIMS = 4
_MAX_NESTING = 4
"""Arrays of arrays are legal; a file that nests deeper is broken, not rich."""


@dataclass(frozen=True, slots=True)
class GGMLType:
    """One way to store numbers: `block` of them take `block_bytes` bytes."""

    number: int
    name: str
    block: int
    block_bytes: int


_TYPES = {
    kind.number: kind
    for kind in (
        GGMLType(0, "F32", 1, 4),
        GGMLType(1, "F16", 1, 2),
        GGMLType(2, "Q4_0", 32, 18),
        GGMLType(3, "Q4_1", 32, 20),
        GGMLType(6, "Q5_0", 32, 22),
        GGMLType(7, "Q5_1", 32, 24),
        GGMLType(8, "Q8_0", 32, 34),
        GGMLType(10, "Q2_K", 256, 84),
        GGMLType(11, "Q3_K", 256, 110),
        GGMLType(12, "Q4_K", 256, 144),
        GGMLType(13, "Q5_K", 256, 176),
        GGMLType(14, "Q6_K", 256, 210),
        GGMLType(30, "BF16", 1, 2),
    )
}

_UNREAD_TYPES = {
    9: "Q8_1",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
"""For errors."""


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """Where one tensor lies in the file."""

    name: str
    shape: tuple[int, ...]
    """Rows first, so a matrix is [out, in]; the file itself counts the other way round."""
    kind: GGMLType
    offset: int
    """Bytes from the start of the file."""
    num_bytes: int


class GGUFMetadata(Mapping[str, Any]):
    """Values of seven scalar kinds, and lists of them; long lists are read when first asked for.

    Reading a long list raises `ModelError` if it holds text that is not UTF-8.
    """

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}  # as the class says, or a list that is read later

    def __getitem__(self, key: str) -> Any:  # as the class says
        value = self._values[key]
        if isinstance(value, _LongList):
            value = self._values[key] = value.read()
        return value

    def __setitem__(self, key: str, value: Any) -> None:  # as in __init__
        self._values[key] = value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def length(self, key: str) -> int | None:
        """Return the number of entries of a list, which is not read; None for anything else."""
        value = self._values.get(key)
        return len(value) if isinstance(value, (list, _LongList)) else None


@dataclass(frozen=True, slots=True)
class _LongList:
    """A list that is still in the file."""

    count: int
    read: Callable[[], list[Any]]

    def __len__(self) -> int:
        return self.count


class GGUFFile:
    """An open GGUF file; weights are read from the map when asked for.

    Raises `ModelError` if the path is not a complete GGUF file whose tensors are all of a
    type that can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        header = _Header(path, self._data)
        self.metadata: GGUFMetadata = header.metadata
        self.tensors: dict[str, GGUFTensor] = header.tensors

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
        row_bytes = entry.shape[-1] // entry.kind.block * entry.kind.block_bytes
        rows, shape = self.raw(name).reshape(-1, row_bytes), entry.shape
        if part is not None:
            rows, shape = rows.reshape(shape[0], -1, row_bytes)[part], shape[1:]
        return np.array(_dequantized(rows, entry.kind), np.float32).reshape(shape)


def _dequantized(rows: NDArray[np.uint8], kind: GGMLType) -> NDArray[Any]:  # floats of any width
    if kind.name in _FLOATS:
        return rows.view(_FLOATS[kind.name])
    # Norms and biases, which are floats, do not need it.
    from octavo.models.dequantize import dequantize

    return dequantize(rows, kind.name)


def _map(path: Path) -> mmap.mmap:
    try:
        if path.is_file() and path.stat().st_size == 0:
            raise ModelError(f"{path} is empty. {_AGAIN}")
        return map_file(path)
    except IsADirectoryError:
        raise ModelError(f"{path} is a folder; a GGUF model is one file. Name the file.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None


class _Header:
    """Everything before the weights, read once from front to back."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._position = 0
        num_tensors, num_keys = self._start()
        self.metadata = self._read_metadata(num_keys)
        self.tensors = self._read_tensors(num_tensors)

    def _start(self) -> tuple[int, int]:
        magic = self._data[:4]
        if magic != b"GGUF":
            raise ModelError(
                f"{self._path} is not a GGUF file: it starts with {magic!r}, not b'GGUF'. "
                "Give a GGUF file or a folder with config.json and safetensors."
            )
        self._position = 4
        version = self._number("I", "the version")
        if version not in VERSIONS:
            order = " (it is big-endian)" if version > 0xFFFF else ""
            raise ModelError(
                f"{self._path} is GGUF version {version}{order}; versions 2 and 3, little-endian, "
                "are read. Convert the model again with a current converter."
            )
        num_tensors = self._number("Q", "the number of tensors")
        num_keys = self._number("Q", "the number of metadata keys")
        # A tensor takes at least 24 bytes of header, a key at least 13.
        self._check_room(num_tensors * 24 + num_keys * 13, "the header")
        return num_tensors, num_keys

    def _read_metadata(self, num_keys: int) -> GGUFMetadata:
        metadata = GGUFMetadata()
        for index in range(num_keys):
            key = self._string(f"the name of metadata key {index}")
            kind = self._number("I", f"the type of {key!r}")
            metadata[key] = self._value(kind, f"metadata {key!r}", 0)
        return metadata

    def _read_tensors(self, num_tensors: int) -> dict[str, GGUFTensor]:
        table: list[tuple[str, tuple[int, ...], GGMLType, int]] = []
        for index in range(num_tensors):
            name = self._string(f"the name of tensor {index}")
            num_dims = self._number("I", f"the shape of tensor {name!r}")
            if not 1 <= num_dims <= _MAX_DIMS:
                raise self._broken(
                    f"tensor {name!r} has {num_dims} dimensions, not 1 to {_MAX_DIMS}"
                )
            dims = self._numbers("Q" * num_dims, f"the shape of tensor {name!r}")
            number = self._number("I", f"the type of tensor {name!r}")
            offset = self._number("Q", f"the offset of tensor {name!r}")
            kind = _TYPES.get(number)
            if kind is None:
                raise ModelError(
                    f"{self._path}: tensor {name!r} has type {_type_name(number)}, which is not "
                    f"read. Types read: {', '.join(known.name for known in _TYPES.values())}. "
                    "Get the model in one of them, or quantize it again."
                )
            table.append((name, tuple(reversed(dims)), kind, offset))
        start = self._start_of_data()
        tensors = {
            name: self._place(name, shape, kind, start + offset)
            for name, shape, kind, offset in table
        }
        if len(tensors) < num_tensors:
            raise self._broken("two tensors have the same name")
        return tensors

    def _start_of_data(self) -> int:
        alignment = self.metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._broken(f"general.alignment is {alignment!r}, not a positive number")
        return -(-self._position // alignment) * alignment

    def _place(self, name: str, shape: tuple[int, ...], kind: GGMLType, offset: int) -> GGUFTensor:
        if 0 in shape or shape[-1] % kind.block:
            raise self._broken(
                f"tensor {name!r} has shape {list(shape)}, but rows of {kind.name} are multiples "
                f"of {kind.block}"
            )
        num_bytes = math.prod(shape) // kind.block * kind.block_bytes
        if offset + num_bytes > self._size:
            raise ModelError(
                f"{self._path}: tensor {name!r} ends at byte {offset + num_bytes:,}, but the file "
                f"has only {self._size:,}. {_AGAIN}"
            )
        return GGUFTensor(name, shape, kind, offset, num_bytes)

    def _value(self, kind: int, what: str, nesting: int) -> Any:  # see GGUFMetadata
        if kind == _STRING:
            return self._string(what)
        if kind == _ARRAY:
            return self._array(what, nesting)
        code = _SCALARS.get(kind)
        if code is None:
            raise self._broken(f"{what} has the unknown type {kind}")
        return self._number(code, what)

    def _array(self, what: str, nesting: int) -> list[Any] | _LongList:  # as in _value
        if nesting >= _MAX_NESTING:
            raise self._broken(f"{what} is nested more than {_MAX_NESTING} times")
        kind = self._number("I", what)
        count = self._number("Q", what)
        later, here = nesting == 0 and count >= _LONG, copy(self)
        code = _SCALARS.get(kind)
        if code is not None:
            num_bytes = count * struct.calcsize(f"<{code}")
            self._check_room(num_bytes, what)
            if later:
                self._position += num_bytes
                return _LongList(count, lambda: list(here._numbers(f"{count}{code}", what)))
            return list(self._numbers(f"{count}{code}", what))
        # A string takes at least its 8-byte length, an array its 12-byte head.
        self._check_room(count * 8, what)
        if kind == _STRING and later:
            self._skip_strings(count, what)
            return _LongList(count, lambda: here._strings(count, what))
        if kind == _STRING:
            return self._strings(count, what)
        return [self._value(kind, what, nesting + 1) for _ in range(count)]

    def _strings(self, count: int, what: str) -> list[str]:
        """Read `count` strings; the vocabulary and its merges are 100,000 of them."""
        native = cpu.native() if count >= _LONG else None
        if native is not None:
            try:
                strings, self._position = native.read_strings(self._data, self._position, count)
            except ValueError:
                pass  # what follows finds out what is wrong
            else:
                return strings
        starts = [self._position]
        starts += self._find_ends(count, what)
        try:
            return [self._data[a + 8 : b].decode() for a, b in pairwise(starts)]
        except UnicodeDecodeError:
            raise self._broken(f"{what} holds text that is not UTF-8") from None

    def _skip_strings(self, count: int, what: str) -> None:
        native = cpu.native()
        if native is not None:
            try:
                self._position = native.skip_strings(self._data, self._position, count)
            except ValueError:
                pass  # as above
            else:
                return
        self._find_ends(count, what)

    def _find_ends(self, count: int, what: str) -> list[int]:
        """Go on behind `count` strings; return where each ends."""
        data, size, position = self._data, self._size, self._position
        length_at = struct.Struct("<Q").unpack_from
        ends: list[int] = []
        try:
            for _ in range(count):
                position += 8 + length_at(data, position)[0]
                if position > size:
                    raise self._cut(what, position)
                ends.append(position)
        except struct.error:
            raise self._cut(what, position + 8) from None
        self._position = position
        return ends

    def _string(self, what: str) -> str:
        return self._strings(1, what)[0]

    def _number(self, code: str, what: str) -> Any:  # int, float or bool, by code
        return self._numbers(code, what)[0]

    def _numbers(self, code: str, what: str) -> tuple[Any, ...]:  # as in _number
        layout = struct.Struct(f"<{code}")
        self._check_room(layout.size, what)
        values = layout.unpack_from(self._data, self._position)
        self._position += layout.size
        return values

    def _check_room(self, num_bytes: int, what: str) -> None:
        if self._position + num_bytes > self._size:
            raise self._cut(what, self._position + num_bytes)

    def _cut(self, what: str, end: int) -> ModelError:
        return self._broken(f"{what} needs {end:,} bytes of file, which has {self._size:,}")

    def _broken(self, reason: str) -> ModelError:
        return ModelError(f"{self._path}: {reason}. {_AGAIN}")


def _type_name(number: int) -> str:
    return _UNREAD_TYPES.get(number, f"number {number}")
