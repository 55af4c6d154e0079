"""Answers that are held to a form: whatever else is asked, in any company, with little memory."""

from __future__ import annotations

import asyncio
import re
import threading

import pytest

from held_forms import JSON, NUMBER, PROMPT, assert_fits, texts
from octavo import LLM, AsyncLLM, ConfigError, RequestError, SamplingParams, StructuredOutputs
from octavo.text.grammars.compiler import GrammarCompiler


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20) as llm:
        yield llm


def held(form=JSON, **options):
    return SamplingParams(**{"max_tokens": 120, "seed": 7} | options, structured_outputs=form)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": 0},
        {"temperature": 1.5},
        {"top_k": 5},
        {"top_p": 0.4, "min_p": 0.01},
        {"presence_penalty": 2.0, "repetition_penalty": 1.5},
        {"logit_bias": {5: 50.0}},
        {"logprobs": 3},
    ],
)
def test_the_answer_fits_whatever_else_is_asked(llm, options):
    (result,) = llm.generate(PROMPT, held(**options))

    assert result.outputs[0].finish_reason == "stop"
    assert_fits(result.outputs[0].text)


def test_every_choice_of_a_prompt_fits_and_they_differ(llm):
    (result,) = llm.generate(PROMPT, held(n=4, temperature=2.0))

    for one in result.outputs:
        assert_fits(one.text)
    assert len(set(texts([result]))) > 1


def test_the_beams_of_a_search_fit(llm):
    form = StructuredOutputs(choice=["abc", "xyz", "the"])
    (result,) = llm.generate(PROMPT, held(form, seed=None, use_beam_search=True, beam_width=3))

    assert sorted(texts([result])) == ["abc", "the", "xyz"]


def test_an_answer_is_the_same_alone_in_company_and_after_a_prefix_hit(llm):
    alone = texts(llm.generate(PROMPT, held()))
    llm.reset_prefix_cache()

    others = [SamplingParams(max_tokens=40, ignore_eos=True), held(NUMBER), held(seed=8)]
    mixed = llm.generate([PROMPT, PROMPT + " x", "y", PROMPT], [held(), *others])
    again = llm.generate(PROMPT, held())

    assert again[0].num_cached_tokens > 0
    assert texts(mixed)[:1] == texts(again) == alone
    assert_fits(texts(mixed)[2], NUMBER)


def test_a_text_that_had_to_give_way_is_what_it_would_have_been(tiny_gguf, llm):
    prompts = [f"{i} {PROMPT}" for i in range(6)]
    block = 16 * 2 * 2 * 16 * 4 * 2
    params = held(StructuredOutputs(regex="[a-z]{60}"), temperature=1.0)
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=14 * block, cpu_arithmetic="float32") as small:
        tight = texts(small.generate(prompts, params))
        preempted = small._engine.stats.preemptions
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, cpu_arithmetic="float32") as roomy:
        assert texts(roomy.generate(prompts, params)) == tight
    assert preempted > 0


def test_a_form_behind_a_marker_lets_all_come_before_it(llm):
    form = StructuredOutputs(choice=["abc"], after="t")
    (text,) = texts(llm.generate(PROMPT, held(form, temperature=1.0, max_tokens=300)))

    assert re.fullmatch(r"(?s)[^t]*t\s*abc", text)


def test_a_stop_string_and_a_limit_end_an_answer_as_ever(llm):
    (cut,) = llm.generate(PROMPT, held(NUMBER, max_tokens=5))
    (stopped,) = llm.generate(PROMPT, held(NUMBER, stop=["-"]))

    assert (len(cut.outputs[0].token_ids), cut.outputs[0].finish_reason) == (5, "length")
    assert re.fullmatch("[0-9]{3}", stopped.outputs[0].text)
    assert stopped.outputs[0].stop_reason == "-"


