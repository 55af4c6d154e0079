"""The native linear layers equal numpy over every format, size and instruction set."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from octavo import cpu

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

ISAS = _cpu.available_isas()
GROUP = 32
# What each type becomes.
FORMATS = {
    "F32": "f32",
    "F16": "f16",
    "BF16": "bf16",
    "Q4_0": "q4",
    "Q4_1": "q4",
    "Q5_0": "q5s",
    "Q5_1": "q5s",
    "Q8_0": "q8",
    "Q4_K": "q4s",
    "Q5_K": "q5s",
    "Q6_K": "q6s",
}
HALVES = {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,)}
"""Where the blocks of a K-quant have their float16 scales."""
SIZES = [(1, 1, 32), (2, 16, 64), (3, 17, 96), (5, 100, 256), (13, 33, 32), (40, 48, 288)]
"""Rows, outputs, inputs."""
WIDE_SIZES = [(1, 1, 256), (13, 33, 512), (40, 48, 768)]
"""For K-quants, whose blocks have 256 inputs."""
MOST_GROWTH = 1.35
"""Bytes of a packed matrix, over those of the file."""


def stored(kind: str, out: int, inputs: int, seed: int = 0) -> tuple[int, np.ndarray, np.ndarray]:
    """Return a type's number, the bytes of random weights in it, and what they stand for."""
    random = np.random.default_rng(seed)
    raw_type = gguf.GGMLQuantizationType[kind]
    if kind in HALVES:  # gguf reads them, but does not write them
        size = gguf.GGML_QUANT_SIZES[raw_type][1]
        data = random.integers(0, 256, (out * inputs // 256, size), np.uint8)
        for place in HALVES[kind]:
            scales = random.uniform(0.0005, 0.01, (len(data), 1)).astype(np.float16)
            data[:, place : place + 2] = scales.view(np.uint8)
        data = data.reshape(out, -1)
    else:
        values = random.normal(size=(out, inputs)).astype(np.float32)
        data = quantize(values, raw_type).view(np.uint8).reshape(out, -1)
    return raw_type.value, data, dequantize(data, raw_type).reshape(out, inputs)


def sizes_of(kind: str) -> list[tuple[int, int, int]]:
    return WIDE_SIZES if kind in HALVES else SIZES


def rows_of(count: int, inputs: int) -> np.ndarray:
    return np.random.default_rng(1).normal(size=(count, inputs)).astype(np.float32)


def rounded_to_bf16(values: np.ndarray) -> np.ndarray:
    bits = values.view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32)


def reference_codes(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    groups = values.reshape(len(values), -1, GROUP)
    largest = np.abs(groups).max(axis=2, keepdims=True)
    scales = largest / np.float32(127)
    with np.errstate(divide="ignore", invalid="ignore"):
        inverse = np.where(largest > 0, np.float32(127) / largest, np.float32(0))
    return np.rint(groups * inverse).astype(np.int8), scales[..., 0]


@pytest.mark.parametrize("isa", ISAS)
def test_codes_are_the_nearest_ones(isa):
    values = rows_of(7, 160) * np.logspace(-6, 6, 7, dtype=np.float32)[:, None]
    values[3, 32:64] = 0
    codes, scales, sums, offsets = _cpu.quantize_rows(values, isa=isa)

    expected, expected_scales = reference_codes(values)
    np.testing.assert_array_equal(codes.reshape(expected.shape), expected)
    np.testing.assert_array_equal(scales, expected_scales)
    totals = expected.astype(np.int32).sum(axis=2)
    np.testing.assert_array_equal(sums, scales * totals.astype(np.float32))
    np.testing.assert_array_equal(offsets, -128 * totals)


@pytest.mark.parametrize("kind", FORMATS)
def test_packing_keeps_every_weight(kind):
    for _, out, inputs in sizes_of(kind):
        number, data, values = stored(kind, out, inputs)

        matrix = _cpu.pack([(number, data)], inputs)

        assert matrix.format == FORMATS[kind]
        assert matrix.shape == (out, inputs)
        np.testing.assert_allclose(matrix.unpack(), values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_packed_matrix_is_little_larger_than_in_the_file(kind):
    number, data, _ = stored(kind, 64, 768)

    matrix = _cpu.pack([(number, data)], 768)

    assert matrix.nbytes <= MOST_GROWTH * data.nbytes


@pytest.mark.parametrize(
    ("kinds", "form"),
    [
        (("Q4_K", "Q4_K", "Q6_K"), "q6s"),
        (("Q5_0", "Q5_0", "Q8_0"), "q8"),
        (("Q4_K", "Q8_0", "Q8_0"), "q8s"),
        (("Q6_K", "Q5_1", "Q8_0"), "q8s"),
        (("F16", "F16", "Q8_0"), "f32"),
    ],
)
def test_matrices_of_several_types_keep_every_weight(kinds, form):
    parts = [stored(kind, 16, 256, seed) for seed, kind in enumerate(kinds)]

    matrix = _cpu.pack([part[:2] for part in parts], 256)

    assert matrix.format == form
    values = np.concatenate([part[2] for part in parts])
    np.testing.assert_allclose(matrix.unpack(), values, rtol=1e-6, atol=0)


@pytest.mark.parametrize("threads", [0, 2])
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", FORMATS)
def test_products_equal_numpy(kind, isa, threads):
    pool = _cpu.ThreadPool(threads) if threads else None
    for count, out, inputs in sizes_of(kind):
        number, data, weights = stored(kind, out, inputs)
        matrix = _cpu.pack([(number, data)], inputs, pool=pool)
        values = rows_of(count, inputs)

        got = _cpu.linear(matrix, values, pool=pool, isa=isa)

        seen = {"f32": values, "f16": values, "bf16": rounded_to_bf16(values)}.get(matrix.format)
        if seen is None:
            codes, scales = reference_codes(values)
            seen = (codes * scales[..., None].astype(np.float64)).reshape(values.shape)
        exact = seen.astype(np.float64) @ weights.T.astype(np.float64)
        size = np.abs(seen) @ np.abs(weights.T) + 1e-6
        assert got.shape == (count, out)
        assert (np.abs(got - exact) / size).max() < 2e-5


@pytest.mark.parametrize("isa", ISAS)
def test_a_rows_bits_do_not_depend_on_its_company(isa):
    number, data, _ = stored("Q4_1", 80, 96)
    matrix = _cpu.pack([(number, data)], 96)
    values = rows_of(40, 96)

    together = _cpu.linear(matrix, values, isa=isa)

    for count in (1, 3, 12, 17):
        np.testing.assert_array_equal(
            _cpu.linear(matrix, values[:count], isa=isa), together[:count]
        )


def test_parts_lie_one_after_the_other_or_paired():
    first, second = stored("Q8_0", 64, 64, seed=2), stored("Q8_0", 64, 64, seed=3)
    parts = [first[:2], second[:2]]

    joined = _cpu.pack(parts, 64).unpack()
    paired = _cpu.pack(parts, 64, paired=True).unpack()

    np.testing.assert_array_equal(joined, np.concatenate([first[2], second[2]]))
    blocks = [first[2][:32], second[2][:32], first[2][32:], second[2][32:]]
    np.testing.assert_array_equal(paired, np.concatenate(blocks))


def test_a_torch_tensor_is_taken_as_it_is():
    import torch

    number, data, _ = stored("F32", 16, 32)
    matrix = _cpu.pack([(number, data)], 32)
    values = rows_of(2, 32)

    np.testing.assert_array_equal(
        _cpu.linear(matrix, torch.from_numpy(values)), _cpu.linear(matrix, values)
    )


BAD_ROWS = {
    "float64": (TypeError, "values has dtype float64, not float32"),
    "float16": (TypeError, "values has dtype float16, not float32"),
    "one dimension": (TypeError, "values has 1 dimensions, not 2"),
    "transposed": (ValueError, "values is not contiguous"),
    "strided": (ValueError, "values is not contiguous"),
    "wide": (ValueError, r"values has shape \[64, 96\], not \[any, 64\]"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_rows_are_refused_by_name(case):
    number, data, _ = stored("Q8_0", 16, 64)
    matrix = _cpu.pack([(number, data)], 64)
    good = rows_of(64, 64)
    bad = {
        "float64": good.astype(np.float64),
        "float16": good.astype(np.float16),
        "one dimension": good[0],
        "transposed": good.T,
        "strided": rows_of(64, 128)[:, ::2],
        "wide": rows_of(64, 96),
    }[case]
    kind, message = BAD_ROWS[case]

    with pytest.raises(kind, match=message):
        _cpu.linear(matrix, bad)


def test_bad_weights_are_refused_by_name():
    number, data, _ = stored("Q8_0", 16, 64)

    with pytest.raises(ValueError, match="type 99 is not read"):
        _cpu.pack([(99, data)], 64)
    with pytest.raises(ValueError, match="in_features is 40, not a multiple of 32"):
        _cpu.pack([(number, data)], 40)
    with pytest.raises(ValueError, match=r"data has shape \[16, 68\], not \[any, 34\]"):
        _cpu.pack([(number, data)], 32)
    with pytest.raises(ValueError, match="no format 'q3'"):
        _cpu.pack([(number, data)], 64, format="q3")
    with pytest.raises(TypeError, match="data has dtype int8, not uint8"):
        _cpu.pack([(number, data.view(np.int8))], 64)
    with pytest.raises(ValueError, match="values has rows of 40 numbers"):
        _cpu.quantize_rows(rows_of(1, 40))
