"""Beam search through the API: what comes back, in any company and with little memory."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from octavo import LLM, AsyncLLM, RequestError, SamplingParams
from octavo.build import build_engine
from octavo.config import EngineConfig
from octavo.prompts import RequestBuilder

PROMPT = "The quick brown fox jumps over the lazy dog"
BLOCK_BYTES = 16 * 2 * 2 * 16 * 4 * 2
"""Of a block of 16 tokens: 2 layers, 2 KV heads of 16 numbers in float32, keys and values."""
EOS = 2
"""The tiny model's end token."""


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20) as llm:
        yield llm


def beams(width=4, **options):
    given = {"max_tokens": 10, "ignore_eos": True} | options
    return SamplingParams(use_beam_search=True, beam_width=width, **given)


def scores_of(result, penalty=1.0):
    return [one.cumulative_logprob / len(one.token_ids) ** penalty for one in result.outputs]


# ── what comes back ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_the_answers_are_the_best_texts_best_first(llm, width):
    (result,) = llm.generate(PROMPT, beams(width))

    assert [one.index for one in result.outputs] == list(range(width))
    assert len({tuple(one.token_ids) for one in result.outputs}) == width
    assert scores_of(result) == sorted(scores_of(result), reverse=True)
    decode = llm.get_tokenizer().decode
    for one in result.outputs:
        assert one.text == decode(one.token_ids)
        assert (one.finish_reason, one.stop_reason) == ("length", None)
        assert one.logprobs is None
    assert result.finished
    assert result.effective_max_tokens == 10
    assert 0 < result.ttft_s <= result.e2e_s


def test_without_a_width_four_texts_are_followed(llm):
    (result,) = llm.generate(PROMPT, SamplingParams(use_beam_search=True))

    assert len(result.outputs) == 4


def test_the_cumulative_log_probability_is_that_of_the_tokens(llm):
    (result,) = llm.generate(PROMPT, beams())

    for one in result.outputs:
        ids = [*result.prompt_token_ids, *one.token_ids]
        (scored,) = llm.generate(
            {"prompt_token_ids": ids}, SamplingParams(max_tokens=1, prompt_logprobs=0)
        )
        first = len(result.prompt_token_ids)
        values = [
            named[token].logprob
            for named, token in zip(scored.prompt_logprobs[first:], one.token_ids, strict=True)
        ]
        assert one.cumulative_logprob == pytest.approx(sum(values), abs=1e-4)


def test_the_best_beam_is_at_least_as_likely_as_the_greedy_answer(llm):
    for number in range(5):
        greedy = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
        (alone,) = llm.generate(PROMPT + str(number), greedy)
        (best,) = llm.generate(PROMPT + str(number), beams(7))

        assert best.outputs[0].cumulative_logprob >= alone.outputs[0].cumulative_logprob - 1e-5


def test_beams_end_at_the_end_token_and_leave_its_text_out(llm):
    tokenizer = llm.get_tokenizer()
    params = {"ignore_eos": False, "logit_bias": {EOS: 6.0}, "skip_special_tokens": False}

    (result,) = llm.generate(PROMPT, beams(**params))
    (shown,) = llm.generate(PROMPT, beams(**params, include_stop_str_in_output=True))

    ended = [one for one in result.outputs if one.finish_reason == "stop"]
    assert ended
    for one in ended:
        assert one.token_ids[-1] == EOS
        assert one.stop_reason is None
        assert one.text == tokenizer.decode(one.token_ids[:-1], skip_special_tokens=False)
        whole = tokenizer.decode(one.token_ids, skip_special_tokens=False)
        assert shown.outputs[one.index].text == whole


def test_beams_end_at_stop_tokens_and_name_them(llm):
    stops = tuple(range(64, 90))
    (result,) = llm.generate(PROMPT, beams(stop_token_ids=stops, logit_bias={70: 5.0}))
    (kept,) = llm.generate(
        PROMPT,
        beams(stop_token_ids=stops, logit_bias={70: 5.0}, include_stop_str_in_output=True),
    )

    decode = llm.get_tokenizer().decode
    ended = [one for one in result.outputs if one.finish_reason == "stop"]
    assert ended
    for one in ended:
        assert one.stop_reason == one.token_ids[-1]
        assert one.stop_reason in stops
        assert one.text == decode(one.token_ids[:-1])
        assert kept.outputs[one.index].text == decode(one.token_ids)


