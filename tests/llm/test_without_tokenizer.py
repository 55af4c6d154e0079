"""An engine of a shape: made-up weights, token ids in and out, no text."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from octavo import LLM, ConfigError, RequestError, SamplingParams
from octavo.cli import run
from octavo.config import EngineConfig
from octavo.models.shapes import SHAPES
from octavo.testing.tiny import tiny_spec

IDS = {"prompt_token_ids": [5, 6, 7, 8, 9]}
GREEDY = SamplingParams(temperature=0, max_tokens=8)


@pytest.fixture(scope="module")
def shapes():
    """Two shapes that a CPU computes in no time."""
    patch = pytest.MonkeyPatch()
    spec = tiny_spec(vocab_size=300)
    patch.setitem(SHAPES, "tiny", spec)
    patch.setitem(SHAPES, "wide", msgspec.structs.replace(spec, hidden_size=80))
    yield
    patch.undo()


def open_shape(name="tiny", **settings):
    given = {"backend": "reference", "device": "cpu", "kv_cache_memory_bytes": 1 << 20} | settings
    return LLM(load_format="dummy", shape=name, **given)


@pytest.fixture(scope="module")
def llm(shapes):
    with open_shape() as llm:
        yield llm


def test_token_ids_are_answered_with_token_ids_and_no_text(llm):
    (result,) = llm.generate(IDS, GREEDY)

    (answer,) = result.outputs
    assert (len(answer.token_ids), answer.text, answer.finish_reason) == (8, "", "length")
    assert result.prompt is None


def test_the_same_shape_gives_the_same_answer_in_every_engine(llm):
    with open_shape() as other:
        again = other.generate(IDS, GREEDY)[0].outputs[0].token_ids

    assert llm.generate(IDS, GREEDY)[0].outputs[0].token_ids == again


def test_log_probabilities_are_finite_and_of_tokens_without_a_text(llm):
    params = SamplingParams(temperature=0, max_tokens=4, logprobs=2)

    (result,) = llm.generate(IDS, params)

    for place in result.outputs[0].logprobs:
        assert all(math.isfinite(one.logprob) for one in place.values())
        assert all(one.decoded_token is None for one in place.values())


def test_the_namespace_names_shape_and_seed_and_the_model_is_called_by_the_shape(shapes, llm):
    with open_shape("wide") as wide:
        assert wide.built.namespace.model != llm.built.namespace.model

    assert llm.built.namespace.model.startswith("dummy-")
    assert llm.built.model_path.name == "tiny"
    assert llm.built.layout.dtype == "bfloat16"


@pytest.mark.parametrize("prompt", ["Hello", {"prompt": "Hello"}])
def test_a_text_is_refused_with_the_reason_and_the_way_out(llm, prompt):
    message = r"the prompt is a text, but this engine has no tokenizer.*prompt_token_ids"
    with pytest.raises(RequestError, match=message):
        llm.generate(prompt, GREEDY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stop": "x"}, r"stop is \['x'\], but this engine has no tokenizer.*give stop_token_ids"),
        ({"bad_words": ["x"]}, "bad_words holds 'x', but this engine has no tokenizer.*logit_bias"),
    ],
)
def test_options_that_are_texts_are_refused(llm, options, message):
    with pytest.raises(RequestError, match=message):
        llm.generate(IDS, SamplingParams(**options))


def test_there_is_no_conversation_and_no_tokenizer_to_get(llm):
    for call in (llm.get_tokenizer, lambda: llm.chat([{"role": "user", "content": "Hi"}])):
        with pytest.raises(RequestError, match=r"no tokenizer.*give prompts as"):
            call()


def test_options_of_token_ids_work(llm):
    (free,) = llm.generate(IDS, GREEDY)
    third = free.outputs[0].token_ids[2]

    (result,) = llm.generate(IDS, SamplingParams(temperature=0, stop_token_ids=[third]))

    assert result.outputs[0].stop_reason == third


def test_the_native_engine_has_the_same_weights(shapes):
    pytest.importorskip("octavo._cpu")
    exact = {"dtype": "float32", "kv_cache_dtype": "float32"}
    with open_shape(**exact) as one, open_shape(backend="cpu", **exact) as other:
        answers = [llm.generate(IDS, GREEDY)[0].outputs[0].token_ids for llm in (one, other)]

    assert answers[0] == answers[1]


# ── of a model's files ────────────────────────────────────────────────────────────────────


def test_dummy_weights_of_a_model_with_a_tokenizer_answer_texts(tiny_gguf):
    settings = {"backend": "reference", "device": "cpu", "kv_cache_memory_bytes": 1 << 20}
    with (
        LLM(str(tiny_gguf), **settings) as real,
        LLM(str(tiny_gguf), load_format="dummy", **settings) as dummy,
    ):
        assert dummy.built.spec == real.built.spec
        assert dummy.built.namespace != real.built.namespace
        assert len(dummy.generate("Hello", GREEDY)[0].outputs[0].token_ids) == 8


def test_the_command_generates_with_dummy_weights(tiny_gguf, capsys):
    flags = ["--kv-cache-memory-bytes", str(1 << 20), "--max-tokens", "3", "--json"]

    assert run(["generate", "Hi", "--model", str(tiny_gguf), "--load-format", "dummy", *flags]) == 0

    got = json.loads(capsys.readouterr().out)
    assert got["config"]["load_format"] == "dummy"
    assert len(got["results"][0]["outputs"][0]["token_ids"]) <= 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"load_format": "dumm"}, "load_format 'dumm' is not one of auto, dummy"),
        ({"load_format": None}, "load_format None is not one of"),
        ({"shape": "llama-3.1-8b"}, "has no weights, but load_format is 'auto': make it dummy"),
        ({"shape": "", "load_format": "dummy"}, "shape must be a name, got ''"),
        ({"shape": 8, "load_format": "dummy"}, "shape must be a name, got 8"),
        (
            {"shape": "llama-3.1-8b", "model": "x", "load_format": "dummy"},
            "shape is 'llama-3.1-8b' and model is 'x': give one of them",
        ),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**settings)


def test_an_unknown_shape_is_refused_before_anything_is_built():
    with pytest.raises(ConfigError, match="shape 'gpt-5' is not one of llama-2-7b"):
        open_shape("gpt-5")
