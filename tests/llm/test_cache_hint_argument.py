"""`cache_hint` as a caller writes it."""

from __future__ import annotations

import numpy as np
import pytest

from octavo import LLM, CacheHint, SamplingParams
from octavo.contract.namespace import Namespace
from octavo.errors import RequestError
from octavo.prompts import RequestBuilder

ONE, OTHER = {"prompt_token_ids": [1, 2, 3]}, {"prompt_token_ids": [4]}


def hints(prompts, cache_hint, *, salt=""):
    """What each request says."""
    builder = RequestBuilder(None, vocab_size=50, namespace=Namespace(salt=salt), seed=0)
    built = builder.build(prompts, None, None, cache_hint)
    return [request.cache_hints for request, _ in built]


def test_one_hint_is_for_all_prompts():
    assert hints([ONE, OTHER], "closed") == [(CacheHint("closed"),)] * 2


def test_each_prompt_may_have_its_own_or_none():
    assert hints([ONE, OTHER], ["continues", None]) == [(CacheHint("continues"),), ()]


def test_a_number_is_a_probability():
    assert hints([ONE], 1) == hints([ONE], 1.0) == [(CacheHint(1.0),)]


@pytest.mark.parametrize("kind", [np.float32, np.float64, np.float16])
def test_numbers_of_numpy_are_numbers(kind):
    parts = [CacheHint(kind(0.25), tokens=np.int64(2)), CacheHint("closed")]

    assert hints([ONE, OTHER], kind(0.5)) == [(CacheHint(0.5),)] * 2
    assert hints([ONE, OTHER], np.array([0.5, 1], kind)) == [(CacheHint(0.5),), (CacheHint(1.0),)]
    assert hints([ONE], np.int8(1)) == [(CacheHint(1.0),)]
    (((first, _),)) = hints([ONE], [parts])
    assert first == CacheHint(0.25, tokens=2)
    assert (type(first.says), type(first.tokens)) == (float, int)


def test_parts_of_a_text_may_be_told_apart():
    parts = [CacheHint("shared", tokens=2), CacheHint("closed")]

    assert hints([ONE], [parts]) == [tuple(parts)]


def test_who_says_it_is_the_namespace_unless_the_hint_names_somebody():
    given = [CacheHint(0.5), CacheHint(0.5, source="app")]

    assert hints([ONE, OTHER], given, salt="tenant") == [
        (CacheHint(0.5, source="tenant"),), (CacheHint(0.5, source="app"),),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "cache_hint",
    ["perhaps", -0.1, 1.5, float("nan"), True, [["x"]], [b""], [np.True_], 10**400],
)
def test_what_is_no_hint_is_refused(cache_hint):
    with pytest.raises(RequestError, match="cache_hint must be one of continues, closed, shared"):
        hints([ONE], cache_hint)


@pytest.mark.parametrize("ends", [(0,), (-1,), (2, 2), (3, 2), (None, 4), (None, None)])
def test_parts_must_follow_each_other(ends):
    with pytest.raises(RequestError, match="says something of no token"):
        hints([ONE], [[CacheHint("closed", tokens=end) for end in ends]])


def test_each_prompt_needs_one():
    with pytest.raises(RequestError, match="2 prompts, but 1 cache_hint"):
        hints([ONE, OTHER], ["closed"])


def test_answers_do_not_depend_on_it(tiny_gguf):
    greedy = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
    prompts = ["The quick brown fox", "The quick brown dog"]
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, eviction_policy="bonus") as llm:
        silent, told = (
            [result.outputs[0].token_ids for result in llm.generate(prompts, greedy, **options)]
            for options in ({}, {"cache_hint": ["continues", [CacheHint("closed", tokens=4)]]})
        )

    assert silent == told


@pytest.mark.parametrize(
    ("options", "by"),
    [
        ({}, "eviction_policy lru"),
        ({"eviction_policy": {"name": "bonus", "hints": 0}}, "eviction_policy {"),
        ({"reservation": "max"}, "reservation max"),
    ],
)
def test_hints_that_nothing_heeds_are_told_once(tiny_gguf, options, by):
    told = []
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20, report=told.append, **options) as llm:
        llm.requests.build([ONE, OTHER], None)
        assert not [line for line in told if "cache_hint" in line]
        for _ in range(2):
            llm.requests.build([ONE, OTHER], None, None, [None, "closed"])

    (line,) = [line for line in told if "cache_hint" in line]
    assert line.startswith(f"octavo: cache_hint changes nothing with {by}")


@pytest.mark.parametrize("name", ["bonus", "gittins", "cost"])
def test_hints_to_a_policy_that_heeds_them_are_taken_in_silence(tiny_gguf, name):
    told = []
    with LLM(
        str(tiny_gguf), kv_cache_memory_bytes=4 << 20, report=told.append, eviction_policy=name
    ) as llm:
        llm.requests.build([ONE], None, None, "closed")

    assert not [line for line in told if "cache_hint" in line]


@pytest.mark.parametrize("tokens", [5.5, 64.0, float("nan"), "900", True])
def test_tokens_that_are_no_count_are_refused(tokens):
    with pytest.raises(RequestError, match="cache_hint: tokens must be a whole number or None"):
        hints([ONE], CacheHint("shared", tokens=tokens))


def test_a_source_that_is_no_text_is_refused():
    with pytest.raises(RequestError, match="cache_hint: source must be a text, got 5"):
        hints([ONE], CacheHint("shared", source=5))
    with pytest.raises(RequestError, match="cache_hint's source is not valid Unicode"):
        hints([ONE], CacheHint("shared", source="\ud800"))


def test_a_hint_of_no_token_says_after_how_many():
    with pytest.raises(RequestError, match="of no token, after 0 tokens"):
        hints([ONE], CacheHint("shared", tokens=0))
