"""`backend="cpu"` from end to end: little memory, reused prefixes, forks; and without torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from octavo import LLM, RequestOutput, SamplingParams, cpu
from tiny_model import write_tiny_gguf

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [7, i, *range(3, 40)]} for i in range(8)]
ARITHMETICS = ("int8", "bf16", "float32")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A tiny model with weights of 8 bits, and one in which every second layer has a window."""
    folder = tmp_path_factory.mktemp("native")
    windows = {
        "llama.attention.sliding_window": 32,
        "llama.attention.sliding_window_pattern": 2,
    }
    return {
        "plain": write_tiny_gguf(folder / "plain.gguf", matrix_type="Q8_0"),
        "windows": write_tiny_gguf(folder / "windows.gguf", matrix_type="Q8_0", metadata=windows),
    }


def engine(path, **options):
    given = {"kv_cache_memory_bytes": 4 << 20, "threads": 2, "backend": "cpu"} | options
    return LLM(str(path), report=lambda _: None, **given)


def tokens(results):
    return [[one.token_ids for one in result.outputs] for result in results]


def bits(results):
    """Tokens, and the sums of their log-probabilities to the last bit."""
    return [
        [(one.token_ids, one.cumulative_logprob) for one in result.outputs] for result in results
    ]


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("kind", ["plain", "windows"])
def test_a_small_pool_preempts_and_gives_the_same_answers(models, kind, arithmetic):
    path, how = models[kind], {"cpu_arithmetic": arithmetic}
    with engine(path, **how) as llm:
        plenty = llm.generate(PROMPTS, GREEDY)
        block_bytes = llm.built.layout.block_bytes
    blocks = {"plain": 14, "windows": 26}[kind]
    with engine(
        path, kv_cache_memory_bytes=blocks * block_bytes, max_num_batched_tokens=32, **how
    ) as llm:
        tight = llm.generate(PROMPTS, GREEDY)
        report = llm.memory_report()

    assert report.preemptions > 0
    assert report.blocks_used_peak <= blocks
    assert tokens(tight) == tokens(plenty)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("kind", ["plain", "windows"])
def test_a_reused_prefix_gives_the_same_answer(models, kind, arithmetic):
    with engine(models[kind], cpu_arithmetic=arithmetic, threads=3) as llm:
        cold = llm.generate(PROMPTS, GREEDY)
        warm = llm.generate(PROMPTS, GREEDY)

    assert [result.num_cached_tokens for result in warm] == [38] * len(PROMPTS)
    assert bits(warm) == bits(cold)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("kind", ["plain", "windows"])
def test_a_part_of_a_block_that_is_copied_changes_no_bit(models, kind, arithmetic):
    ends = (3, 17, 22, 31)
    prompts = [{"prompt_token_ids": [*range(5, 5 + end), 90, 91, end]} for end in ends]
    with engine(models[kind], cpu_arithmetic=arithmetic) as llm:
        cold = list[RequestOutput]()
        for prompt in prompts:
            llm.reset_prefix_cache()
            cold += llm.generate(prompt, GREEDY)
        llm.reset_prefix_cache()
        llm.generate({"prompt_token_ids": list(range(5, 60))}, GREEDY)
        warm = llm.generate(prompts, GREEDY)

    assert [result.num_cached_tokens for result in cold] == [0] * len(ends)
    assert tuple(result.num_cached_tokens for result in warm) == ends
    assert bits(warm) == bits(cold)


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
@pytest.mark.parametrize("kind", ["plain", "windows"])
def test_a_conversation_goes_on_from_its_last_token(models, kind, arithmetic):
    with engine(models[kind], cpu_arithmetic=arithmetic) as llm:
        (first,) = llm.generate(PROMPTS[0], GREEDY)
        history = first.prompt_token_ids + first.outputs[0].token_ids
        turn = {"prompt_token_ids": [*history, 90, 91]}
        warm = llm.generate(turn, GREEDY)
        llm.reset_prefix_cache()
        cold = llm.generate(turn, GREEDY)
        copies = llm.memory_report().copies

    # The last token was chosen, and nothing was computed after it.
    assert warm[0].num_cached_tokens == len(history) - 1
    assert copies == 0
    assert bits(warm) == bits(cold)