def test_options_that_leave_no_token_say_so_by_name_and_harm_nobody_else(llm):
    nothing = held(NUMBER, allowed_token_ids=[1])
    refused, other = llm.generate([PROMPT, PROMPT], [nothing, held()])

    assert refused.outputs[0].finish_reason == "error"
    assert "structured_outputs and allowed_token_ids" in refused.outputs[0].stop_reason
    assert_fits(other.outputs[0].text)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0}, {"logit_bias": {1: -100.0, 2: -100.0}}]
)
def test_a_complete_form_ends_the_answer_however_many_tokens_are_wanted(llm, options):
    forms = [StructuredOutputs(choice=["ab"]), JSON, NUMBER]
    results = llm.generate([PROMPT] * 3, [held(form, min_tokens=110, **options) for form in forms])

    assert [one.outputs[0].finish_reason for one in results] == ["stop"] * 3
    word, value, number = texts(results)
    assert word == "ab"
    assert_fits(value)
    assert_fits(number, NUMBER)


def test_a_form_that_can_go_on_has_as_many_tokens_as_are_wanted(llm):
    form = StructuredOutputs(regex="[a-z]+")
    (result,) = llm.generate(PROMPT, held(form, min_tokens=25, logit_bias={2: 100.0}))

    assert result.outputs[0].finish_reason == "stop"
    assert len(result.outputs[0].token_ids) == 26


def test_beams_of_a_complete_form_end(llm):
    form = StructuredOutputs(choice=["abc", "xyz", "the"])
    search = {"use_beam_search": True, "beam_width": 3, "min_tokens": 50}
    (result,) = llm.generate(PROMPT, held(form, seed=None, **search))

    assert sorted(texts([result])) == ["abc", "the", "xyz"]


def test_a_form_that_cannot_be_compiled_is_refused_before_anything_runs(llm):
    with pytest.raises(RequestError, match=r"structured_outputs: regex: .*\(ab"):
        llm.generate(PROMPT, held(StructuredOutputs(regex="(ab")))

    assert texts(llm.generate(PROMPT, held(NUMBER)))


def test_other_executors_hold_an_answer_to_its_form_too(tiny_gguf, llm):
    pytest.importorskip("torch")
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, backend="reference") as torch_llm:
        for text in texts(torch_llm.generate([PROMPT, "x"], held(temperature=1.0))):
            assert_fits(text)


def test_a_library_that_there_is_not_is_refused_at_the_start(tiny_gguf):
    with pytest.raises(ConfigError, match="structured_outputs_backend 'x' is not one of llguid"):
        LLM(str(tiny_gguf), structured_outputs_backend="x")


def test_tasks_share_an_engine_with_forms_of_their_own(tiny_gguf):
    async def ask(engine, params):
        async for result in engine.generate(PROMPT, params):
            last = result
        return last.outputs[0].text

    async def everybody():
        async with AsyncLLM(LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20)) as engine:
            asked = [ask(engine, params) for params in (held(), held(NUMBER), held(seed=9))]
            answers = await asyncio.gather(*asked)
            with pytest.raises(RequestError, match="regex"):
                await ask(engine, held(StructuredOutputs(regex="(")))
        return answers

    first, number, other = asyncio.run(everybody())

    assert_fits(first)
    assert_fits(number, NUMBER)
    assert_fits(other)


def test_a_task_whose_form_takes_long_keeps_no_other_waiting(tiny_gguf, monkeypatch):
    gate = threading.Event()
    compiling = GrammarCompiler._compile

    def slow(self, one):
        assert gate.wait(20)
        compiling(self, one)

    monkeypatch.setattr(GrammarCompiler, "_compile", slow)

    async def both():
        async with AsyncLLM(LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20)) as engine:
            task = asyncio.create_task(anext(engine.generate(PROMPT, held())))
            async for _ in engine.generate(PROMPT, SamplingParams(max_tokens=4, ignore_eos=True)):
                pass
            waits = not task.done()
            gate.set()
            await task
        return waits

    assert asyncio.run(both()), "the form was compiled before the other answer came"
