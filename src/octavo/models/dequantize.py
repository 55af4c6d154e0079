"""Weights in few bits, as float32: the block types of GGML.

A block stands for 32 numbers or 256. Each of them is scale x code + offset; what holds scale and
offset, and how the bits of the codes lie in the block, is what the types differ in. Source: ggml's
`ggml-common.h`, which declares the blocks; the fields here have the names that they have there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_Bytes = NDArray[np.uint8]
_Floats = NDArray[np.float32]
_Parts = tuple[_Floats, NDArray[Any], _Floats | None]
"""Scales [blocks, parts, 1], codes [blocks, parts, numbers of a part], offsets like the scales."""

_LAYOUTS = {
    "Q4_0": np.dtype([("d", "<f2"), ("qs", "u1", 16)]),
    "Q4_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("qs", "u1", 16)]),
    "Q5_0": np.dtype([("d", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]),
    "Q5_1": np.dtype([("d", "<f2"), ("m", "<f2"), ("qh", "u1", 4), ("qs", "u1", 16)]),
    "Q8_0": np.dtype([("d", "<f2"), ("qs", "i1", 32)]),
    "Q2_K": np.dtype([("scales", "u1", 16), ("qs", "u1", 64), ("d", "<f2"), ("dmin", "<f2")]),
    "Q3_K": np.dtype([("hmask", "u1", 32), ("qs", "u1", 64), ("scales", "u1", 12), ("d", "<f2")]),
    "Q4_K": np.dtype([("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qs", "u1", 128)]),
    "Q5_K": np.dtype(
        [("d", "<f2"), ("dmin", "<f2"), ("scales", "u1", 12), ("qh", "u1", 32), ("qs", "u1", 128)]
    ),
    "Q6_K": np.dtype([("ql", "u1", 128), ("qh", "u1", 64), ("scales", "i1", 16), ("d", "<f2")]),
}


def dequantize(rows: NDArray[np.uint8], kind: str) -> NDArray[np.float32]:
    """Return the numbers of rows of whole blocks: [rows, bytes] becomes [rows, numbers].

    kind: the name of a type of 2 to 8 bits, or BF16.
    """
    if kind == "BF16":
        # The upper half of a float32.
        return (rows.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = np.ascontiguousarray(rows).reshape(-1).view(_LAYOUTS[kind])
    scales, codes, offsets = _READERS[kind](blocks)
    values = scales * codes.astype(np.float32)
    if offsets is not None:
        values += offsets
    return values.reshape(len(rows), -1)


def _factor(blocks: NDArray[Any], name: str) -> _Floats:
    """Return one number of each block: [blocks, 1, 1]."""
    return blocks[name].astype(np.float32)[:, None, None]


def _bits(data: _Bytes, width: int, run: int) -> _Bytes:
    """Cut runs of bytes into their fields of `width` bits, the lowest fields of all bytes first.

    Returns [blocks, numbers].
    """
    shifts = np.arange(0, 8, width, dtype=np.uint8)[:, None]
    fields = data.reshape(len(data), -1, 1, run) >> shifts & np.uint8((1 << width) - 1)
    return fields.reshape(len(data), -1)


def _fifth_bits(blocks: NDArray[Any]) -> _Bytes:
    """Return the highest bits of a block of 32 codes: bit i is number i's."""
    return np.unpackbits(blocks["qh"], axis=1, bitorder="little") << np.uint8(4)


def _q4_0(blocks: NDArray[Any]) -> _Parts:
    codes = _bits(blocks["qs"], 4, 16).astype(np.int8) - np.int8(8)
    return _factor(blocks, "d"), codes[:, None], None


def _q4_1(blocks: NDArray[Any]) -> _Parts:
    return _factor(blocks, "d"), _bits(blocks["qs"], 4, 16)[:, None], _factor(blocks, "m")


def _q5_0(blocks: NDArray[Any]) -> _Parts:
    codes = _bits(blocks["qs"], 4, 16) | _fifth_bits(blocks)
    return _factor(blocks, "d"), (codes.astype(np.int8) - np.int8(16))[:, None], None


def _q5_1(blocks: NDArray[Any]) -> _Parts:
    codes = _bits(blocks["qs"], 4, 16) | _fifth_bits(blocks)
    return _factor(blocks, "d"), codes[:, None], _factor(blocks, "m")


def _q8_0(blocks: NDArray[Any]) -> _Parts:
    return _factor(blocks, "d"), blocks["qs"][:, None], None


def _q2_k(blocks: NDArray[Any]) -> _Parts:
    codes = _bits(blocks["qs"], 2, 32).reshape(-1, 16, 16)
    both = blocks["scales"][:, :, None]
    return (
        _factor(blocks, "d") * (both & 15).astype(np.float32),
        codes,
        -(_factor(blocks, "dmin") * (both >> 4).astype(np.float32)),
    )


def _q3_k(blocks: NDArray[Any]) -> _Parts:
    low, high = np.split(blocks["scales"], [8], axis=1)
    factors = _bits(low, 4, 8) | _bits(high, 2, 4) << np.uint8(4)
    # Where the third bit is not set, 4 is taken off.
    missing = (1 - _bits(blocks["hmask"], 1, 32).astype(np.int8)) * np.int8(4)
    codes = _bits(blocks["qs"], 2, 32).astype(np.int8) - missing
    scales = (factors.astype(np.int8) - np.int8(32)).astype(np.float32)[:, :, None]
    return _factor(blocks, "d") * scales, codes.reshape(-1, 16, 16), None


def _six_bit_factors(packed: _Bytes) -> tuple[_Bytes, _Bytes]:
    """Return the factors of scales and of minima of eight parts, from 12 bytes: [blocks, 8]."""
    first, second, third = np.split(packed, 3, axis=1)
    low, high = np.uint8(15), np.uint8(63)
    scales = [first & high, third & low | first >> 6 << 4]
    minima = [second & high, third >> 4 | second >> 6 << 4]
    return np.concatenate(scales, axis=1), np.concatenate(minima, axis=1)


def _with_minima(blocks: NDArray[Any], codes: _Bytes) -> _Parts:
    scales, minima = _six_bit_factors(blocks["scales"])
    return (
        _factor(blocks, "d") * scales.astype(np.float32)[:, :, None],
        codes.reshape(-1, 8, 32),
        -(_factor(blocks, "dmin") * minima.astype(np.float32)[:, :, None]),
    )


def _q4_k(blocks: NDArray[Any]) -> _Parts:
    return _with_minima(blocks, _bits(blocks["qs"], 4, 32))


def _q5_k(blocks: NDArray[Any]) -> _Parts:
    fifth = _bits(blocks["qh"], 1, 32) << np.uint8(4)
    return _with_minima(blocks, _bits(blocks["qs"], 4, 32) | fifth)


def _q6_k(blocks: NDArray[Any]) -> _Parts:
    codes = _bits(blocks["ql"], 4, 64) | _bits(blocks["qh"], 2, 32) << np.uint8(4)
    scales = _factor(blocks, "d") * blocks["scales"].astype(np.float32)[:, :, None]
    return scales, (codes.astype(np.int8) - np.int8(32)).reshape(-1, 16, 16), None


_READERS: dict[str, Callable[[NDArray[Any]], _Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
