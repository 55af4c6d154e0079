"""Layers that look back no further than a window, against transformers in float32.

Texts are longer than the windows, and blocks behind them are given to others.
"""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from octavo.errors import ModelError
from octavo.models.checkpoint import open_checkpoint
from tiny_families import assert_equals_transformers, change, make_model, reference_logits, words
from tiny_model import TOKENS, write_tokenizer

WINDOWED = ("mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3")


def windowed(name, folder, tokens=24, **settings):
    """Make a model of three layers or more, some of them with a window."""
    settings = {"sliding_window": tokens, **settings}
    if name != "gemma3":
        settings["num_hidden_layers"] = 3
    if name.startswith("qwen"):
        settings |= {"use_sliding_window": True}
    if name in ("qwen2", "qwen3"):
        settings = {"max_window_layers": 1, **settings}
    return make_model(name, folder, **settings)


@pytest.mark.parametrize("name", WINDOWED)
@pytest.mark.parametrize("tokens", [1, 16, 24, 70])
def test_texts_beyond_a_sliding_window_are_those_of_transformers(tmp_path, name, tokens):
    model = windowed(name, tmp_path, tokens)
    spec = open_checkpoint(tmp_path).spec

    assert (spec.window, spec.context) == (tokens, 512)
    assert_equals_transformers(model, tmp_path, words(model, 110), chunks=(40, 7), reuse=True)


@pytest.mark.parametrize("name", WINDOWED)
def test_windows_keep_strict_mode_exact(tmp_path, name):
    model = windowed(name, tmp_path)

    assert_equals_transformers(
        model, tmp_path, words(model, 80), chunks=(33,), deterministic=True, reuse=True
    )


@pytest.mark.parametrize(
    ("name", "settings", "layers"),
    [
        ("mistral", {}, (0, 1, 2)),
        ("qwen2", {}, (1, 2)),
        ("qwen2", {"max_window_layers": 0}, (0, 1, 2)),
        ("qwen3", {"layer_types": ["sliding_attention", *["full_attention"] * 2]}, (0,)),
        ("qwen3_moe", {}, (0, 1, 2)),
        ("gemma3", {}, (0, 1, 3)),
    ],
)
def test_a_config_says_which_layers_have_the_window(tmp_path, name, settings, layers):
    windowed(name, tmp_path, **settings)

    assert open_checkpoint(tmp_path).spec.window_layers == layers


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("qwen2", {"use_sliding_window": False}),
        ("qwen3", {"max_window_layers": 3}),
        ("mistral", {"sliding_window": None}),
        ("mistral", {"sliding_window": 512}),
        ("llama", {"sliding_window": 24}),
    ],
    ids=["switched off", "in no layer", "null", "as long as the context", "not of the family"],
)
def test_a_window_that_hides_nothing_is_none(tmp_path, name, settings):
    make_model(name, tmp_path, **{"sliding_window": 24, "use_sliding_window": True, **settings})
    checkpoint = open_checkpoint(tmp_path)

    assert (checkpoint.spec.window, checkpoint.spec.window_layers) == (None, ())
    assert (checkpoint.spec.context, checkpoint.notes) == (512, ())


def test_the_engine_serves_texts_beyond_a_window(tmp_path):
    model = windowed("qwen2", tmp_path, vocab_size=len(TOKENS))
    write_tokenizer(tmp_path)
    prompt = words(model, 100)

    llm = LLM(str(tmp_path), dtype="float32", kv_cache_memory_bytes=1 << 20, report=lambda _: None)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    (answer,) = llm.generate([{"prompt_token_ids": prompt}], params)

    got = answer.outputs[0].token_ids
    scores = reference_logits(model, [*prompt, *got[:-1]])[len(prompt) - 1 :]
    assert llm.built.max_model_len == 512
    assert list(got) == scores.argmax(-1).tolist()


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"layer_types": ["chunked_attention"] * 3},
            "layer_types must name sliding_attention or full_attention",
        ),
        ({"layer_types": ["full_attention"]}, "for each of 3 layers, found"),
        ({"layer_types": None, "max_window_layers": -1}, "must be a whole number of layers"),
        ({"sliding_window": 0.5}, "sliding_window must be a positive whole number"),
    ],
)
def test_windows_that_cannot_be_honoured_are_refused(tmp_path, values, message):
    windowed("qwen2", tmp_path)
    change(tmp_path, **values)

    with pytest.raises(ModelError, match=message):
        open_checkpoint(tmp_path)
