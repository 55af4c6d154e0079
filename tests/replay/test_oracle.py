"""Hints that know the future of a trace, as often as they are told to."""

from __future__ import annotations

import pytest
from replay_traces import random_prompts, trace_of

from octavo.errors import ConfigError
from octavo.memory.policies.bonus import Bonus
from octavo.replay.index import replay_index
from octavo.replay.oracle import Oracle


def said(trace, **options):
    return [
        "".join("+" if hint.says == "continues" else "-" for hint in hints)
        for hints in Oracle(**options).hints(trace)
    ]


def test_a_block_is_used_again_if_a_later_prompt_has_it():
    trace = trace_of("abcd", "abx", "aq")

    assert said(trace, error=0.0, about="block") == ["++--", "+--", "--"]
    assert said(trace, error=0.0, about="prefix") == ["++--", "+--", "--"]


def test_a_bit_for_a_request_goes_by_half_of_its_blocks():
    assert said(trace_of("abcd", "abx", "aq"), error=0.0) == ["++++", "---", "--"]


def test_a_hint_that_is_always_wrong_says_the_opposite():
    trace = trace_of("abcd", "abx", "aq")

    assert said(trace, error=1.0) == ["----", "+++", "++"]
    assert said(trace, error=1.0, about="block") == ["--++", "-++", "++"]


def test_a_wrong_prefix_looks_like_a_right_one():
    assert said(trace_of("abcd", "abx", partial=1), error=1.0, about="prefix") == ["+---", "++-"]


@pytest.mark.parametrize("about", ["request", "block"])
def test_so_many_hints_are_wrong(about):
    trace = trace_of(*random_prompts(3, 2000))

    right, wrong = ("".join(said(trace, error=error, about=about)) for error in (0.0, 0.1))

    share = sum(one != other for one, other in zip(right, wrong, strict=True)) / len(right)
    assert share == pytest.approx(0.1, abs=0.02)


def test_the_same_seed_draws_the_same_errors():
    trace = trace_of(*random_prompts(3, 200))

    assert said(trace, error=0.5) == said(trace, error=0.5)
    assert said(trace, error=0.5) != said(trace, error=0.5, seed=1)


def test_a_policy_that_ignores_hints_finds_what_it_did():
    trace = trace_of(*random_prompts(2, 200, letters="abcd", longest=5))
    deaf = Bonus(hints=0.0)

    told = replay_index(trace, deaf, 7, hints=Oracle(0.1).hints(trace))

    assert told == replay_index(trace, Bonus(), 7)


@pytest.mark.parametrize("options", [{"error": 1.1}, {"error": -0.1}, {"error": 0, "about": "x"}])
def test_what_no_oracle_can_be_is_refused(options):
    with pytest.raises(ConfigError):
        Oracle(**options)
