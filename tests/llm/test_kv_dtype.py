"""`kv_cache_dtype`: how the reference backend stores KV, from one end to the other."""

from __future__ import annotations

import pytest
import torch

from octavo import LLM, ConfigError, SamplingParams
from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.contract.layout import kv_layout
from octavo.contract.request import Request
from octavo.pages.arena import Arena
from octavo.runner.torch_runner import TorchRunner
from octavo.testing.tiny import tiny_decoder, tiny_spec

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "The quick brown fox jumps over the lazy dog again and again"
FLOAT32_BYTES = 2 * 2 * 2 * 16 * 4
"""K and V, layers, KV heads, numbers of a head, bytes of a number."""


def llm_for(path, **settings):
    return LLM(str(path), backend="reference", kv_cache_memory_bytes=4 << 20, **settings)


@pytest.mark.parametrize(
    ("kv_cache_dtype", "bytes_per_token", "lossy"),
    [
        ("auto", FLOAT32_BYTES, ""),
        ("float32", FLOAT32_BYTES, ""),
        ("bfloat16", FLOAT32_BYTES // 2, "kv_cache_dtype=bfloat16"),
        ("int8", FLOAT32_BYTES * 20 // 64, "kv_cache_dtype=int8"),
        ("float32/int8", FLOAT32_BYTES * 42 // 64, "kv_cache_dtype=float32/int8"),
    ],
)
def test_a_token_takes_what_the_format_says(tiny_gguf, kv_cache_dtype, bytes_per_token, lossy):
    with llm_for(tiny_gguf, kv_cache_dtype=kv_cache_dtype) as llm:
        built = llm.built
        (result,) = llm.generate(PROMPT, GREEDY)

    assert built.layout.bytes_per_token == bytes_per_token
    assert built.num_blocks == (4 << 20) // (16 * bytes_per_token)
    assert built.namespace.lossy == lossy
    assert len(result.outputs[0].token_ids) == 12


@pytest.mark.parametrize(
    ("dtype", "kv_cache_dtype", "lossy"),
    [
        ("bfloat16", "auto", ""),
        ("bfloat16", "float32", ""),
        ("bfloat16", "float16", "kv_cache_dtype=float16"),
        ("float16", "float16", ""),
    ],
)
def test_a_format_is_lossy_if_it_cannot_hold_the_numbers_of_the_model(
    tiny_gguf, dtype, kv_cache_dtype, lossy
):
    with llm_for(tiny_gguf, dtype=dtype, kv_cache_dtype=kv_cache_dtype) as llm:
        assert llm.built.namespace.lossy == lossy


def test_texts_of_different_formats_have_different_keys(tiny_gguf):
    roots = set()
    for kv_cache_dtype in ("auto", "bfloat16", "int8", "int8/float32", "float32/int8"):
        with llm_for(tiny_gguf, kv_cache_dtype=kv_cache_dtype) as llm:
            roots.add(llm.built.namespace.root())

    assert len(roots) == 5


def test_a_second_run_finds_the_prompt_in_lossy_memory(tiny_gguf):
    with llm_for(tiny_gguf, kv_cache_dtype="int8", deterministic=True) as llm:
        cold = llm.generate(PROMPT, GREEDY)[0]
        warm = llm.generate([PROMPT, "x", PROMPT + " and"], GREEDY)[0]

    found = len(warm.prompt_token_ids) - 1
    assert (cold.num_cached_tokens, warm.num_cached_tokens) == (0, found)
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids


def test_copies_of_shared_blocks_go_on_in_lossy_memory(tiny_gguf):
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
    with llm_for(tiny_gguf, kv_cache_dtype="int8") as llm:
        together = [answer.token_ids for answer in llm.generate(PROMPT, params)[0].outputs]
        copies = llm.memory_report().copies
        one = SamplingParams(n=1, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
        alone = llm.generate(PROMPT, one)[0].outputs[0].token_ids

    assert copies == 3
    assert together[0] == alone


def logits_of(path, kv_cache_dtype):
    """The logits of a prompt and four forced tokens after it: [5, vocab]."""
    rows = []
    config = EngineConfig(
        model=str(path),
        backend="reference",
        kv_cache_memory_bytes=4 << 20,
        kv_cache_dtype=kv_cache_dtype,
    )
    built = build_engine(
        config, report=print, on_logits=lambda _, logits: rows.append(logits.clone())
    )
    # One token is allowed, so that texts stay the same however logits differ.
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, allowed_token_ids=[7])
    prompt = tuple(built.tokenizer.encode(PROMPT))
    built.engine.add(
        Request(id="r", prompt=prompt, sampling=params, seed=0, namespace=built.namespace)
    )
    while len(rows) < 5:
        built.engine.step()
    built.engine.close()
    return torch.cat(rows[:5])


@pytest.mark.parametrize(
    ("kv_cache_dtype", "limit"), [("bfloat16", 0.1), ("int8", 0.2), ("float32/int8", 0.1)]
)
def test_logits_differ_from_exact_ones_by_little(tiny_gguf, kv_cache_dtype, limit):
    exact = logits_of(tiny_gguf, "auto")

    lossy = logits_of(tiny_gguf, kv_cache_dtype)

    error = (lossy - exact).abs().max() / exact.std()
    assert 0 < error < limit


@pytest.mark.parametrize("kv_cache_dtype", ["int3", "int8/int3", "int8/", "float32/int8/int8"])
def test_an_unknown_format_is_refused_with_the_known_ones(tiny_gguf, kv_cache_dtype):
    message = r"kv_cache_dtype '.*' is not one of float32, float16, bfloat16, int8"
    with pytest.raises(ConfigError, match=message):
        llm_for(tiny_gguf, kv_cache_dtype=kv_cache_dtype)


def test_a_backend_that_cannot_read_a_format_is_refused_with_those_that_it_reads():
    class Picky:
        batch_invariant = True
        reads = frozenset(("float16", "bfloat16"))

    decoder = tiny_decoder()
    arena = Arena(kv_layout(tiny_spec(), block_size=4, dtype="bfloat16/int8"), 4)

    with pytest.raises(ConfigError, match=r"Picky reads KV stored as bfloat16, float16, not as in"):
        TorchRunner(decoder, arena, Picky())