@pytest.mark.weights
def test_an_instruction_shorter_than_a_block_is_found(smollm2_path):
    texts = [f"Translate the following into French: {word}" for word in ("a cat", "my house")]
    with engine(smollm2_path, kv_cache_memory_bytes=64 << 20) as llm:
        (alone,) = llm.generate(texts[1], GREEDY)
        llm.reset_prefix_cache()
        llm.generate(texts[0], GREEDY)
        (warm,) = llm.generate(texts[1], GREEDY)

    instruction = len(llm.get_tokenizer().encode("Translate the following into French:"))
    assert (alone.num_cached_tokens, warm.num_cached_tokens) == (0, instruction)
    assert instruction < 16
    assert bits([warm]) == bits([alone])


@pytest.mark.parametrize("kind", ["plain", "windows"])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(n=4, max_tokens=20, ignore_eos=True, seed=1),
        SamplingParams(use_beam_search=True, beam_width=4, max_tokens=20, ignore_eos=True),
    ],
    ids=["samples", "beams"],
)
def test_forks_share_and_copy_and_are_the_same_in_a_small_pool(models, kind, params):
    with engine(models[kind], threads=1) as llm:
        plenty = llm.generate(PROMPTS[:3], params)
        assert llm.memory_report().copies > 0
        assert llm.memory_report().blocks_shared_peak > 0
        block_bytes = llm.built.layout.block_bytes
    blocks = {"plain": 24, "windows": 40}[kind]
    with engine(models[kind], kv_cache_memory_bytes=blocks * block_bytes, threads=3) as llm:
        tight = llm.generate(PROMPTS[:3], params)

    assert tokens(tight) == tokens(plenty)
    assert all(len({tuple(one) for one in result}) > 1 for result in tokens(plenty))


def test_scores_of_prompts_and_of_answers_are_near_those_of_the_reference(tiny_gguf):
    params = SamplingParams(
        temperature=0, max_tokens=8, ignore_eos=True, logprobs=3, prompt_logprobs=2
    )
    with LLM(str(tiny_gguf), backend="reference", kv_cache_memory_bytes=1 << 20) as llm:
        (expected,) = llm.generate([PROMPTS[0]], params)
    with engine(tiny_gguf, dtype="float32") as llm:
        (got,) = llm.generate([PROMPTS[0]], params)
        assert llm.built.layout.dtype == "float32"

    assert got.outputs[0].token_ids == expected.outputs[0].token_ids
    assert got.outputs[0].cumulative_logprob == pytest.approx(
        expected.outputs[0].cumulative_logprob, abs=1e-3
    )
    for one, other in zip(got.prompt_logprobs[1:], expected.prompt_logprobs[1:], strict=True):
        assert {t: v.logprob for t, v in one.items()} == pytest.approx(
            {t: v.logprob for t, v in other.items()}, abs=1e-3
        )


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_strict_mode_and_any_number_of_threads_give_the_same_tokens(models, threads):
    hot = SamplingParams(temperature=1.0, max_tokens=20, ignore_eos=True, seed=3)
    with engine(models["plain"], threads=1) as llm:
        expected = llm.generate(PROMPTS, hot)
    with engine(models["plain"], threads=threads, deterministic=True) as llm:
        got = llm.generate(PROMPTS, hot)

    assert tokens(got) == tokens(expected)


# ── what it costs ─────────────────────────────────────────────────────────────────────────

WITHOUT_TORCH = """
import resource, sys
from octavo import LLM, SamplingParams

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

start = peak()
with LLM(sys.argv[1], backend="cpu", kv_cache_memory_bytes=1 << 30, threads=1) as llm:
    built = peak()
    params = SamplingParams(max_tokens=8, ignore_eos=True, n=2, seed=1, logprobs=1)
    llm.generate("Hello there", params)
print(built - start, peak() - built, *[n for n in ("torch", "transformers") if n in sys.modules])
"""


def test_an_answer_needs_no_torch_and_touches_no_more_memory_than_it_uses(models):
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(models["plain"])],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr

    building, answering, *loaded = done.stdout.split()
    assert loaded == []
    # The pool has 1 GB; kilobytes. Memory comes in pages of 2 MB.
    assert int(building) < 150_000
    assert int(answering) < 32_000


@pytest.mark.parametrize("top_k", [49_152, 2**63, 10**20])
def test_any_number_of_likeliest_tokens_may_be_asked_for(tiny_gguf, top_k):
    options = {"temperature": 0.8, "seed": 5, "max_tokens": 8, "ignore_eos": True}
    with LLM(str(tiny_gguf), backend="cpu", kv_cache_memory_bytes=4 << 20) as llm:
        wide, all_tokens = llm.generate(
            ["The sea", "The sea"],
            [SamplingParams(top_k=top_k, **options), SamplingParams(**options)],
        )

    assert wide.outputs[0].token_ids == all_tokens.outputs[0].token_ids
