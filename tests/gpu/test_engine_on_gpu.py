"""The GPU executor behind `LLM`: a CPU's answers, and strict mode in company."""

from __future__ import annotations

import importlib.util

import pytest

from octavo import LLM, ConfigError, SamplingParams
from octavo.models import catalog

pytestmark = pytest.mark.gpu

CLOSE = 0.1
"""Nats: bfloat16 products may turn the order of two tokens that are no further apart."""
PROMPTS = [
    "The capital of Japan is",
    "Water boils at",
    "A short story about a fox: once upon a time",
    "The three primary colours are",
]
GREEDY = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True, logprobs=2)
FLASHINFER = pytest.param(
    "flashinfer",
    marks=pytest.mark.skipif(
        importlib.util.find_spec("flashinfer") is None, reason="FlashInfer is not installed"
    ),
)


def answers(path, **settings):
    """Greedy answers, each with how far its best token was ahead of the second at every place."""
    with LLM(str(path), report=lambda message: None, **settings) as llm:
        results = [result.outputs[0] for result in llm.generate(PROMPTS, GREEDY)]
    found = []
    for result in results:
        best = [sorted(one.logprob for one in place.values()) for place in result.logprobs]
        found.append((result.token_ids, [values[-1] - values[-2] for values in best]))
    return found


def assert_alike(got, expected, close):
    """Equal up to the first place at which the second token was close behind."""
    for (ours, _), (theirs, margins) in zip(got, expected, strict=True):
        differs = next((i for i in range(len(ours)) if ours[i] != theirs[i]), None)
        if differs is not None:
            assert margins[differs] < close, (
                f"token {differs} is {ours[differs]}, on the CPU {theirs[differs]}, which leads by "
                f"{margins[differs]} nats"
            )


@pytest.mark.weights
@pytest.mark.parametrize("settings", [{}, {"enforce_eager": True}, {"deterministic": True}])
@pytest.mark.parametrize("backend", ["triton", FLASHINFER])
def test_smollm2_answers_as_on_the_cpu_up_to_the_first_near_tie(cuda, backend, settings):
    path = catalog.find(catalog.DEFAULT_ALIAS)
    if path is None:
        pytest.skip(f"{catalog.DEFAULT_ALIAS} is not in the cache: octavo pull")
    small = {"max_model_len": 512, "max_num_seqs": 8}
    expected = answers(path, backend="reference", device="cpu", **small)

    got = answers(path, backend=backend, **small, **settings)

    assert_alike(got, expected, CLOSE)


def test_a_tiny_model_answers_as_on_the_cpu(cuda, tiny_gguf):
    expected = answers(tiny_gguf, backend="reference", device="cpu", kv_cache_memory_bytes=8 << 20)

    got = answers(tiny_gguf, backend="triton", dtype="float32")

    assert_alike(got, expected, 1e-3)


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_in_strict_mode_a_crowd_answers_as_one_at_a_time(cuda, tiny_gguf, enforce_eager):
    """Chunks, prefix hits, forks, and a pool that is too small for all."""
    head = "A long beginning that many of them share, so that blocks are found again: " * 2
    prompts = [head + f"number {i}" * (i % 5) for i in range(14)] + ["x" * 7, "y" * 150]
    params = [
        SamplingParams(temperature=0.8, seed=i, max_tokens=20, ignore_eos=True, n=1 + i % 3)
        for i in range(len(prompts))
    ]
    settings = {
        "backend": "triton",
        "deterministic": True,
        "enforce_eager": enforce_eager,
        "max_num_batched_tokens": 96,
        "max_num_seqs": 32,
        "report": lambda message: None,
    }
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=8 << 20, **settings) as llm:
        alone = []
        for prompt, one in zip(prompts, params, strict=True):
            llm.reset_prefix_cache()
            alone += llm.generate(prompt, one)
        block = llm.built.layout.block_bytes
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=60 * block, **settings) as llm:
        together = llm.generate(prompts, params)
        preempted = llm._engine.stats.preemptions

    assert preempted > 0, "the pool was large enough for all: nothing was put back"
    for one, other in zip(alone, together, strict=True):
        texts = [output.token_ids for output in one.outputs]
        assert [output.token_ids for output in other.outputs] == texts


def test_kv_that_the_kernels_do_not_read_is_refused_with_the_way_out(cuda, tiny_gguf):
    with pytest.raises(ConfigError, match=r"triton reads KV stored as .* not as int8: choose"):
        LLM(str(tiny_gguf), backend="triton", kv_cache_dtype="int8")


def test_auto_takes_the_reference_for_what_the_kernels_cannot_do(cuda, tiny_gguf):
    notes = []
    with LLM(str(tiny_gguf), kv_cache_dtype="int8", report=notes.append) as llm:
        assert llm.built.backend == "reference"

    assert any(note.startswith("backend: reference (the backend") for note in notes)
