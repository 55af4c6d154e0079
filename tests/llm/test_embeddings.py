"""Vectors of prompts are those of transformers: however they are cut, and beside texts."""

from __future__ import annotations

import importlib.util
import json
import shutil

import numpy as np
import pytest
import torch

from octavo import LLM, ConfigError, RequestError, SamplingParams
from tiny_families import make_model, words

TOLERANCE = 2e-5
"""Of vectors of length 1, float32 arithmetic."""
TRITON = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None, reason="Triton is not installed"
)


def reference(model, ids, how):
    with torch.inference_mode():
        states = model.model(torch.tensor([ids])).last_hidden_state[0].float()
    vector = states.mean(0) if how == "mean" else states[-1]
    return (vector / vector.norm()).numpy()


def made(family, path, tiny_folder):
    """Make a model, with a tokenizer that a prompt of ids has no use for."""
    shutil.copy(tiny_folder / "tokenizer.json", path)
    return make_model(family, path, vocab_size=512)


def opened(path, how, **options):
    return LLM(
        str(path),
        pooling=how,
        dtype="float32",
        kv_cache_memory_bytes=8 << 20,
        max_model_len=400,
        **options,
    )


@pytest.mark.parametrize(
    ("family", "backend"),
    [
        ("smollm", "cpu"),
        ("smollm", "reference"),
        pytest.param("smollm", "triton", marks=[pytest.mark.slow, TRITON]),
        *(
            pytest.param(family, backend, marks=[pytest.mark.slow, *marks])
            for family in ("qwen3", "gemma3", "mixtral")
            for backend, *marks in (("cpu",), ("reference",), ("triton", TRITON))
        ),
    ],
)
def test_vectors_are_those_of_transformers(family, backend, tmp_path, tiny_folder):
    model = made(family, tmp_path, tiny_folder)
    prompts = [words(model, count) for count in (1, 2, 37, 200)]
    for how in ("mean", "last"):
        with opened(tmp_path, how, backend=backend, max_num_batched_tokens=48) as llm:
            found = llm.embed([{"prompt_token_ids": one} for one in prompts])
            again = llm.embed([{"prompt_token_ids": prompts[-1]}])

        for output, ids in zip(found, prompts, strict=True):
            assert np.abs(np.array(output.embedding) - reference(model, ids, how)).max() < TOLERANCE
        # Unless it is strict, the bits of a GPU's runner depend on a prompt's pieces.
        close = 0 if backend != "triton" else TOLERANCE
        assert again[0].embedding == pytest.approx(found[-1].embedding, rel=0, abs=close)
        assert (again[0].num_cached_tokens > 0) == (how == "last")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, tiny_folder):
    path = tmp_path_factory.mktemp("llama")
    return path, made("llama", path, tiny_folder)


def test_a_vector_has_the_same_bits_however_its_prompt_is_cut_and_beside_texts(tiny):
    path, model = tiny
    ids = words(model, 150)
    vectors = set()
    for step in (256, 40, 16):
        with opened(path, "mean", max_num_batched_tokens=step) as llm:
            stream = llm.stream(
                [{"prompt_token_ids": words(model, 20)}], SamplingParams(max_tokens=30)
            )
            next(stream)
            vectors.add(tuple(llm.embed([{"prompt_token_ids": ids}])[0].embedding))
            assert sum(len(piece.token_ids) for piece in stream) == 29

    assert len(vectors) == 1


def test_dimensions_are_the_first_ones_and_the_vector_has_length_1_again(tiny):
    path, model = tiny
    with opened(path, "mean") as llm:
        prompt = [{"prompt_token_ids": words(model, 9)}]
        (whole,) = llm.embed(prompt, normalize=False)
        (cut,) = llm.embed(prompt, dimensions=8)
        with pytest.raises(RequestError, match="embeddings have 64, got 65"):
            llm.embed(prompt, dimensions=65)

    first = np.array(whole.embedding[:8])
    assert np.allclose(cut.embedding, first / np.linalg.norm(first), atol=1e-6)


@pytest.mark.parametrize(
    ("switches", "how"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode_cls_token": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_max_tokens": True}, None),
        (None, None),
    ],
)
def test_how_a_model_is_pooled_stands_in_its_files(tiny, tmp_path, switches, how):
    path = shutil.copytree(tiny[0], tmp_path / "copy")
    if switches is not None:
        (path / "1_Pooling").mkdir()
        file = path / "1_Pooling" / "config.json"
        file.write_text(json.dumps({"word_embedding_dimension": 64} | switches))

    with opened(path, "auto") as llm:
        prompt = [{"prompt_token_ids": [5, 6, 7]}]
        if how is None:
            with pytest.raises(RequestError, match="this model has no embeddings"):
                llm.embed(prompt)
        else:
            (found,) = llm.embed(prompt)
            assert np.abs(found.embedding - reference(tiny[1], [5, 6, 7], how)).max() < TOLERANCE


def test_a_pooling_that_there_is_not_is_refused(tiny):
    with pytest.raises(ConfigError, match="pooling 'max' is not one of auto, none, mean, last"):
        opened(tiny[0], "max")
