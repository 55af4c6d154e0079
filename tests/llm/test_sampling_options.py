"""Each sampling option through `LLM.generate`, alone and in one batch with others."""

from __future__ import annotations

import pytest

from octavo import LLM, SamplingParams

PROMPT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20) as llm:
        yield llm


def greedy(**options):
    return SamplingParams(**{"temperature": 0, "max_tokens": 12, "ignore_eos": True} | options)


def answer(llm, **options):
    return llm.generate(PROMPT, greedy(**options))[0].outputs[0]


def test_min_p_of_one_is_greedy(llm):
    got = answer(llm, temperature=1.0, min_p=1.0, seed=5)

    assert got.token_ids == answer(llm).token_ids


@pytest.mark.parametrize("option", ["presence_penalty", "frequency_penalty"])
def test_a_penalty_makes_the_answer_repeat_less_or_more(llm, option):
    def distinct(value):
        options = {option: value, "temperature": 1.0, "seed": 1, "max_tokens": 200}
        return len(set(answer(llm, **options).token_ids))

    assert distinct(2.0) > distinct(0.0) > distinct(-2.0)


def test_the_repetition_penalty_knows_a_prompt_that_was_found_in_memory(llm):
    options = {"repetition_penalty": 1e6, "max_tokens": 20}
    llm.reset_prefix_cache()
    cold = llm.generate(PROMPT, greedy(**options))[0]
    warm = llm.generate(PROMPT, greedy(**options))[0]

    assert (cold.num_cached_tokens, warm.num_cached_tokens > 0) == (0, True)
    assert warm.outputs[0].token_ids == cold.outputs[0].token_ids
    ids = cold.outputs[0].token_ids
    assert len(set(ids)) == len(ids), "a token came twice"
    assert not set(ids) & set(cold.prompt_token_ids), "a token of the prompt came again"


def test_a_bias_forces_a_token_or_keeps_it_away(llm):
    assert answer(llm, logit_bias={77: 1000.0}).token_ids == [77] * 12
    first = answer(llm).token_ids[0]
    assert answer(llm, logit_bias={first: -1000.0}).token_ids[0] != first


def test_only_allowed_tokens_come(llm):
    got = answer(llm, temperature=1.0, seed=2, allowed_token_ids=[70, 80, 90], max_tokens=60)

    assert set(got.token_ids) == {70, 80, 90}


def test_a_bad_word_never_comes(llm):
    tokenizer = llm.get_tokenizer()
    options = {"logit_bias": {t: 8.0 for t in tokenizer.encode("ab")}, "temperature": 1.0}

    free = answer(llm, **options, seed=1, max_tokens=60)
    banned = answer(llm, **options, seed=1, max_tokens=60, bad_words=["ab"])

    assert "ab" in free.text
    assert "ab" not in banned.text
    assert {"a", "b"} <= set(banned.text), "the tokens themselves are not banned"


def test_a_bad_word_of_one_token_is_banned_after_a_space_too(llm):
    tokenizer = llm.get_tokenizer()
    the, spaced = tokenizer.encode("he"), tokenizer.encode(" the")
    assert len(the) == len(spaced) == 1
    bias = {the[0]: 20.0, spaced[0]: 20.0}

    banned = answer(llm, temperature=1.0, seed=1, bad_words=["he"], logit_bias=bias)

    assert the[0] not in banned.token_ids
    assert spaced[0] in banned.token_ids


def test_the_stop_text_is_kept_if_asked_for(llm):
    text = answer(llm).text
    stop = text[3:5]

    got = answer(llm, stop=stop, include_stop_str_in_output=True)

    assert got.text == text[: text.index(stop) + len(stop)]
    assert (got.finish_reason, got.stop_reason) == ("stop", stop)


def test_the_stop_token_is_kept_in_the_text_if_asked_for(llm):
    ids = answer(llm, allowed_token_ids=range(64, 90)).token_ids
    options = {"allowed_token_ids": range(64, 90), "stop_token_ids": [ids[2]]}
    decode = llm.get_tokenizer().decode
    end = ids.index(ids[2]) + 1

    assert answer(llm, **options).text == decode(ids[: end - 1])
    assert answer(llm, **options, include_stop_str_in_output=True).text == decode(ids[:end])


