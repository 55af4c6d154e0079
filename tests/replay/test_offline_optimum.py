"""The bounds: an endless cache, and the best cache that knows the future."""

from __future__ import annotations

from functools import cache
from itertools import combinations

import pytest
from replay_traces import random_prompts, trace_of, with_answers

from octavo.replay.bounds import endless, optimum


def most_hits(trace, capacity):
    """Try every set of blocks that could be kept after every request."""
    requests = trace.requests

    @cache
    def best_from(number, kept):
        if number == len(requests):
            return 0
        keys = requests[number].keys
        hits = next((n for n, key in enumerate(keys) if key not in kept), len(keys))
        known = kept | frozenset(keys + requests[number].answer_keys)
        choices = combinations(sorted(known), min(capacity, len(known)))
        return hits + max(best_from(number + 1, frozenset(choice)) for choice in choices)

    return best_from(0, frozenset())


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_the_optimum_is_the_most_that_any_choice_of_blocks_could_hit(seed, capacity):
    trace = trace_of(*random_prompts(seed, 7))

    assert optimum(trace, capacity).hits == most_hits(trace, capacity), f"seed {seed}"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("capacity", [1, 2, 3])
def test_answers_that_are_known_may_be_kept_too(seed, capacity):
    trace = with_answers(trace_of(*random_prompts(seed, 7)))

    assert optimum(trace, capacity).hits == most_hits(trace, capacity), f"seed {seed}"


def test_a_block_that_never_returns_displaces_nothing():
    assert optimum(trace_of("a", "b", "c", "a"), 1).hits == 1


def test_of_one_prompt_the_beginning_is_kept():
    trace = trace_of("abc", "abc")

    assert optimum(trace, 2).hits == 2
    assert optimum(trace, 2, tail_first=False).hits == 0


def test_room_for_all_that_returns_is_as_good_as_an_endless_cache():
    trace = trace_of(*random_prompts(5, 100))

    assert optimum(trace, trace.working_set) == endless(trace)


def test_an_endless_cache_misses_every_block_once():
    trace = trace_of(*random_prompts(6, 50))

    tally = endless(trace)

    assert tally.references - tally.hits == trace.working_set


def test_the_judged_part_of_the_optimum_counts_its_own_requests():
    trace = trace_of("a", "a", "b", "a")

    tally = optimum(trace, 2, judged_from_s=2.0)

    assert (tally.requests, tally.hits) == (2, 1)


def test_a_trace_without_hits_has_a_rate_of_nothing():
    tally = endless(trace_of("a"), judged_from_s=5.0)

    assert (tally.hit_rate, tally.full_hit_rate, tally.token_hit_rate) == (0.0, 0.0, 0.0)
