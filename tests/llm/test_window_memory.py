"""A model with windows, end to end: memory is what the plan says, answers are those of more."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams
from octavo.models import catalog
from octavo.planner.plan import Wish, make_plan
from octavo.planner.subject import model_subject
from tiny_model import write_tiny_gguf

GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
PROMPT = {"prompt_token_ids": [3 + i % 50 for i in range(150)]}


@pytest.fixture(scope="module")
def windowed(tmp_path_factory):
    """A tiny model in which every second layer sees 32 tokens."""
    return write_tiny_gguf(
        tmp_path_factory.mktemp("windows") / "tiny.gguf",
        metadata={
            "llama.attention.sliding_window": 32,
            "llama.attention.sliding_window_pattern": 2,
            "llama.context_length": 512,
        },
    )


def engine(path, **options):
    return LLM(str(path), **{"kv_cache_memory_bytes": 2**20, "block_size": 8, **options})


def test_a_text_holds_what_the_layout_says_and_at_most_what_the_plan_says(windowed):
    llm = engine(windowed)
    layout = llm.built.layout

    length, most = 150, 0
    for _ in llm.stream(PROMPT, GREEDY):
        usage = llm.built.engine.usage()
        if usage.blocks_used and length > 150:
            assert usage.blocks_used == layout.held_blocks(length)
            most = max(most, usage.blocks_used)
        length += 1

    wish = Wish(memory_bytes=2**30, context_tokens=length - 1, block_size=8)
    plan = make_plan(model_subject(windowed), wish)
    assert [group.window for group in layout.groups] == [None, 32]
    assert most * layout.block_bytes == plan.kv_bytes_per_request
    assert usage.blocks_used == 0


def test_the_report_counts_each_group(windowed):
    llm = engine(windowed, max_num_batched_tokens=16)
    llm.generate(PROMPT, GREEDY, use_tqdm=False)

    full, window = llm.memory_report().groups

    assert full.blocks_used_peak == -(-189 // 8)
    assert window.blocks_used_peak <= (32 + 16) // 8 + 1


@pytest.mark.parametrize("budget", [16, 50, 2048])
def test_chunks_company_and_prefixes_change_no_answer(windowed, budget):
    alone = engine(windowed).generate(PROMPT, GREEDY, use_tqdm=False)[0].outputs[0].token_ids
    llm = engine(windowed, max_num_batched_tokens=budget, deterministic=True)
    others = [{"prompt_token_ids": [*PROMPT["prompt_token_ids"], 5, i]} for i in range(6)]

    cold = llm.generate([PROMPT, *others], GREEDY, use_tqdm=False)
    warm = llm.generate([PROMPT, *others], GREEDY, use_tqdm=False)

    assert cold[0].outputs[0].token_ids == alone
    assert warm[0].num_cached_tokens == 149
    assert [r.outputs[0].token_ids for r in warm] == [r.outputs[0].token_ids for r in cold]


def test_a_small_pool_preempts_and_gives_the_same_answers(windowed):
    prompts = [{"prompt_token_ids": [7, i, *range(3, 40)]} for i in range(8)]
    plenty = engine(windowed).generate(prompts, GREEDY, use_tqdm=False)
    small = engine(windowed, kv_cache_memory_bytes=80_000, max_num_batched_tokens=32)

    tight = small.generate(prompts, GREEDY, use_tqdm=False)

    assert small.memory_report().preemptions > 0
    assert [r.outputs[0].token_ids for r in tight] == [r.outputs[0].token_ids for r in plenty]


def test_samples_of_one_prompt_share_what_their_windows_see(windowed):
    llm = engine(windowed)
    params = SamplingParams(n=4, max_tokens=20, ignore_eos=True, seed=1)
    alone = SamplingParams(n=1, max_tokens=20, ignore_eos=True, seed=1)

    many = llm.generate(PROMPT, params, use_tqdm=False)[0]
    one = llm.generate(PROMPT, alone, use_tqdm=False)[0]

    assert llm.memory_report().copies > 0
    assert many.outputs[0].token_ids == one.outputs[0].token_ids


@pytest.mark.slow
@pytest.mark.weights
def test_gemma_at_8192_tokens_holds_less_than_a_quarter_of_full_attention():
    path = catalog.find("gemma3-270m")
    if path is None:
        pytest.skip("gemma3-270m is not in the cache: octavo pull gemma3-270m")
    llm = LLM(str(path), kv_cache_memory_bytes=2**28, max_num_batched_tokens=512)
    layout = llm.built.layout
    ids = [1000 + 7 * i for i in range(8191)]

    answer = llm.stream({"prompt_token_ids": ids}, SamplingParams(max_tokens=3, temperature=0))
    next(answer)
    next(answer)
    used = llm.built.engine.usage().blocks_used * layout.block_bytes
    answer.close()

    wish = Wish(memory_bytes=2**33, context_tokens=8192, dtype=layout.dtype)
    plan = make_plan(model_subject(path), wish)
    everything = sum(len(group.layers) for group in layout.groups) // 3 * 512 * layout.block_bytes
    assert used == plan.kv_bytes_per_request
    assert used * 4 <= everything
