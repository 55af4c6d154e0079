"""Index mode: what a cache of so many blocks finds of a trace."""

from __future__ import annotations

import pytest
from replay_traces import random_prompts, trace_of, with_answers

from octavo.build import EVICTION_POLICIES
from octavo.memory.policies.lru import Lru
from octavo.replay.bounds import endless, optimum
from octavo.replay.index import replay_index
from octavo.replay.trace import RecordedChoice, RecordedRequest, Trace


def lru_hits(trace, capacity):
    return replay_index(trace, Lru(), capacity).hits


def test_answers_that_begin_alike_share_what_they_have_in_common():
    def keys(*names):
        return tuple(name.encode() for name in names)

    more = (RecordedChoice(9, keys("x1", "x2", "y3")), RecordedChoice(9, keys("x1", "z2")))
    one = RecordedRequest(0.0, 4, 13, keys("p"), keys("x1", "x2", "x3"), more)
    again = RecordedRequest(1.0, 16, 1, keys("p", "x1", "x2", "y3"))
    trace = Trace("beams", 4, (one, again), partial=False)

    tally = replay_index(trace, Lru(), trace.working_set)

    assert trace.working_set == 6
    assert (tally.hits, tally.evictions) == (4, 0)


def test_a_prompt_finds_the_blocks_that_an_earlier_one_begins_with():
    assert lru_hits(trace_of("abc", "abd"), 8) == 2


def test_what_follows_an_unknown_block_is_no_hit():
    assert lru_hits(trace_of("abc", "xbc"), 8) == 0


def test_what_was_used_last_stays():
    assert lru_hits(trace_of("a", "b", "c", "b"), 2) == 1
    assert lru_hits(trace_of("a", "b", "c", "a"), 2) == 0


def test_the_end_of_a_prompt_goes_before_its_beginning():
    trace = trace_of("abcd", "xy", "abcd")

    tally = replay_index(trace, Lru(), 4)

    assert tally.hits == 2
    assert tally.evictions == 2 + 2


def test_of_a_prompt_longer_than_the_cache_the_beginning_is_kept():
    assert lru_hits(trace_of("abcdef", "abcdef"), 4) == 4


def test_a_partial_last_block_counts_as_one_and_is_left_out_of_the_full_ones():
    tally = replay_index(trace_of("ab", "ab", partial=1), Lru(), 4)

    assert (tally.references, tally.hits) == (4, 2)
    assert (tally.full_references, tally.full_hits) == (2, 1)
    assert (tally.prompt_tokens, tally.hit_tokens) == (10, 5)


def test_an_answer_that_is_known_is_found_by_a_prompt_that_goes_on_behind_it():
    trace = with_answers(trace_of("x", "abc", "abcd"))

    tally = replay_index(trace, Lru(), 10)

    assert [len(one.keys) for one in trace.requests] == [1, 2, 4]
    assert tally.hits == endless(trace).hits == 3


def test_requests_that_warm_the_cache_do_not_count():
    trace = trace_of("ab", "cd", "ab", "ef")

    tally = replay_index(trace, Lru(), 4, judged_from_s=2.0)

    assert (tally.requests, tally.references, tally.hits) == (2, 4, 2)
    assert tally.evictions == 2


def test_progress_adds_up_to_all_requests():
    told = []

    replay_index(trace_of(*"ab" * 300), Lru(), 4, advance=told.append)

    assert sum(told) == 600


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_every_policy_finds_all_where_nothing_need_be_evicted(name):
    trace = trace_of(*random_prompts(1, 80))

    tally = replay_index(trace, EVICTION_POLICIES[name](), trace.working_set)

    assert tally == endless(trace)


@pytest.mark.parametrize("name", EVICTION_POLICIES)
@pytest.mark.parametrize("capacity", [3, 7, 20])
def test_no_policy_beats_the_optimum(name, capacity):
    trace = trace_of(*random_prompts(2, 200, letters="abcd", longest=5))

    tally = replay_index(trace, EVICTION_POLICIES[name](), capacity)

    assert tally.hits <= optimum(trace, capacity).hits <= endless(trace).hits
