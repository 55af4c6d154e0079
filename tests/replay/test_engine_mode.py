"""Engine mode: the real manager and scheduler, block by block, with a clock of our own."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from replay_traces import trace_of, with_answers
from token_by_token import replay_token_by_token

from octavo.build import EVICTION_POLICIES
from octavo.errors import ConfigError
from octavo.memory.policies.lru import Lru
from octavo.replay.cost import StepCost
from octavo.replay.engine import EngineSettings, replay_engine
from octavo.replay.rows import spread
from octavo.replay.trace import RecordedChoice, RecordedRequest, Trace

COST = StepCost(((1, 0.02), (64, 0.03), (512, 0.2)), kv_token_s=2e-6, pair_s=1e-8, step_s=0.001)
SETTINGS = EngineSettings(COST, max_num_seqs=32, max_num_batched_tokens=1024)
KEY = (8, "little")


def chats(seed: int = 1, *, block_size: int = 16, gap_s: float = 0.5, count: int = 120) -> Trace:
    """Conversations that grow, and come at random, with answers of 1 to 120 tokens."""
    draw, known, requests, now, last = random.Random(seed), [], [], 0.0, 0
    for number in range(count):
        now += draw.expovariate(1 / gap_s)
        ids = list(draw.choice(known)) if known and draw.random() < 0.6 else []
        for _ in range(draw.randint(1, 12)):
            last += 1
            ids.append(last.to_bytes(*KEY))
        known.append(ids)
        rest = draw.randint(0, block_size - 1)
        keys = (*ids, b"rest %d" % number) if rest else tuple(ids)
        tokens = len(ids) * block_size + rest
        requests.append(RecordedRequest(now, tokens, draw.randint(1, 120), keys))
    return Trace("chats", block_size, tuple(requests))


def middle(times: list[float]) -> tuple[float, float]:
    """Median and 90th percentile."""
    found = spread(times)
    assert found is not None
    return found.p50, found.p90


def capacity(trace: Trace, share: float) -> int:
    return int(trace.working_set * share)


# ── beside a replay of every token ────────────────────────────────────────────────────────


@pytest.mark.parametrize(("block_size", "gap_s"), [(16, 0.5), (64, 2.0), (512, 16.0)])
def test_without_contention_it_finds_what_a_replay_of_every_token_finds(block_size, gap_s):
    trace = chats(block_size=block_size, gap_s=gap_s, count=60)
    blocks = capacity(trace, 0.5)

    quick = replay_engine(trace, Lru(), blocks, SETTINGS)
    plain = replay_token_by_token(trace, blocks, SETTINGS)

    assert quick.cache.hits == plain.cache.hits > 0
    assert quick.cache.evictions == plain.cache.evictions > 0
    assert quick.steps == pytest.approx(plain.steps, abs=2)
    assert quick.seconds == pytest.approx(plain.seconds, rel=1e-3)
    assert middle(quick.answer_s) == pytest.approx(middle(plain.answer_s), rel=0.01)
    assert middle(quick.first_token_s) == pytest.approx(middle(plain.first_token_s), rel=0.02)


@pytest.mark.parametrize("block_size", [16, 64])
def test_under_pressure_it_stays_close_to_a_replay_of_every_token(block_size):
    trace = chats(block_size=block_size, gap_s=0.1 * block_size / 16)
    blocks = capacity(trace, 0.08)

    quick = replay_engine(trace, Lru(), blocks, SETTINGS)
    plain = replay_token_by_token(trace, blocks, SETTINGS)

    assert sum(quick.preempted) > 0
    assert quick.cache.token_hit_rate == pytest.approx(plain.cache.token_hit_rate, abs=0.006)
    assert quick.seconds == pytest.approx(plain.seconds, rel=0.01)
    for name in ("first_token_s", "queueing_s", "answer_s"):
        assert middle(getattr(quick, name)) == pytest.approx(middle(getattr(plain, name)), rel=0.05)


@pytest.mark.parametrize(("share", "seqs"), [(1.0, 32), (0.2, 32), (1.0, 2)])
def test_several_answers_to_a_prompt_are_given_as_by_a_replay_of_every_token(share, seqs):
    trace = chats(block_size=16, gap_s=2.0, count=40)
    requests = [
        replace(one, more=(RecordedChoice(one.output_tokens, ()),) * (number % 4))
        for number, one in enumerate(trace.requests)
    ]
    several, settings = (
        replace(trace, requests=tuple(requests)),
        replace(SETTINGS, max_num_seqs=seqs),
    )
    blocks = capacity(trace, share)

    quick = replay_engine(several, Lru(), blocks, settings)
    plain = replay_token_by_token(several, blocks, settings)

    assert quick.output_tokens == plain.output_tokens
    assert quick.cache.hits == pytest.approx(plain.cache.hits, rel=0.01)
    assert quick.cache.evictions == pytest.approx(plain.cache.evictions, rel=0.02)
    assert quick.seconds == pytest.approx(plain.seconds, rel=1e-3)
    assert middle(quick.answer_s) == pytest.approx(middle(plain.answer_s), rel=0.02)


def test_blocks_of_one_token_are_replayed_too():
    trace = chats(block_size=1, gap_s=0.15, count=40)

    quick = replay_engine(trace, Lru(), 2 * trace.working_set + 5000, SETTINGS)
    plain = replay_token_by_token(trace, 2 * trace.working_set + 5000, SETTINGS)

    assert quick.cache.hits == plain.cache.hits > 0
    assert quick.steps == plain.steps


def test_a_scheduler_is_not_asked_about_steps_in_which_nothing_is_decided():
    one = RecordedRequest(0.0, 100, 400, (b"a",))
    tally = replay_engine(Trace("one", 512, (one,)), Lru(), 4, SETTINGS)

    assert tally.steps == 400
    assert tally.plans < 10
    context = sum(range(101, 500))
    assert tally.seconds == pytest.approx(
        COST.step(100, 0, 5050) + 399 * COST.step(1, 0, 0) + context * COST.kv_token_s
    )


# ── what is counted ───────────────────────────────────────────────────────────────────────


def test_a_prompt_that_came_before_hits_up_to_its_last_block():
    trace = trace_of("abc", "abc", "abd", block_size=16)

    tally = replay_engine(trace, Lru(), 20, SETTINGS)

    # The last token is computed each time, to sample the next; with it its whole block.
    assert tally.cache.hits == 4
    assert tally.cache.hit_tokens == 64


def test_partial_blocks_are_not_found():
    trace = trace_of("abc", "abc", block_size=16, partial=7)

    assert replay_engine(trace, Lru(), 20, SETTINGS).cache.hits == 2


def test_an_answer_that_is_known_is_found_by_a_prompt_that_goes_on_behind_it():
    trace = with_answers(trace_of("x", "abc", "abcd", block_size=16))

    assert replay_engine(trace, Lru(), 20, SETTINGS).cache.hits == 3


def test_a_block_that_an_answer_ends_is_found_too():
    first = RecordedRequest(0.0, 20, 30, (b"a",), (b"ab", b"abc"))
    second = RecordedRequest(9.0, 50, 1, (b"a", b"ab", b"abc"))
    trace = Trace("x", 16, (first, second), partial=False)

    assert replay_engine(trace, Lru(), 20, SETTINGS).cache.hits == 3


def test_requests_that_come_together_share_what_is_new():
    trace = trace_of("abcd", "abce", block_size=16)
    together = Trace("x", 16, tuple(RecordedRequest(0.0, 64, 3, r.keys) for r in trace.requests))

    assert replay_engine(together, Lru(), 20, SETTINGS).cache.hits == 3


def test_a_request_waits_while_the_places_are_taken():
    trace = chats(gap_s=0.001, count=8)

    alone = EngineSettings(COST, max_num_seqs=1, max_num_batched_tokens=1024)
    tally = replay_engine(trace, Lru(), 1000, alone)

    assert tally.queueing_s == sorted(tally.queueing_s)
    assert tally.queueing_s[0] == 0.0
    assert tally.queueing_s[-1] > 1.0


def test_nothing_happens_between_requests_that_are_far_apart():
    tally = replay_engine(trace_of("a", "a", "b", block_size=16), Lru(), 20, SETTINGS)

    assert tally.queueing_s == [0.0, 0.0, 0.0]
    assert 2.0 < tally.seconds < 2.1


def test_a_prompt_longer_than_memory_is_refused_and_counted():
    trace = trace_of("abcdef", "a", block_size=16)

    tally = replay_engine(trace, Lru(), 3, SETTINGS)

    assert (tally.refused, tally.cache.requests) == (1, 1)


def test_an_answer_ends_where_memory_does():
    one = RecordedRequest(0.0, 20, 1000, (b"a", b"b"))

    assert replay_engine(Trace("x", 16, (one,)), Lru(), 3, SETTINGS).output_tokens == 28


def test_requests_before_the_judged_time_only_warm_the_cache():
    trace = trace_of("ab", "ab", "ab", block_size=16, partial=4)

    tally = replay_engine(trace, Lru(), 20, SETTINGS, judged_from_s=2.0)

    assert (tally.cache.requests, tally.cache.hits) == (1, 1)
    assert len(tally.first_token_s) == 1


def test_progress_adds_up_to_the_number_of_requests():
    told = []
    replay_engine(chats(gap_s=0.01, count=600), Lru(), 600, SETTINGS, advance=told.append)

    assert sum(told) == 600
    assert len(told) > 1


@pytest.mark.parametrize("name", sorted(EVICTION_POLICIES))
def test_every_policy_can_be_replayed(name):
    trace = chats(gap_s=0.1, count=80)

    tally = replay_engine(trace, EVICTION_POLICIES[name](), capacity(trace, 0.15), SETTINGS)

    assert tally.cache.requests == 80
    assert 0 < tally.cache.hits < tally.cache.references


def test_policies_are_told_how_many_true_tokens_a_block_holds():
    seen = []

    class Nosy(Lru):
        def add_all(self, blocks):
            seen.extend(block.filled for block in blocks)
            super().add_all(blocks)

    replay_engine(trace_of("abc", "abd", block_size=16), Nosy(), 6, SETTINGS)

    assert set(seen) == {16}


def test_a_step_smaller_than_a_block_is_refused():
    settings = EngineSettings(COST, max_num_batched_tokens=256)

    with pytest.raises(ConfigError, match="--max-num-batched-tokens 256 is less than a block"):
        replay_engine(trace_of("a", block_size=512), Lru(), 3, settings)
