"""The GGUF reader reads what the reference writer writes, and refuses everything broken."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from octavo.errors import ModelError
from octavo.models.gguf import GGUFFile

FUZZ = settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
READABLE = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"]
K_QUANTS = {"Q2_K": 84, "Q3_K": 110, "Q4_K": 144, "Q5_K": 176, "Q6_K": 210}


def write(
    path: Path, tensors: dict[str, np.ndarray], kind: str = "F32", **metadata: object
) -> Path:
    """Write tensors as they are (F32) or quantized, with a few metadata keys."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in metadata.items():
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_int64(key, value)
        elif isinstance(value, float):
            writer.add_float64(key, value)
        else:
            writer.add_array(key, value)
    for name, values in tensors.items():
        raw_type = gguf.GGMLQuantizationType[kind]
        data = values if values.dtype == np.uint8 else quantize(values, raw_type)
        writer.add_tensor(name, data, raw_dtype=raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture
def small(tmp_path: Path) -> bytes:
    """The bytes of a small whole file."""
    tensors = {"a": np.ones((2, 32), np.float32), "b": np.ones(8, np.float32)}
    path = write(tmp_path / "small.gguf", tensors, text="héllo", list=["x", "yy"], on=True, n=-3)
    return path.read_bytes()


def test_metadata_comes_back_as_plain_values(tmp_path):
    values = {"s": "日本", "n": -5, "x": 0.25, "on": True, "texts": ["", "ab"], "ints": [1, 2, 3]}
    file = GGUFFile(write(tmp_path / "m.gguf", {}, **values))

    assert file.metadata == {"general.architecture": "llama", **values}


@pytest.mark.parametrize("kind", READABLE)
def test_a_tensor_of_each_type_comes_back_as_the_reference_dequantizes_it(tmp_path, kind):
    values = np.random.default_rng(0).normal(size=(3, 64)).astype(np.float32)
    file = GGUFFile(write(tmp_path / "t.gguf", {"w": values}, kind))

    raw_type = gguf.GGMLQuantizationType[kind]
    np.testing.assert_array_equal(
        file.tensor("w"), dequantize(quantize(values, raw_type), raw_type).reshape(3, 64)
    )
    assert file.tensors["w"].kind.name == kind


@pytest.mark.parametrize("kind", READABLE)
def test_a_round_trip_loses_no_more_than_half_a_step(tmp_path, kind):
    values = np.random.default_rng(0).normal(size=(8, 96)).astype(np.float32)
    got = GGUFFile(write(tmp_path / "t.gguf", {"w": values}, kind)).tensor("w")

    # The extremes of a block of 32 lie this many steps apart; float formats keep so many bits.
    steps = {"Q4_0": 16, "Q4_1": 15, "Q5_0": 32, "Q5_1": 31, "Q8_0": 254}
    blocks = values.reshape(-1, 32)
    spread = 2 * np.abs(blocks).max(axis=1, keepdims=True)
    if kind in steps:
        # One end may be a whole step off where levels are not symmetric about zero.
        bound = 1.01 * spread / steps[kind]
    else:
        bound = np.abs(blocks) * {"F32": 0.0, "F16": 2.0**-11, "BF16": 2.0**-8}[kind]
    assert (np.abs(got.reshape(-1, 32) - blocks) <= bound + 1e-12).all()


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K"])
def test_random_blocks_come_back_as_transformers_reads_them(tmp_path, kind):
    """A second implementation, since ours is the one that gguf-py has."""
    import torch
    from transformers.integrations.gguf.dequant import dequantize as dequantize_by_transformers

    raw_type = gguf.GGMLQuantizationType[kind]
    block_bytes = gguf.GGML_QUANT_SIZES[raw_type][1]
    raw = np.random.default_rng(1).integers(0, 256, (4, 4 * block_bytes), dtype=np.uint8)
    blocks = raw.reshape(-1, block_bytes)
    # Scales are two-byte floats at places that differ by type: keep every even pair finite.
    blocks[:, 1::2] &= 0x3B
    got = GGUFFile(write(tmp_path / "t.gguf", {"w": raw}, kind)).tensor("w")

    expected = dequantize_by_transformers(torch.from_numpy(raw.ravel()), raw_type.value)
    np.testing.assert_allclose(got.ravel(), expected.numpy(), rtol=1e-5, atol=1e-6)
    assert np.abs(got).max() > 0


@pytest.mark.parametrize("kind", K_QUANTS)
def test_a_k_quant_comes_back_as_the_reference_dequantizes_it(tmp_path, kind):
    # Small bytes only, so that no scale is infinite or not a number.
    raw = np.random.default_rng(0).integers(0, 60, (4, 2 * K_QUANTS[kind]), dtype=np.uint8)
    file = GGUFFile(write(tmp_path / "t.gguf", {"w": raw}, kind))

    np.testing.assert_array_equal(
        file.tensor("w"), dequantize(raw, gguf.GGMLQuantizationType[kind])
    )
    assert file.tensor("w").shape == (4, 512)


def test_a_tensor_is_writable_and_the_file_stays_as_it_is(tmp_path):
    path = write(tmp_path / "t.gguf", {"w": np.ones((2, 2), np.float32)})
    file = GGUFFile(path)

    file.tensor("w")[:] = 7

    assert GGUFFile(path).tensor("w").sum() == 4


def test_version_two_is_read(tmp_path, small):
    path = tmp_path / "two.gguf"
    path.write_bytes(small[:4] + struct.pack("<I", 2) + small[8:])

    assert GGUFFile(path).metadata["text"] == "héllo"


@pytest.mark.weights
def test_every_field_of_a_real_file_equals_the_reference_reader(smollm2_path):
    file, reference = GGUFFile(smollm2_path), gguf.GGUFReader(smollm2_path)

    fields = {key: field.contents() for key, field in reference.fields.items()}
    assert file.metadata == {k: v for k, v in fields.items() if not k.startswith("GGUF.")}
    assert [
        (t.name, t.shape, t.kind.name, t.offset, t.num_bytes) for t in file.tensors.values()
    ] == [
        (t.name, tuple(map(int, t.shape[::-1])), t.tensor_type.name, t.data_offset, t.n_bytes)
        for t in reference.tensors
    ]


def test_an_unreadable_type_is_named_with_its_tensor(tmp_path):
    raw = np.zeros((1, 66), np.uint8)
    path = write(tmp_path / "t.gguf", {"blk.0.x": raw}, "IQ2_XXS")

    with pytest.raises(ModelError, match=r"'blk\.0\.x' has type IQ2_XXS.*Types read: F32"):
        GGUFFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"GG", "not a GGUF file"),
        (b"PK\x03\x04" + bytes(60), "not a GGUF file"),
        (b"GGUF\x03", "the version needs"),
        (b"GGUF" + struct.pack("<IQQ", 1, 0, 0), "version 1"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 0), "the header needs"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 2**63) + bytes(9), "metadata key 0"),
        (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<I", 99), "type 99"),
        (
            b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62),
            "metadata 'k'",
        ),
    ],
)
def test_a_broken_header_is_refused_with_the_name_of_the_file(tmp_path, content, message):
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)

    with pytest.raises(ModelError, match=message) as error:
        GGUFFile(path)
    assert str(path) in str(error.value)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ModelError, match="is a folder"):
        GGUFFile(tmp_path)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ModelError, match="No such file"):
        GGUFFile(tmp_path / "no.gguf")


def test_data_cut_short_is_refused_with_the_name_of_the_tensor(tmp_path, small):
    path = tmp_path / "short.gguf"
    path.write_bytes(small[:-20])

    with pytest.raises(ModelError, match=r"tensor 'b' ends at byte .* download it again"):
        GGUFFile(path)


@FUZZ
@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(tmp_path, small, data):
    length = data.draw(st.integers(0, len(small) - 1))
    path = tmp_path / "cut.gguf"
    path.write_bytes(small[:length])

    with pytest.raises(ModelError, match=path.name):
        GGUFFile(path)


@FUZZ
@given(data=st.data())
def test_flipped_bytes_never_crash_the_reader(tmp_path, small, data):
    places = st.tuples(st.integers(0, len(small) - 1), st.integers(0, 255))
    broken = bytearray(small)
    for place, value in data.draw(st.lists(places, min_size=1, max_size=6)):
        broken[place] = value
    path = tmp_path / "flipped.gguf"
    path.write_bytes(broken)

    with np.errstate(all="ignore"), suppress(ModelError):
        file = GGUFFile(path)
        for name in file.tensors:
            assert file.tensor(name).shape == file.tensors[name].shape
