"""Log-probabilities of prompts and answers against transformers, whatever happens to the cache."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import LLM, SamplingParams

NEAR = 2e-4
BLOCK_BYTES = 16 * 2 * 2 * 16 * 4 * 2
"""Of a block of 16 tokens: 2 layers, 2 KV heads of 16 numbers in float32, keys and values."""
TEXT = "the quick brown fox jumps over the lazy dog and sings hello to the hens "
TOP = 4


@pytest.fixture(scope="module")
def oracle(tiny_folder):
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(tiny_folder).float().eval()


def true_logprobs(model, ids: list[int]) -> np.ndarray:
    """Log-probabilities after every token of a text: [tokens, vocabulary], float64."""
    import torch

    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].double()
    return torch.log_softmax(logits, dim=-1).numpy()


def check_position(named, row: np.ndarray, token: int, top: int = TOP) -> None:
    """Compare what is named at one position with the model's own row."""
    assert token in named
    assert len(named) in (top, top + 1)
    for other, one in named.items():
        assert one.logprob == pytest.approx(row[other], abs=NEAR)
        above = np.count_nonzero(row > row[other] + NEAR)
        level = np.count_nonzero(row >= row[other] - NEAR)
        assert above < one.rank <= level
    ranks = sorted(one.rank for one in named.values())
    assert ranks[:top] == list(range(1, top + 1))


def check_result(oracle, result) -> None:
    """Compare every position of a prompt and of its answers."""
    prompt = result.prompt_token_ids
    for answer in result.outputs:
        rows = true_logprobs(oracle, [*prompt, *answer.token_ids])
        assert len(answer.logprobs) == len(answer.token_ids)
        for place, token in enumerate(answer.token_ids):
            check_position(answer.logprobs[place], rows[len(prompt) + place - 1], token)
        values = [
            one[token].logprob for one, token in zip(answer.logprobs, answer.token_ids, strict=True)
        ]
        assert answer.cumulative_logprob == pytest.approx(sum(values))
    if result.prompt_logprobs is not None:
        assert len(result.prompt_logprobs) == len(prompt)
        assert result.prompt_logprobs[0] is None
        for place in range(1, len(prompt)):
            check_position(result.prompt_logprobs[place], rows[place - 1], prompt[place])


def options(**rest):
    return SamplingParams(temperature=1.0, seed=3, ignore_eos=True, logprobs=TOP, **rest)


@pytest.mark.parametrize("chunk", [7, 16, 2048])
@pytest.mark.parametrize("deterministic", [False, True])
def test_prompts_are_scored_right_beside_prefix_hits_and_in_any_chunks(
    engine, oracle, tiny_folder, chunk, deterministic
):
    with LLM(
        str(tiny_folder),
        **engine,
        kv_cache_memory_bytes=1 << 20,
        max_num_batched_tokens=chunk,
        deterministic=deterministic,
    ) as llm:
        plain, scored = options(max_tokens=5), options(max_tokens=5, prompt_logprobs=TOP)
        llm.generate(TEXT * 2, plain)

        results = llm.generate([TEXT * 2, TEXT * 2, TEXT + "x"], [scored, plain, scored])

        for result in results:
            check_result(oracle, result)
        assert [result.num_cached_tokens > 0 for result in results] == [False, True, False]
        assert results[1].prompt_logprobs is None
        again = llm.generate(TEXT + "x", plain)[0]
        assert again.num_cached_tokens == len(again.prompt_token_ids) - 1


def test_preemption_changes_no_log_probability(engine, oracle, tiny_folder):
    prompts = [TEXT + str(number) for number in range(6)]
    with LLM(
        str(tiny_folder),
        **engine,
        kv_cache_memory_bytes=14 * BLOCK_BYTES,
        max_num_batched_tokens=16,
    ) as llm:
        results = llm.generate(prompts, options(max_tokens=30, prompt_logprobs=TOP))

        assert llm.memory_report().preemptions > 0
        for result in results:
            check_result(oracle, result)


def test_several_answers_come_with_one_scored_prompt(engine, oracle, tiny_folder):
    with LLM(str(tiny_folder), **engine, kv_cache_memory_bytes=1 << 20) as llm:
        (result,) = llm.generate(TEXT, options(n=3, max_tokens=6, prompt_logprobs=TOP))

        check_result(oracle, result)


@pytest.mark.parametrize("reservation", ["max", "static"])
def test_a_contiguous_baseline_scores_the_same(engine, oracle, tiny_folder, reservation):
    with LLM(
        str(tiny_folder),
        **engine,
        kv_cache_memory_bytes=1 << 20,
        max_model_len=128,
        reservation=reservation,
    ) as llm:
        (result,) = llm.generate(TEXT, options(n=2, max_tokens=6, prompt_logprobs=TOP))

        check_result(oracle, result)


def test_the_whole_vocabulary_can_be_asked_for(engine, oracle, tiny_folder):
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=-1, prompt_logprobs=-1)
    with LLM(str(tiny_folder), **engine, kv_cache_memory_bytes=1 << 20) as llm:
        (result,) = llm.generate(TEXT, params)

    rows = true_logprobs(oracle, result.prompt_token_ids)
    for named, row in zip(result.prompt_logprobs[1:], rows, strict=False):
        assert len(named) == len(row)
        assert sum(np.exp(one.logprob) for one in named.values()) == pytest.approx(1)
    assert len(result.outputs[0].logprobs[0]) == rows.shape[1]


def test_a_prompt_is_scored_in_tiles(tiny_folder, monkeypatch):
    from octavo.models.decoder import Decoder
    from octavo.runner.step_runner import SCORED_ROWS

    rows, score = [], Decoder.score

    def watched(self, states, tiles):
        rows.append(len(states))
        return score(self, states, tiles)

    monkeypatch.setattr(Decoder, "score", watched)
    with LLM(str(tiny_folder), backend="reference", kv_cache_memory_bytes=1 << 20) as llm:
        (result,) = llm.generate(TEXT * 4, options(max_tokens=1, prompt_logprobs=0))

    assert len(result.prompt_token_ids) > 2 * SCORED_ROWS
    assert max(rows) == SCORED_ROWS
    assert sum(rows) == len(result.prompt_token_ids)
