"""What Gemma 3 has beyond other families, on small random models.

That its logits are those of transformers is tested with the others: `test_families`.
"""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from transformers import Gemma3Config, Gemma3ForConditionalGeneration

from octavo.errors import ConfigError, ModelError
from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from tiny_families import (
    SHAPE,
    TOLERANCE,
    assert_equals_transformers,
    change,
    make_model,
    reference_logits,
    served,
    words,
)


@pytest.mark.parametrize("factor", [None, 4.0])
def test_gemma_turns_layers_with_a_window_by_a_base_of_their_own(tmp_path, factor):
    full = {"rope_type": "default", "rope_theta": 30000.0}
    if factor is not None:
        full |= {"rope_type": "linear", "factor": factor}
    rope = {
        "full_attention": full,
        "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
    }
    model = make_model("gemma3", tmp_path, rope_parameters=rope)
    spec = open_checkpoint(tmp_path).spec

    assert (spec.rope_theta, spec.local_rope_theta) == (30000.0, 700.0)
    # Gemma's header states the context that stretching led to.
    assert spec.context == 512
    assert_equals_transformers(model, tmp_path, words(model, 200), chunks=(90,), new=2)


def test_settings_of_gemma_are_read_from_older_files_too(tmp_path):
    model = make_model("gemma3", tmp_path, num_hidden_layers=6, layer_types=None)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    del config["layer_types"], config["rope_parameters"]
    config |= {"rope_theta": 1e6, "rope_local_base_freq": 10000.0, "sliding_window_pattern": 6}
    path.write_text(json.dumps(config))
    spec = open_checkpoint(tmp_path).spec

    assert spec.window_layers == (0, 1, 2, 3, 4)
    assert_equals_transformers(model, tmp_path, words(model, 100), chunks=(40,), new=2)


def test_norms_of_gemma_are_whole_whatever_the_file_stores(tmp_path):
    model = make_model("gemma3", tmp_path)
    checkpoint = open_checkpoint(tmp_path)

    stored = model.model.layers[1].post_feedforward_layernorm.weight.detach().numpy()
    np.testing.assert_array_equal(checkpoint.tensor("layers.1.ffn_post_norm"), stored + 1.0)


def test_gemma_is_refused_in_float16_which_its_numbers_overflow(tmp_path):
    make_model("gemma3", tmp_path)

    with pytest.raises(ConfigError, match=r"above 65,504.*choose bfloat16 or float32"):
        load_decoder(open_checkpoint(tmp_path), dtype="float16")


@pytest.fixture(scope="module")
def with_pictures(tmp_path_factory):
    """A model of text and pictures, and its folder."""
    pictures = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    pictures |= {"num_attention_heads": 2, "image_size": 28, "patch_size": 14}
    text = {key: value for key, value in SHAPE.items() if key != "tie_word_embeddings"}
    config = Gemma3Config(
        text_config=text | {"head_dim": 24, "num_key_value_heads": 1, "sliding_window": 16},
        vision_config=pictures,
        mm_tokens_per_image=4,
    )
    torch.manual_seed(0)
    model = Gemma3ForConditionalGeneration(config).eval()
    folder = tmp_path_factory.mktemp("pictures")
    model.save_pretrained(folder)
    return model, folder


def test_the_text_part_is_read_of_a_model_of_text_and_pictures(with_pictures):
    model, folder = with_pictures
    checkpoint = open_checkpoint(folder)

    assert checkpoint.spec.family == "gemma3_text"
    assert "only the text part of the model is read" in checkpoint.notes[0]
    prompt = np.random.default_rng(0).integers(0, 90, 60).tolist()
    text, got = served(load_decoder(checkpoint), prompt, new=2)
    expected = reference_logits(model, text[:-1])[len(prompt) - 1 :]
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


def test_a_model_of_pictures_without_a_text_part_is_refused(with_pictures, tmp_path):
    shutil.copytree(with_pictures[1], tmp_path, dirs_exist_ok=True)
    change(tmp_path, text_config=None)

    with pytest.raises(ModelError, match="text_config is None, but describes the text part"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"attention_bias": True}, "attention_bias is True"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping is 50.0"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
        ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
        ({"hidden_activation": "gelu"}, "hidden_activation is 'gelu'"),
        ({"layer_types": ["full_attention"]}, "for each of 4 layers, found"),
        ({"sliding_window": None}, "sliding_window must be a positive whole number"),
    ],
)
def test_a_setting_of_gemma_that_cannot_be_honoured_is_named(tmp_path, values, message):
    make_model("gemma3", tmp_path)
    change(tmp_path, **values)

    with pytest.raises(ModelError, match=message):
        open_checkpoint(tmp_path)
