"""Answers of a GPU that are held to a form, beside others that are not."""

from __future__ import annotations

import importlib.util

import pytest

from held_forms import JSON, NUMBER, PROMPT, WORDS, assert_fits, texts
from octavo import LLM, SamplingParams

pytestmark = pytest.mark.gpu

if importlib.util.find_spec("llguidance") is None:
    pytest.skip("llguidance is not installed", allow_module_level=True)

FORMS = [JSON, NUMBER, WORDS]


def held(number, **options):
    given = {"max_tokens": 150, "seed": number} | options
    return SamplingParams(**given, structured_outputs=FORMS[number % len(FORMS)])


def free(number):
    return SamplingParams(max_tokens=40, ignore_eos=True, seed=number)


def assert_held(number, text):
    assert_fits(text, FORMS[number % len(FORMS)])


@pytest.fixture(scope="module", params=[{}, {"enforce_eager": True}], ids=["graphs", "eager"])
def llm(cuda, tiny_gguf, request):
    with LLM(
        str(tiny_gguf), device=cuda, deterministic=True, report=lambda _: None, **request.param
    ) as llm:
        yield llm


def test_every_answer_fits_its_form_in_a_batch_with_free_ones(llm):
    params = [held(i) if i % 2 else free(i) for i in range(24)]

    answers = texts(llm.generate([f"{i} {PROMPT}" for i in range(24)], params))

    for i, text in enumerate(answers):
        if i % 2:
            assert_held(i, text)


def test_free_ones_are_what_they_are_without_bound_neighbours(llm):
    prompts = [f"{i} {PROMPT}" for i in range(16)]
    alone = texts(llm.generate(prompts[::2], [free(i) for i in range(0, 16, 2)]))

    mixed = texts(llm.generate(prompts, [held(i) if i % 2 else free(i) for i in range(16)]))

    assert mixed[::2] == alone


def test_a_bound_one_is_the_same_alone_and_in_company(llm):
    prompts = [f"{i} {PROMPT}" for i in range(9)]
    together = texts(llm.generate(prompts, [held(i) for i in range(9)]))
    llm.reset_prefix_cache()

    alone = [texts(llm.generate(prompts[i], held(i)))[0] for i in range(9)]

    assert together == alone


def test_choices_and_beams_fit(llm):
    (several,) = llm.generate(PROMPT, held(1, n=4, temperature=2.0))
    (search,) = llm.generate(PROMPT, held(2, seed=None, use_beam_search=True, beam_width=2))

    for one in several.outputs:
        assert_held(1, one.text)
    assert sorted(texts([search])) == ["a dog", "the fox"]
