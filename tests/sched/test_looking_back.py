"""What samples look back at is told once; prompts are scored once; refusals concern one request."""

from __future__ import annotations

import pytest

from octavo.contract.batch import Logprobs, Score, Slice, StepResult
from octavo.contract.request import FinishReason, Sequence
from octavo.sched.outcome import take_scores
from octavo.testing.driver import Driver, make_request

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
BACK = {"presence_penalty": 1.0}


def pasts(driver, seq=None):
    """The slices that carry a past, as (sequence, its length)."""
    slices = [piece for batch in driver.batches for piece in batch.slices if piece.past]
    return [(piece.seq, len(piece.past)) for piece in slices if seq in (None, piece.seq)]


def scores(driver):
    """What was asked, as (position of the first target's row, number of targets)."""
    slices = [piece for batch in driver.batches for piece in batch.slices if piece.score]
    return [(piece.start + piece.score.first, len(piece.score.targets)) for piece in slices]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_computed_at_once_needs_no_past(depth):
    driver = Driver.paged(32, depth=depth)
    driver.add(make_request("a", PROMPT, **BACK))
    driver.run()

    assert pasts(driver) == []
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_in_chunks_or_found_in_memory_is_told_once(depth):
    driver = Driver.paged(32, depth=depth, budget=4)
    driver.add(make_request("a", PROMPT, **BACK))
    driver.run()
    driver.add(make_request("b", PROMPT, **BACK))
    driver.run()

    assert pasts(driver) == [(0, 8), (1, 8)]
    driver.check_answers()


def test_nobody_is_told_a_past_that_is_not_looked_at():
    driver = Driver.paged(32, budget=4)
    driver.add(make_request("a", PROMPT))
    driver.add(make_request("b", PROMPT, bad_words=((3,), (4,))))
    driver.run()

    assert pasts(driver) == []


@pytest.mark.parametrize("depth", [1, 2])
def test_every_fork_is_told_the_prompt(depth):
    driver = Driver.paged(32, depth=depth)
    driver.add(make_request("a", PROMPT, n=3, **BACK))
    driver.run()

    assert pasts(driver) == [(1, 9), (2, 9)]
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_after_preemption_the_whole_text_is_told_again(depth):
    driver = Driver.paged(9, depth=depth, storm_guard_tokens=0)
    driver.add_all(make_request(f"r{i}", [i, *PROMPT], max_tokens=14, **BACK) for i in range(3))
    driver.run()

    assert driver.scheduler.stats.preemptions > 0
    assert any(length > len(PROMPT) + 1 for _, length in pasts(driver))
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_after_a_failed_step_the_text_is_told_again(depth):
    driver = Driver.paged(32, depth=depth, fate=lambda batch: "lost" if batch.step == 4 else None)
    driver.add(make_request("a", PROMPT, max_tokens=12, prompt_logprobs=0, logprobs=0, **BACK))
    driver.run()

    assert driver.scheduler.stats.failed_steps == 1
    assert len(pasts(driver)) == 1
    assert driver.answers["a", 0].finish is FinishReason.LENGTH
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [3, 4, 64])
def test_a_scored_prompt_is_not_read_from_memory_and_is_scored_once(depth, budget):
    driver = Driver.paged(32, depth=depth, budget=budget)
    driver.add(make_request("a", PROMPT))
    driver.run()
    before = len(driver.batches)
    driver.add(make_request("b", PROMPT, prompt_logprobs=0, n=2))
    updates = []
    while driver.scheduler.busy:
        updates += driver.step()
    driver.run()

    del driver.batches[:before]
    asked = scores(driver)
    assert asked[0][0] == 0
    assert sum(count for _, count in asked) == len(PROMPT) - 1
    assert [first + count for first, count in asked[:-1]] == [first for first, _ in asked[1:]]
    assert next(update.cached_tokens for update in updates if update.index == 0) == 0
    driver.check_answers()


def test_others_read_what_a_scored_prompt_has_written():
    driver = Driver.paged(32)
    driver.add(make_request("a", PROMPT, prompt_logprobs=0))
    driver.run()
    driver.add(make_request("b", PROMPT))
    driver.step()

    assert driver.batches[-1].slices[0].start == 8
    assert driver.cache.usage().blocks_used == 3


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [4, 5])
def test_after_preemption_only_what_is_not_scored_yet_is_computed_for_it(depth, budget):
    # The urgent request takes all the room while the prompt is half scored.
    driver = Driver.paged(8, depth=depth, budget=budget, order="priority", max_num_seqs=1)
    long = list(range(1, 25))
    driver.add(make_request("long", long, max_tokens=3, priority=1, prompt_logprobs=0))
    for _ in range(4):
        driver.step()
    driver.add(make_request("urgent", [30, 31], max_tokens=2, priority=0))
    driver.run()

    assert driver.scheduler.stats.preemptions == 1
    asked = scores(driver)
    assert len(set(asked)) == len(asked), "a row was asked for twice"
    assert sum(count for _, count in asked) == len(long) - 1
    starts = [p.start for batch in driver.batches for p in batch.slices if p.seq == 0]
    assert starts.count(0) == 1, "what had been scored was read from memory"
    driver.check_answers()


def test_scores_that_come_twice_count_once():
    request = make_request("a", PROMPT, prompt_logprobs=0)
    seq = Sequence(0, request, index=0, limit=20, rank=(0,))
    piece = Slice(0, 0, (1, 2, 3), (0,), ((),), (), (), Score(0, (2, 3, 4), 0))
    got = tuple(Logprobs((target,), (-1.0,), (1,)) for target in (2, 3, 4))

    for _ in range(2):
        take_scores(seq, piece, StepResult(1, scored={0: got}))

    assert seq.scores == list(got)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_scored_step_that_fails_is_scored_again(depth):
    driver = Driver.paged(
        32, depth=depth, budget=4, fate=lambda batch: "lost" if batch.step == 2 else None
    )
    driver.add(make_request("a", PROMPT, prompt_logprobs=0))
    driver.run()

    driver.check_answers()
    assert driver.answers["a", 0].prompt_logprobs == PROMPT[1:]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_refused_token_ends_its_request_alone(depth):
    driver = Driver.paged(
        32,
        depth=depth,
        refusal=lambda sample, end: "nothing left" if (sample.seq, end) == (0, 12) else None,
    )
    driver.add(make_request("a", PROMPT, **BACK))
    driver.add(make_request("b", PROMPT, **BACK))
    driver.run()

    refused, other = driver.answers["a", 0], driver.answers["b", 0]
    assert (refused.finish, refused.error) == (FinishReason.ERROR, "nothing left")
    assert len(refused.tokens) == 3
    assert other.finish is FinishReason.LENGTH
    assert driver.scheduler.stats.failed_steps == 0
    driver.check_answers()
    driver.cache.check()
    assert driver.cache.usage().blocks_used == 0
