"""Weights go from their file to a decoder without a detour."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.testing.tiny import RandomWeights, tiny_spec
from tiny_model import tiny_weights, write_tiny_folder, write_tiny_gguf

DTYPES = ("float32", "bfloat16", "float16")


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {
        dtype: write_tiny_folder(tmp_path_factory.mktemp(dtype), dtype=dtype) for dtype in DTYPES
    }


def stored(weights, name, dtype):
    return torch.from_numpy(weights[name]).to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_stored_as_it_is_wanted_is_copied_bit_for_bit(folders, dtype):
    weights = tiny_weights()

    decoder = load_decoder(open_checkpoint(folders[dtype]), dtype=dtype)

    layer, head = decoder.layers[1], "layers.1."
    parts = [stored(weights, head + one, dtype) for one in "qkv"]
    assert layer.qkv.dtype is getattr(torch, dtype)
    assert torch.equal(layer.qkv, torch.cat(parts))
    assert torch.equal(layer.feed_forward.down, stored(weights, head + "down", dtype))
    assert torch.equal(layer.ffn_norm, stored(weights, head + "ffn_norm", dtype))


@pytest.mark.parametrize("dtype", DTYPES)
def test_numbers_are_a_view_of_the_file(folders, dtype):
    checkpoint = open_checkpoint(folders[dtype])

    for name in checkpoint.names:
        numbers = checkpoint.numbers(name)
        assert (numbers.dtype, numbers.shape) == (dtype, checkpoint.tensor(name).shape)
        assert not numbers.data.flags.owndata
        assert not numbers.data.flags.writeable


@pytest.mark.parametrize("wanted", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_another_dtype_is_rounded_once(folders, dtype, wanted):
    checkpoint = open_checkpoint(folders[dtype])

    decoder = load_decoder(checkpoint, dtype=wanted)

    expected = torch.from_numpy(checkpoint.tensor("layers.0.o")).to(getattr(torch, wanted))
    assert torch.equal(decoder.layers[0].o, expected)


def test_a_file_that_begins_its_numbers_at_an_odd_byte_is_read(folders, tmp_path):
    for file in folders["bfloat16"].iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    path = tmp_path / "model.safetensors"
    data = path.read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    path.write_bytes((end - 7).to_bytes(8, "little") + data[8:end] + b" " + data[end:])

    odd, even = (load_decoder(open_checkpoint(one)) for one in (tmp_path, folders["bfloat16"]))

    assert torch.equal(odd.layers[0].qkv, even.layers[0].qkv)


@pytest.mark.parametrize("matrix_type", ["F32", "F16", "BF16", "Q8_0"])
def test_a_gguf_file_gives_the_numbers_of_its_tensors(tmp_path, matrix_type):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrix_type=matrix_type)
    checkpoint = open_checkpoint(path)

    decoder = load_decoder(checkpoint)

    parts = [checkpoint.tensor(f"layers.0.{one}") for one in "qkv"]
    assert torch.equal(decoder.layers[0].qkv, torch.from_numpy(np.concatenate(parts)))


def test_parts_that_are_multiplied_together_have_one_memory():
    layer = load_decoder(RandomWeights(tiny_spec())).layers[0]

    for whole in (layer.qkv, layer.feed_forward.gate_up):
        assert whole.untyped_storage().nbytes() == whole.numel() * whole.element_size()