def test_special_tokens_are_text_if_asked_for(llm):
    decode = llm.get_tokenizer().decode
    biased = {"logit_bias": {1: 5.0}, "max_tokens": 3}

    (hidden,) = llm.generate(PROMPT, beams(**biased))
    (shown,) = llm.generate(PROMPT, beams(**biased, skip_special_tokens=False))

    best = hidden.outputs[0].token_ids
    assert 1 in best
    assert hidden.outputs[0].text == decode([token for token in best if token != 1])
    assert shown.outputs[0].text == decode(best, skip_special_tokens=False)


def test_without_detokenizing_there_are_ids_alone(llm):
    (result,) = llm.generate(PROMPT, beams(detokenize=False))
    (texts,) = llm.generate(PROMPT, beams())

    assert [one.text for one in result.outputs] == [""] * 4
    assert [one.token_ids for one in result.outputs] == [one.token_ids for one in texts.outputs]


def test_the_prompt_is_scored_once_and_found_in_memory_by_the_next(llm):
    prompt = PROMPT * 2
    llm.reset_prefix_cache()

    (first,) = llm.generate(prompt, beams(prompt_logprobs=2))
    (second,) = llm.generate(prompt, beams())
    (plain,) = llm.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=2))

    assert first.num_cached_tokens == 0
    assert second.num_cached_tokens == len(second.prompt_token_ids) - 1
    assert len(first.prompt_logprobs) == len(first.prompt_token_ids)
    for named, other in zip(first.prompt_logprobs[1:], plain.prompt_logprobs[1:], strict=True):
        assert named.keys() == other.keys()
        for token, one in named.items():
            assert one.logprob == pytest.approx(other[token].logprob, abs=1e-5)
    assert [one.token_ids for one in first.outputs] == [one.token_ids for one in second.outputs]


def test_a_chat_is_searched_too(llm):
    (result,) = llm.chat([{"role": "user", "content": "Hello"}], beams(3))

    assert len(result.outputs) == 3


def test_a_stream_brings_whole_texts_at_the_end_beside_others_token_by_token(llm):
    (whole,) = llm.generate(PROMPT, beams(3))
    greedy = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)

    pieces = list(llm.stream([PROMPT, PROMPT + "!"], [beams(3), greedy]))

    mine = [piece for piece in pieces if piece.prompt == 0]
    assert [piece.index for piece in mine] == [0, 1, 2]
    assert [list(piece.token_ids) for piece in mine] == [one.token_ids for one in whole.outputs]
    assert [piece.text for piece in mine] == [one.text for one in whole.outputs]
    assert [piece.finish_reason for piece in mine] == ["length"] * 3
    assert len([piece for piece in pieces if piece.prompt == 1]) == 10


def test_a_search_that_is_left_gives_its_memory_back(llm):
    stream = llm.stream([PROMPT, "x"], [beams(max_tokens=60), SamplingParams(max_tokens=50)])
    for _ in range(5):
        next(stream)
    assert llm.built.engine.usage().blocks_used > 0

    stream.close()

    assert llm.built.engine.usage().blocks_used == 0
    assert not llm.built.engine.busy


def test_searches_run_beside_each_other_in_asyncio(tiny_gguf, llm):
    prompts = [PROMPT + str(number) for number in range(3)]
    expected = [one.outputs for one in llm.generate(prompts, beams(3))]

    async def search(engine, prompt):
        results = [result async for result in engine.generate(prompt, beams(3))]
        return results[-1]

    async def run():
        async with AsyncLLM(LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20)) as engine:
            return await asyncio.gather(*(search(engine, prompt) for prompt in prompts))

    results = asyncio.run(run())

    for result, outputs in zip(results, expected, strict=True):
        assert result.finished
        assert [one.token_ids for one in result.outputs] == [one.token_ids for one in outputs]


# ── in any company, with little memory ────────────────────────────────────────────────────

MIX = [
    beams(4, max_tokens=20),
    SamplingParams(temperature=0, max_tokens=20, ignore_eos=True),
    beams(2, repetition_penalty=1.5, max_tokens=20),
    beams(7, length_penalty=0.0, stop_token_ids=tuple(range(100, 120)), early_stopping="never"),
    SamplingParams(temperature=1.0, seed=3, n=3, max_tokens=12, presence_penalty=1.0),
    beams(1, frequency_penalty=0.5, min_tokens=5, ignore_eos=False, logit_bias={EOS: 4.0}),
    beams(3, bad_words=("he", "a b"), prompt_logprobs=1, early_stopping=True),
]


