"""`LLM.generate` on a tiny random model: results, options, memory."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20) as llm:
        yield llm


def test_results_come_in_the_order_of_the_prompts(llm):
    prompts = [PROMPT, "a", PROMPT + " again"]

    results = llm.generate(prompts, GREEDY)

    assert [result.prompt for result in results] == prompts
    assert all(result.finished for result in results)
    assert all(len(result.outputs[0].token_ids) == 12 for result in results)
    assert results[0].outputs[0].finish_reason == "length"


def test_texts_dicts_and_token_ids_are_the_same_prompt(llm):
    ids = llm.get_tokenizer().encode(PROMPT)

    texts = [
        llm.generate(prompt, GREEDY)[0].outputs[0].text
        for prompt in (PROMPT, {"prompt": PROMPT}, {"prompt_token_ids": ids})
    ]

    assert len(set(texts)) == 1


def test_the_text_is_the_decoded_tokens(llm):
    (result,) = llm.generate(PROMPT, GREEDY)

    assert result.outputs[0].text == llm.get_tokenizer().decode(result.outputs[0].token_ids)


def test_a_second_run_finds_the_prompt_in_memory(llm):
    first = llm.generate(PROMPT, GREEDY)[0]
    second = llm.generate(PROMPT, GREEDY)[0]

    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == len(second.prompt_token_ids) - 1
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


def test_an_answer_says_why_its_prompt_was_not_in_memory(llm):
    llm.generate(PROMPT, GREEDY)
    llm.reset_prefix_cache()
    (first,) = llm.generate(PROMPT, GREEDY)
    (second,) = llm.generate(PROMPT, GREEDY)
    (third,) = llm.generate(PROMPT[:20] + "?" * 20, GREEDY)

    missing = len(first.prompt_token_ids) - 1
    assert (first.miss.reason, first.miss.position, first.miss.tokens) == ("cleared", 0, missing)
    assert second.miss is None
    assert (third.miss.reason, third.miss.position) == ("diverged", third.num_cached_tokens)
    assert llm.memory_report().missed_tokens["cleared"] >= missing
    assert {"octavo:misses_cleared", "octavo:missed_tokens_diverged"} <= {
        metric.name for metric in llm.get_metrics()
    }


def test_without_partial_blocks_a_second_run_finds_whole_ones(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20, partial_blocks=False) as llm:
        llm.generate(PROMPT, GREEDY)
        again = llm.generate(PROMPT, GREEDY)[0]

    assert again.num_cached_tokens == (len(again.prompt_token_ids) - 1) // 16 * 16


def test_the_prefix_cache_can_be_emptied(llm):
    llm.generate(PROMPT, GREEDY)

    assert llm.reset_prefix_cache() > 0
    assert llm.generate(PROMPT, GREEDY)[0].num_cached_tokens == 0


def test_a_seed_gives_the_same_answer_whatever_else_runs(llm):
    params = SamplingParams(temperature=1.0, seed=7, max_tokens=12, ignore_eos=True)

    (alone,) = llm.generate(PROMPT, params)
    among = llm.generate(["x", PROMPT, "y z"], params)[1]

    assert among.outputs[0].token_ids == alone.outputs[0].token_ids


def test_without_a_seed_requests_differ_and_engines_agree(tiny_gguf):
    params = SamplingParams(temperature=1.0, max_tokens=12, ignore_eos=True)

    def run() -> list[list[int]]:
        with LLM(str(tiny_gguf), seed=3, kv_cache_memory_bytes=4 << 20) as llm:
            return [r.outputs[0].token_ids for r in llm.generate([PROMPT] * 2, params)]

    one, two = run(), run()

    assert one == two
    assert one[0] != one[1]


def test_n_answers_share_the_prompts_blocks(llm):
    params = SamplingParams(n=4, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)

    (result,) = llm.generate(PROMPT, params)

    assert [answer.index for answer in result.outputs] == [0, 1, 2, 3]
    assert len({tuple(answer.token_ids) for answer in result.outputs}) > 1
    report = llm.memory_report()
    assert report.blocks_shared_peak >= len(result.prompt_token_ids) // 16
    assert report.logical_blocks_peak > report.blocks_used_peak
    assert report.copies == 3


def test_answers_stay_as_they_are_when_n_grows(llm):
    def answers(n: int) -> list[list[int]]:
        params = SamplingParams(n=n, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)
        return [answer.token_ids for answer in llm.generate(PROMPT, params)[0].outputs]

    assert answers(4)[:2] == answers(2)
    assert answers(2)[:1] == answers(1)


def test_more_answers_than_sequences_at_once_are_all_given(tiny_gguf):
    params = SamplingParams(n=5, temperature=1.0, seed=1, max_tokens=8, ignore_eos=True)

    def run(**settings: int) -> list[list[int]]:
        with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, **settings) as llm:
            return [answer.token_ids for answer in llm.generate(PROMPT, params)[0].outputs]

    assert run(max_num_seqs=2) == run()


def test_a_stop_string_ends_the_text_before_it(llm):
    text = llm.generate(PROMPT, GREEDY)[0].outputs[0].text
    stop = text[3:5]

    (result,) = llm.generate(
        PROMPT, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, stop=stop)
    )

    answer = result.outputs[0]
    assert answer.text == text[: text.index(stop)]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", stop)


def test_a_stop_token_is_named_as_the_reason(llm):
    ids = llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids

    (result,) = llm.generate(
        PROMPT, SamplingParams(temperature=0, max_tokens=12, stop_token_ids=[ids[2]])
    )

    answer = result.outputs[0]
    assert (answer.finish_reason, answer.stop_reason) == ("stop", ids[2])
    assert answer.token_ids == ids[: ids.index(ids[2]) + 1]


def test_a_long_wish_is_cut_to_the_context_and_the_cut_is_reported(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, max_model_len=64) as llm:
        params = SamplingParams(temperature=0, max_tokens=1000, ignore_eos=True)
        (result,) = llm.generate(PROMPT, params)

    room = 64 - len(result.prompt_token_ids)
    assert result.effective_max_tokens == room
    assert len(result.outputs[0].token_ids) == room


@pytest.mark.parametrize("reservation", ["max", "pow2", "oracle", "static"])
def test_a_contiguous_baseline_gives_the_same_answers_without_sharing(tiny_gguf, reservation):
    prompts = [PROMPT, PROMPT, "something else"]

    def run(**settings: object) -> tuple[list[list[int]], object]:
        with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, max_model_len=128, **settings) as m:
            results = m.generate(prompts, GREEDY)
            return [r.outputs[0].token_ids for r in results], m.memory_report()

    paged, _ = run()
    regions, report = run(reservation=reservation)

    assert regions == paged
    assert report.prefix_hit_tokens == 0
    assert report.block_size is None


def test_a_folder_and_a_file_give_the_same_answers(tiny_gguf, tiny_folder):
    def run(path) -> list[int]:
        with LLM(str(path), kv_cache_memory_bytes=4 << 20) as llm:
            return llm.generate(PROMPT, GREEDY)[0].outputs[0].token_ids

    assert run(tiny_gguf) == run(tiny_folder)


def test_a_run_under_pressure_gives_the_same_answers(tiny_gguf):
    prompts = [PROMPT + str(i) for i in range(6)]
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)

    def run(num_blocks: int) -> tuple[list[list[int]], int]:
        # 2 layers, 2 KV heads of 16 numbers in float32, keys and values
        block_bytes = 16 * 2 * 2 * 16 * 4 * 2
        memory = num_blocks * block_bytes
        settings = {"kv_cache_memory_bytes": memory, "max_num_batched_tokens": 16}
        with LLM(str(tiny_gguf), dtype="float32", **settings) as llm:
            results = llm.generate(prompts, params)
            return [r.outputs[0].token_ids for r in results], llm.memory_report().preemptions

    free, none = run(200)
    pressed, some = run(14)

    assert none == 0
    assert some > 0
    assert pressed == free
