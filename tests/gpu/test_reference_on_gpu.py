"""The reference executor on a GPU: the promises it keeps on a CPU, and a CPU's answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from octavo import LLM, ConfigError, SamplingParams
from octavo.executors.torch import kv_codecs
from octavo.models.exact import exact_row_tiles
from octavo.runner.device import device_memory, find_device
from octavo.testing.attention import check_attention_backend
from octavo.testing.codecs import check_codec
from octavo.testing.runner_suite import check_runner
from octavo.testing.tiny import hand_for, reference_backend, tiny_decoder, tiny_spec

pytestmark = pytest.mark.gpu

CODECS = kv_codecs()
PROMPTS = [
    "The quick brown fox jumps over the lazy dog",
    "hello hello hello",
    "A much longer text, so that several blocks and more than one tile of keys are needed: " * 3,
]
CLOSE = 1e-3
"""Nats: two tokens that are no further apart may change places between devices."""
SHAPE = {"num_heads": 6, "num_kv_heads": 2, "head_dim": 16}


def answers(path, prompts=tuple(PROMPTS), **settings):
    """Greedy answers, each with how far its best token was ahead of the second at every place."""
    params = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=2)
    with LLM(str(path), backend="reference", **settings) as llm:
        results = [result.outputs[0] for result in llm.generate(list(prompts), params)]
    found = []
    for result in results:
        best = [sorted(one.logprob for one in place.values()) for place in result.logprobs]
        found.append((result.token_ids, [values[-1] - values[-2] for values in best]))
    return found


def strict_hand(decoder, dtype):
    try:
        return hand_for(decoder, block_size=4, num_blocks=200, deterministic=True, dtype=dtype)
    except ConfigError as error:
        pytest.skip(f"not promised on this device: {error}")


def words(count, seed):
    return np.random.default_rng(seed).integers(0, 96, count).tolist()


# ── suites ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_attention_suite_passes(cuda, dtype):
    check_attention_backend(reference_backend, device=cuda, dtypes=(dtype,))


@pytest.mark.parametrize("make", CODECS.values(), ids=CODECS)
def test_the_codec_suite_passes(cuda, make):
    check_codec(make, device=cuda)


@pytest.mark.parametrize("make", CODECS.values(), ids=CODECS)
def test_a_codec_stores_the_bytes_that_it_stores_on_a_cpu(cuda, make):
    x = torch.randn(50, 3, 80, generator=torch.Generator().manual_seed(0))
    x = x * torch.logspace(-3, 1, 50)[:, None, None]

    here, there = make().encode(x), make().encode(x.to(cuda)).cpu()

    assert torch.equal(there.view(torch.uint8), here.view(torch.uint8))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
def test_the_runner_suite_passes(cuda, weights, dtype):
    decoder = tiny_decoder(dtype=weights, device=cuda)

    check_runner(lambda: hand_for(decoder, num_blocks=16, block_size=4, dtype=dtype).runner)


def test_the_runner_suite_passes_in_strict_mode(cuda):
    decoder = tiny_decoder(device=cuda)
    strict_hand(decoder, "float32")

    def make():
        return hand_for(decoder, num_blocks=16, block_size=4, deterministic=True).runner

    check_runner(make)


# ── one model, two devices ────────────────────────────────────────────────────────────────


def test_greedy_answers_are_those_of_the_cpu_up_to_the_first_near_tie(cuda, tiny_gguf):
    expected = answers(tiny_gguf, device="cpu", kv_cache_memory_bytes=8 << 20)

    got = answers(tiny_gguf, device=cuda)

    for (ours, _), (theirs, margins) in zip(got, expected, strict=True):
        assert len(ours) == len(theirs) == 24
        differs = next((i for i in range(24) if ours[i] != theirs[i]), None)
        if differs is not None:
            assert margins[differs] < CLOSE, (
                f"token {differs} is {ours[differs]}, on the CPU {theirs[differs]}, which leads by "
                f"{margins[differs]} nats"
            )


def test_logits_are_those_of_the_cpu_within_rounding(cuda):
    spec = tiny_spec(**SHAPE)
    rows = []
    for device in ("cpu", cuda):
        hand = hand_for(tiny_decoder(spec, seed=1, device=device), block_size=4)
        hand.start(0, words(90, seed=0))
        hand.run(hand.slice(0, 90))
        rows.append(hand.logits[0][0].cpu())

    assert not torch.backends.cuda.matmul.allow_tf32, "something has switched TF32 on"
    torch.testing.assert_close(rows[1], rows[0], atol=1e-3, rtol=0)


@pytest.mark.parametrize(
    "settings",
    [{"dtype": "bfloat16"}, {"kv_cache_dtype": "int8"}, {"kv_cache_dtype": "float32/int8"}],
    ids=str,
)
def test_other_formats_answer_too_and_warm_memory_is_found(cuda, tiny_gguf, settings):
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(tiny_gguf), backend="reference", device=cuda, **settings) as llm:
        first = llm.generate(PROMPTS, params)
        again = llm.generate(PROMPTS[2], params)

    assert all(len(result.outputs[0].token_ids) == 8 for result in first)
    assert again[0].num_cached_tokens >= 16


# ── strict mode ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("weights", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv", ["auto", "int8"])
def test_in_strict_mode_warm_equals_cold_equals_batched_bit_for_bit(cuda, weights, kv):
    decoder = tiny_decoder(tiny_spec(**SHAPE), seed=1, dtype=weights, device=cuda)
    kv = weights if kv == "auto" else kv
    prompt = words(150, seed=0)
    cold = strict_hand(decoder, kv)
    cold.start(0, prompt)
    cold.generate(0, 12)

    hand = strict_hand(decoder, kv)
    hand.start(1, prompt[:100])
    hand.generate(1, 1)
    for seq in range(2, 8):
        hand.start(seq, words(9 * seq, seed=seq))
    hand.start(9, prompt, like=1)
    hand.run(hand.slice(9, 11), *(hand.slice(seq, 9 * seq) for seq in range(2, 8)))
    while len(hand.texts[9]) < len(prompt) + 12:
        others = [hand.slice(seq, 1) for seq in range(2, 8)]
        hand.run(*others, hand.slice(9, len(hand.texts[9]) - hand.written[9]))

    assert hand.texts[9] == cold.texts[0]
    assert torch.equal(torch.stack(hand.logits[9]), torch.stack(cold.logits[0]))


def test_an_engine_in_strict_mode_gives_the_same_answer_warm_and_in_company(cuda, tiny_gguf):
    strict_hand(tiny_decoder(device=cuda), "float32")
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    with LLM(str(tiny_gguf), backend="reference", device=cuda, deterministic=True) as llm:
        cold = llm.generate(PROMPTS[2], params)[0]
        warm = llm.generate(PROMPTS, params)[2]
        tiles = llm.built.deterministic_tiles

    assert tiles
    assert warm.num_cached_tokens > cold.num_cached_tokens == 0
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids


def test_some_row_tiles_agree(cuda):
    assert exact_row_tiles(tiny_decoder(device=cuda)).sizes


# ── device and memory ─────────────────────────────────────────────────────────────────────


def test_auto_takes_the_gpu(cuda, tiny_gguf):
    before = torch.cuda.memory_allocated()
    with LLM(str(tiny_gguf)) as llm:
        pool = llm.built.num_blocks * llm.built.layout.block_bytes

        assert llm.built.device == "cuda:0"
        assert torch.cuda.memory_allocated() - before >= pool


def test_a_pool_larger_than_the_gpu_is_refused_with_what_is_free(cuda, tiny_gguf):
    with pytest.raises(ConfigError, match=r"GiB are free; .* it would fit with --kv-cache-memory"):
        LLM(str(tiny_gguf), device=cuda, kv_cache_memory_bytes=1 << 50)


def test_free_memory_shrinks_by_what_is_taken(cuda):
    device = find_device(cuda)
    before, size = device_memory(device)
    taken = torch.empty(256 << 20, dtype=torch.uint8, device=device)

    after, same = device_memory(device)
    assert size == same
    # Other programs may use the GPU too.
    assert abs(before - after - taken.numel()) < 64 << 20


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(cuda, tiny_gguf):
    with pytest.raises(ConfigError, match=r"device 'cuda:99' .*choose one of cpu, cuda:0"):
        LLM(str(tiny_gguf), device="cuda:99")