def test_no_end_token_comes_and_no_stop_text_counts_before_min_tokens(llm):
    (eos, *_) = sorted(llm.get_tokenizer().eos_token_ids)
    wanted = {"ignore_eos": False, "logit_bias": {eos: 1000.0, 77: 100.0}}

    assert answer(llm, **wanted).token_ids == [eos]
    assert answer(llm, **wanted, min_tokens=4).token_ids == [77] * 4 + [eos]
    letter = llm.get_tokenizer().decode([77])
    stopped = answer(llm, logit_bias={77: 100.0}, stop=letter * 2, min_tokens=4)
    assert len(stopped.token_ids) == 5
    assert stopped.text == letter * 3
    by_token = answer(llm, logit_bias={77: 100.0, 78: 50.0}, stop_token_ids=[77], min_tokens=3)
    assert by_token.token_ids == [78, 78, 78, 77]


def test_special_tokens_are_text_if_asked_for(llm):
    tokenizer = llm.get_tokenizer()
    special = sorted(tokenizer.special_ids)[-1]
    options = {"logit_bias": {special: 1000.0}, "max_tokens": 2}

    assert answer(llm, **options).text == ""
    shown = answer(llm, **options, skip_special_tokens=False).text
    assert shown == tokenizer.decode([special] * 2, skip_special_tokens=False)


def test_without_detokenizing_there_are_ids_alone(llm):
    got = answer(llm, detokenize=False, logprobs=1)

    assert got.text == ""
    assert got.token_ids == answer(llm).token_ids
    assert all(one.decoded_token is None for named in got.logprobs for one in named.values())


def test_log_probabilities_name_their_tokens(llm):
    got = answer(llm, logprobs=2)

    for named, token in zip(got.logprobs, got.token_ids, strict=True):
        assert next(iter(named)) == token
        assert named[token].rank == 1
        assert named[token].decoded_token == llm.get_tokenizer().decode([token])
    assert answer(llm).logprobs is None


def test_a_prompt_of_one_token_has_no_log_probability(llm):
    (result,) = llm.generate({"prompt_token_ids": [70]}, greedy(prompt_logprobs=1))

    assert result.prompt_logprobs == [None]


MIX = [
    {},
    {"presence_penalty": 1.5, "temperature": 1.0, "seed": 3},
    {"repetition_penalty": 1.5},
    {"min_p": 0.2, "temperature": 1.0, "seed": 4},
    {"allowed_token_ids": [70, 71, 72], "frequency_penalty": 2.0},
    {"bad_words": ["a", "he ll"], "temperature": 1.0, "seed": 5, "n": 3},
    {"logit_bias": {70: 3.0}, "min_tokens": 5, "stop_token_ids": [70]},
    {"logprobs": 3, "prompt_logprobs": 2},
]


@pytest.mark.parametrize("pressed", [False, True])
def test_a_row_is_independent_of_the_batch(llm, tiny_gguf, pressed):
    params = [greedy(**options) for options in MIX]
    prompts = [PROMPT + str(number % 3) for number in range(len(MIX))]
    block = llm.built.layout.block_bytes
    memory = {"kv_cache_memory_bytes": 12 * block, "max_num_batched_tokens": 16}
    if not pressed:
        memory = {"kv_cache_memory_bytes": 4 << 20}
    alone = [
        [one.token_ids for one in llm.generate(prompt, one_params)[0].outputs]
        for prompt, one_params in zip(prompts, params, strict=True)
    ]

    with LLM(str(tiny_gguf), **memory) as other:
        together = other.generate(prompts, params)
        preemptions = other.memory_report().preemptions

    assert [[one.token_ids for one in result.outputs] for result in together] == alone
    assert (preemptions > 0) == pressed


def test_answers_stay_as_they_are_when_n_grows_with_penalties(llm):
    def answers(n):
        params = greedy(n=n, temperature=1.0, seed=1, presence_penalty=1.0, bad_words=["he"])
        return [one.token_ids for one in llm.generate(PROMPT, params)[0].outputs]

    assert answers(4)[:2] == answers(2)
    assert answers(2)[:1] == answers(1)


def test_a_request_without_a_token_left_ends_with_the_reason_and_no_other_does(llm):
    (letter,) = llm.get_tokenizer().encode("a", add_special_tokens=False)
    impossible = greedy(allowed_token_ids=[letter], bad_words=["aa"])

    broken, fine = llm.generate([PROMPT, PROMPT], [impossible, greedy()])

    assert broken.outputs[0].finish_reason == "error"
    assert "every token is banned for output token 2" in broken.outputs[0].stop_reason
    assert fine.outputs[0].token_ids == answer(llm).token_ids
    llm.built.engine.check()
    assert llm.built.engine.usage().blocks_used == 0
