"""Vectors of prompts on a GPU: the CPU's, in any pieces and company; the host never waits."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.runner.device_pools import DevicePools
from octavo.runner.inputs import Pooled
from octavo.runner.pooling import Pools

pytestmark = pytest.mark.gpu

PROMPTS = [f"{i} the quick brown fox jumps over the lazy dog " * (1 + i % 7) for i in range(24)]
TEXTS = SamplingParams(max_tokens=40, ignore_eos=True, seed=1)
HOW = ["mean", "last"]


def opened(path, how, **settings):
    given = {"backend": "triton", "dtype": "float32", "max_num_seqs": 32} | settings
    return LLM(str(path), pooling=how, report=lambda message: None, **given)


def embedded(llm, prompts=PROMPTS):
    return [one.embedding for one in llm.embed(prompts)]


def beside_texts(llm, prompts=PROMPTS):
    """Embed prompts while texts are being written."""
    stream = llm.stream(["one text", "another one"] * 8, TEXTS)
    next(stream)
    found = embedded(llm, prompts)
    assert sum(len(piece.token_ids) for piece in stream) > 16 * 30
    return found


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize(
    "settings", [{}, {"enforce_eager": True}, {"deterministic": True}], ids=str
)
def test_vectors_are_those_of_the_cpu(cuda, tiny_gguf, how, settings):
    with opened(tiny_gguf, how, backend="reference", device="cpu") as llm:
        expected = embedded(llm)

    for step in (2048, 96):
        with opened(tiny_gguf, how, max_num_batched_tokens=step, **settings) as llm:
            got = [embedded(llm), embedded(llm), beside_texts(llm)]
        for found in got:
            np.testing.assert_allclose(found, expected, atol=2e-4)


@pytest.mark.parametrize("how", HOW)
def test_in_bfloat16_they_are_near(cuda, tiny_gguf, how):
    with opened(tiny_gguf, how, backend="reference", device="cpu") as llm:
        expected = np.array(embedded(llm))

    with opened(tiny_gguf, how, dtype="bfloat16") as llm:
        got = np.array(embedded(llm))

    assert ((got * expected).sum(axis=1) > 0.99).all()


@pytest.mark.parametrize("how", HOW)
def test_in_strict_mode_no_bit_depends_on_pieces_hits_company_or_little_memory(
    cuda, tiny_gguf, how
):
    with opened(tiny_gguf, how, deterministic=True) as llm:
        block = llm.built.layout.block_bytes
        expected = []
        for prompt in PROMPTS:
            llm.reset_prefix_cache()
            expected += embedded(llm, [prompt])
        warm, mixed = embedded(llm), beside_texts(llm)
    small = {"max_num_batched_tokens": 48, "kv_cache_memory_bytes": 40 * block}
    with opened(tiny_gguf, how, deterministic=True, max_model_len=400, **small) as llm:
        cut = beside_texts(llm)
        preempted = llm._engine.stats.preemptions

    assert preempted > 0, "the pool was large enough for all: nothing was put back"
    assert warm == expected
    assert mixed == expected
    assert cut == expected


def test_a_launch_never_waits_for_the_gpu_and_has_the_bits_of_the_host(cuda):
    states = torch.randn(600, 200, device=cuda, dtype=torch.bfloat16)
    steps = [
        [Pooled(0, 0, 300, last=False), Pooled(1, 0, 20, last=True), Pooled(2, 99, 1, last=True)],
        [Pooled(3, 0, 1, last=False), Pooled(0, 300, 250, last=False)],
        [Pooled(0, 550, 3, last=True), Pooled(3, 1, 400, last=True)],
    ]
    pools, host = DevicePools(200, torch.device(cuda)), Pools()
    pools.launch([Pooled(9, 0, 5, last=True)], 0, states)
    torch.cuda.synchronize()

    torch.cuda.set_sync_debug_mode("error")
    try:
        launched = [pools.launch(step, 2, states) for step in steps]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()

    there = states.float().cpu().numpy()
    for step, vectors in zip(steps, launched, strict=True):
        expected = host.take(step, 2, lambda first, count: there[first : first + count])
        assert (vectors.vectors() if vectors else {}) == expected
