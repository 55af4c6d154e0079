"""A failed step: its sequences are queued once more, and only they end if it happens again."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason
from octavo.testing.driver import Driver, make_request

BROKEN = "the device caught fire"


def driver_of(*, failing, depth=1, **options):
    """Build a driver whose steps with these numbers fail."""
    return Driver.paged(
        60, depth=depth, fate=lambda batch: BROKEN if batch.step in failing else None, **options
    )


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("step", [1, 2, 5])
def test_a_failed_step_is_no_error_for_anybody(step, depth):
    driver = driver_of(failing={step}, depth=depth)
    driver.add_all(make_request(f"r{i}", [i] * 9) for i in range(4))

    driver.run()

    assert driver.scheduler.stats.failed_steps == 1
    assert {answer.finish for answer in driver.answers.values()} == {FinishReason.LENGTH}
    driver.check_answers()
    driver.cache.check()


@pytest.mark.parametrize("depth", [1, 2])
def test_the_second_failure_ends_a_request_with_its_error(depth):
    driver = driver_of(failing=set(range(1, 8)), depth=depth)
    driver.add(make_request("r", [1] * 9))

    driver.run()

    answer = driver.answers["r", 0]
    assert (answer.finish, answer.error) == (FinishReason.ERROR, BROKEN)
    assert driver.cache.usage().blocks_used == 0


def test_the_second_failure_ends_only_those_it_hits_twice():
    failing = {2, 4}
    driver = driver_of(failing=failing, max_num_seqs=1)
    driver.add(make_request("twice", [1] * 9, max_tokens=4))
    driver.add(make_request("never", [2] * 9, max_tokens=4))

    driver.run()

    assert driver.answers["twice", 0].finish is FinishReason.ERROR
    assert driver.answers["never", 0].finish is FinishReason.LENGTH
    driver.check_answers()


def test_tokens_streamed_before_a_failure_stay_and_are_not_repeated():
    driver = driver_of(failing={5})
    driver.add(make_request("r", [1] * 9))
    streamed = []
    while driver.scheduler.busy:
        for news in driver.step():
            streamed += news.tokens

    assert streamed == driver.answers["r", 0].tokens
    assert len(streamed) == 8
    driver.check_answers()


def test_readers_of_a_failed_step_survive_a_second_failure_that_is_not_theirs():
    # Depth two: the readers' own slices come a step after the leader's last chunk.
    driver = driver_of(failing={2}, depth=2, budget=16)
    prefix = list(range(32))
    driver.add(make_request("leader", [*prefix, 1]))
    for _ in range(2):
        driver.step()
    driver.add_all(make_request(f"reader {i}", [*prefix, i + 2]) for i in range(3))

    driver.run()

    assert {answer.finish for answer in driver.answers.values()} == {FinishReason.LENGTH}
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_what_a_failed_step_wrote_is_never_found(depth):
    driver = driver_of(failing={1}, depth=depth)
    prefix = list(range(16))
    driver.add(make_request("first", [*prefix, 1], max_tokens=2))
    driver.run()
    driver.add(make_request("second", [*prefix, 2], max_tokens=2))

    driver.run()

    driver.check_answers()  # the fake runner refuses to read what the failed step left


def test_every_choice_is_told_of_a_leader_that_fails_before_they_begin():
    driver = driver_of(failing={1, 2})
    driver.add(make_request("r", [1] * 9, n=4))

    driver.run()

    finishes = [driver.answers["r", index].finish for index in range(4)]
    assert finishes == [FinishReason.ERROR] * 4


def test_choices_that_fail_come_back_alone():
    driver = driver_of(failing={3})
    driver.add(make_request("r", [1] * 9, n=4))

    driver.run()

    driver.check_answers()
    assert all(len(answer.tokens) == 8 for answer in driver.answers.values())


@pytest.mark.parametrize("depth", [1, 2])
def test_a_request_aborted_in_a_failing_step_stays_ended(depth):
    driver = driver_of(failing={2}, depth=depth)
    driver.add(make_request("r", [1] * 9))
    driver.step()
    driver.scheduler.abort("r")
    driver.add(make_request("other", [2] * 9))

    driver.run()

    assert driver.answers["r", 0].finish is None
    assert driver.answers["other", 0].finish is FinishReason.LENGTH
    driver.check_answers()