def built_with(tiny_gguf, depth=1, **settings):
    config = EngineConfig(model=str(tiny_gguf), dtype="float32", deterministic=True, **settings)
    return build_engine(config, report=lambda _: None, depth=depth)


def answers(built, prompts, params):
    builder = RequestBuilder(
        built.tokenizer,
        vocab_size=built.spec.vocab_size,
        namespace=built.namespace,
        seed=0,
    )
    results = {}
    for request, result in builder.build(prompts, params):
        built.engine.add(request)
        results[request.id] = result
    while built.engine.busy:
        for news in built.engine.step():
            results[news.request_id].take_in(news, 0.0)
    return [
        [(one.token_ids, one.cumulative_logprob, one.finish_reason) for one in result.outputs]
        for result in results.values()
    ]


@pytest.fixture(scope="module")
def alone(tiny_gguf):
    """Every request of the mix by itself, with memory enough."""
    built = built_with(tiny_gguf, kv_cache_memory_bytes=4 << 20)
    found = []
    for prompt, params in zip(prompts(), MIX, strict=True):
        found += answers(built, [prompt], params)
        built.engine.reset_prefix_cache()
    return found


def prompts():
    return [PROMPT + str(number % 3) for number in range(len(MIX))]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize(("blocks", "chunk"), [(400, 2048), (400, 9), (24, 2048), (24, 16)])
def test_beams_find_in_company_what_they_find_alone(tiny_gguf, alone, blocks, chunk, depth):
    built = built_with(
        tiny_gguf,
        depth,
        kv_cache_memory_bytes=blocks * BLOCK_BYTES,
        max_num_batched_tokens=chunk,
    )

    together = answers(built, prompts(), MIX)

    assert together == alone
    stats = built.engine.stats
    assert stats.prefix_hit_tokens > 0
    assert (stats.preemptions > 0) == (blocks < 400)
    built.engine.check()
    assert built.engine.usage().blocks_used == 0


def test_a_search_after_a_prefix_hit_finds_the_same(tiny_gguf):
    built = built_with(tiny_gguf, kv_cache_memory_bytes=4 << 20)
    params = beams(5, max_tokens=30)

    cold, warm = (answers(built, [PROMPT * 3], params) for _ in range(2))

    assert built.engine.stats.prefix_hit_tokens > 0
    assert warm == cold


# ── what cannot work ──────────────────────────────────────────────────────────────────────


def test_a_width_beyond_half_of_the_vocabulary_is_refused(llm):
    message = "beam_width is 137, but the vocabulary has 272 tokens, .* lower beam_width to 136"
    with pytest.raises(RequestError, match=message):
        llm.generate(PROMPT, beams(137))


def test_a_width_beyond_what_one_step_holds_is_refused(llm):
    with pytest.raises(RequestError, match="beam_width is 130, but max_num_seqs is 128"):
        llm.generate(PROMPT, beams(130))


def test_texts_that_cannot_exist_are_reported_one_by_one(llm):
    (result,) = llm.generate(PROMPT, beams(4, allowed_token_ids=(70, 71), max_tokens=1))

    found, missing = result.outputs[:2], result.outputs[2:]
    assert sorted(one.token_ids for one in found) == [[70], [71]]
    for one in missing:
        assert one.finish_reason == "error"
        assert "fewer texts than beam_width are possible" in one.stop_reason
    assert llm.built.engine.usage().blocks_used == 0


def test_a_search_without_any_token_left_ends_and_no_other_does(llm):
    (letter,) = llm.get_tokenizer().encode("a", add_special_tokens=False)
    impossible = beams(2, allowed_token_ids=(letter,), bad_words=("aa",))

    broken, fine = llm.generate([PROMPT, PROMPT], [impossible, beams(2)])

    assert [one.finish_reason for one in broken.outputs] == ["error"] * 2
    assert [one.finish_reason for one in fine.outputs] == ["length"] * 2
    assert llm.built.engine.usage().blocks_used == 0


def test_numbers_of_numpy_are_options_too(llm):
    params = beams(np.int64(3), length_penalty=np.float32(0.5))

    (result,) = llm.generate(PROMPT, params)

    assert len(result.outputs) == 3
    assert scores_of(result, 0.5) == sorted(scores_of(result, 0.5), reverse=True)
