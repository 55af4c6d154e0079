"""Dummy weights: small, the same everywhere, and named by what they follow from."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from octavo.errors import ModelError
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.models.dummy import DummyWeights, dummy_model, dummy_shape
from octavo.testing.tiny import tiny_spec

LONG = tiny_spec(vocab_size=5000, qk_norm=True, qkv_bias=True)
"""Its embedding is longer than what the numbers are repeated from."""


def test_norms_are_ones_and_all_else_is_small_and_not_zero():
    source = DummyWeights(LONG)

    for name in source.names:
        values = source.tensor(name)
        if name.endswith("norm"):
            assert (values == 1).all()
        else:
            assert 0 < abs(values).max() <= 0.02
            assert abs(values.mean()) < 0.01


def test_no_two_rows_of_a_matrix_are_equal():
    rows = DummyWeights(LONG).tensor("embedding")

    assert len(np.unique(rows, axis=0)) == 5000


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_decoder_on_a_device_gets_the_numbers_of_every_other_executor(dtype):
    source = DummyWeights(LONG)

    decoder = load_decoder(source, dtype=dtype)

    tokens = torch.arange(5000)
    assert torch.equal(decoder.embed(tokens).float(), torch.from_numpy(source.tensor("embedding")))
    for number, layer in enumerate(decoder.layers):
        parts = [source.tensor(f"layers.{number}.{one}") for one in "qkv"]
        assert torch.equal(layer.qkv.float(), torch.from_numpy(np.concatenate(parts)))
        assert (layer.attn_norm == 1).all()


def test_rows_are_stored_as_the_numbers_that_they_are():
    source = DummyWeights(LONG)

    kind, rows = source.stored_rows("layers.1.down")

    upper = rows.view(np.uint16).astype(np.uint32) << 16
    assert kind == source.kind("layers.1.down") == "bfloat16"
    assert np.array_equal(upper.view(np.float32), source.tensor("layers.1.down"))


def test_logits_are_finite_and_differ():
    decoder = load_decoder(DummyWeights(LONG), dtype="bfloat16")

    logits = decoder.logits(decoder.embed(torch.arange(8)))

    assert torch.isfinite(logits).all()
    assert len(logits.argmax(dim=1).unique()) > 1


def test_the_identity_follows_from_spec_and_seed_alone():
    here = DummyWeights(LONG).identity

    assert here.startswith("dummy-")
    assert here == DummyWeights(LONG).identity
    assert here != DummyWeights(LONG, seed=1).identity
    assert here != DummyWeights(tiny_spec()).identity


def test_another_seed_gives_other_numbers():
    first, second = (DummyWeights(LONG, seed=seed).tensor("embedding") for seed in (0, 1))

    assert not np.array_equal(first, second)


# ── what they are made for ────────────────────────────────────────────────────────────────


def test_a_shape_has_a_name_and_no_files():
    checkpoint = dummy_shape("llama-3.1-8b")

    assert checkpoint.path.name == "llama-3.1-8b"
    assert (checkpoint.dtype, checkpoint.tokenizer_source) == ("bfloat16", None)
    assert checkpoint.spec.hidden_size == 4096


def test_a_folder_lends_its_shape_its_dtype_and_its_tokenizer(tiny_folder):
    real, dummy = open_checkpoint(tiny_folder), dummy_model(tiny_folder)

    assert (dummy.spec, dummy.dtype) == (real.spec, "float32")
    assert dummy.tokenizer_source == tiny_folder
    assert dummy.identity != real.identity


def test_a_gguf_file_lends_its_shape_and_its_tokenizer(tiny_gguf):
    real, dummy = open_checkpoint(tiny_gguf), dummy_model(tiny_gguf)

    assert (dummy.spec, dummy.dtype) == (real.spec, "bfloat16")
    assert dummy.tokenizer_source is not None
    assert not np.array_equal(dummy.tensor("embedding"), real.tensor("embedding"))


@pytest.mark.parametrize("named", ["folder", "file"])
def test_a_config_alone_is_enough(tiny_folder, tmp_path, named):
    config = json.loads((tiny_folder / "config.json").read_text())
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "torch_dtype": "float16"}))

    dummy = dummy_model(tmp_path if named == "folder" else path)

    assert dummy.spec == open_checkpoint(tiny_folder).spec
    assert (dummy.path, dummy.dtype, dummy.tokenizer_source) == (tmp_path, "float16", None)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match=r"is a folder without config\.json"):
        dummy_model(tmp_path)
    with pytest.raises(ModelError, match="there is no model at"):
        dummy_model(tmp_path / "nothing")
