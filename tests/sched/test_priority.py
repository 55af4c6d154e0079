"""Priority: a better request displaces worse ones, all or nothing, and never ping-pongs."""

from __future__ import annotations

from random import Random

import pytest

from octavo.contract.request import FinishReason
from octavo.sched.limits import Limits
from octavo.testing.driver import Driver, make_regions, make_request

URGENT, NORMAL, LATER = 0, 5, 9


def driver_of(blocks, **options):
    return Driver.paged(blocks, order="priority", **options)


def running(driver, name, prompt, *, priority=NORMAL, max_tokens=20, **options):
    """Add a request and let it begin."""
    driver.add(make_request(name, prompt, priority=priority, max_tokens=max_tokens, **options))
    driver.step()


def urgent(driver, prompt, *, priority=URGENT, max_tokens=2):
    """Add a request and plan one step."""
    driver.add(make_request("urgent", prompt, priority=priority, max_tokens=max_tokens))
    driver.step()


def preemptions(driver):
    return driver.scheduler.stats.preemptions


def ended_in_order(driver):
    ended = []
    while driver.scheduler.busy:
        ended += [news.request_id for news in driver.step() if news.finish]
    return ended


def test_lower_numbers_are_served_first():
    driver = driver_of(100, max_num_seqs=1)
    for name, priority in (("c", 3), ("a", 1), ("b", 2)):
        driver.add(make_request(name, [1] * 5, priority=priority))

    assert ended_in_order(driver) == ["a", "b", "c"]


def test_equal_numbers_are_served_in_order_of_arrival():
    driver = driver_of(100, max_num_seqs=1)
    driver.add_all(make_request(name, [1] * 5, priority=2) for name in "abc")

    assert ended_in_order(driver) == ["a", "b", "c"]


def test_a_better_request_displaces_a_worse_one_when_all_places_are_taken():
    driver = driver_of(100, max_num_seqs=2)
    running(driver, "good", [1] * 5)
    running(driver, "bad", [2] * 5, priority=LATER)

    urgent(driver, [3] * 5)

    assert preemptions(driver) == 1
    assert len(driver.answers["urgent", 0].tokens) == 1
    assert ended_in_order(driver) == ["urgent", "good", "bad"]
    driver.check_answers()


def test_a_better_request_displaces_a_worse_one_when_blocks_are_full():
    driver = driver_of(12)
    running(driver, "bad", [1] * 28, priority=LATER)

    urgent(driver, [2] * 28)

    assert preemptions(driver) == 1
    assert len(driver.answers["urgent", 0].tokens) == 1


def test_nobody_is_displaced_while_there_is_room():
    driver = driver_of(100)
    running(driver, "bad", [1] * 20, priority=LATER)

    urgent(driver, [2] * 20)

    assert preemptions(driver) == 0


@pytest.mark.parametrize("priority", [NORMAL, LATER])
def test_equal_and_worse_requests_never_displace(priority):
    driver = driver_of(12)
    running(driver, "first", [1] * 28, priority=NORMAL)

    urgent(driver, [2] * 28, priority=priority)

    assert preemptions(driver) == 0
    assert driver.answers["urgent", 0].tokens == []


def test_nobody_is_displaced_if_it_would_not_suffice():
    driver = driver_of(12)
    running(driver, "better", [1] * 20, priority=URGENT)
    running(driver, "bad", [2] * 12, priority=LATER)

    urgent(driver, [3] * 36, priority=NORMAL)

    assert preemptions(driver) == 0


def test_nobody_is_displaced_for_the_blocks_of_a_prefix_that_is_shared_anyway():
    driver = driver_of(10)
    running(driver, "better", [1] * 15, priority=URGENT)
    running(driver, "bad", [2] * 15, priority=LATER)

    # Seven blocks, three of them known: releasing "bad" brings one, and two are missing.
    urgent(driver, [2] * 26, priority=NORMAL)

    assert preemptions(driver) == 0
    driver.run()
    driver.check_answers()


def test_victims_that_share_blocks_make_room_together():
    driver = driver_of(12)
    running(driver, "family", [1] * 26, priority=LATER, n=2, max_tokens=4)

    urgent(driver, [2] * 36)

    assert preemptions(driver) == 2
    assert len(driver.answers["urgent", 0].tokens) == 1


def test_only_as_many_are_displaced_as_it_takes():
    driver = driver_of(20)
    for i in range(4):
        running(driver, f"bad {i}", [i] * 15, priority=LATER)

    urgent(driver, [7] * 15)

    assert preemptions(driver) == 1
    assert driver.cache.usage().blocks_used <= 20


def test_the_worst_are_displaced_first():
    driver = driver_of(100, max_num_seqs=3)
    running(driver, "worst", [1] * 5, priority=LATER)
    running(driver, "good", [2] * 5, priority=NORMAL)
    running(driver, "bad", [3] * 5, priority=NORMAL + 1)

    urgent(driver, [4] * 5)

    assert ended_in_order(driver)[-1] == "worst"


@pytest.mark.parametrize("depth", [1, 2])
def test_a_long_mixed_run_never_ping_pongs(depth):
    draw = Random(3)
    driver = driver_of(40, depth=depth, max_num_seqs=6)
    for i in range(120):
        prompt = [draw.randrange(50) for _ in range(draw.randint(1, 30))]
        driver.add(make_request(f"r{i}", prompt, priority=draw.randint(0, 3), max_tokens=12))
        for _ in range(3):
            driver.step()

    driver.run()

    driver.check_answers()
    assert all(answer.finish is FinishReason.LENGTH for answer in driver.answers.values())
    # A victim makes 16 tokens of progress first, so that twelve are disturbed once each at most.
    assert preemptions(driver) <= 120


def test_a_displaced_request_gets_its_turn_in_a_stream_of_better_ones():
    driver = driver_of(20, max_num_seqs=2, storm_guard_tokens=4)
    running(driver, "bad", [1] * 8, priority=LATER, max_tokens=12)
    for i in range(20):
        driver.add(make_request(f"r{i}", [i + 2] * 8, priority=URGENT, max_tokens=3))
        driver.step()

    driver.run()

    driver.check_answers()
    assert preemptions(driver) <= 3


def test_a_displaced_request_makes_progress_before_it_is_displaced_again():
    driver = driver_of(100, max_num_seqs=1, storm_guard_tokens=4)
    running(driver, "bad", [1] * 8, priority=LATER, max_tokens=40)
    urgent(driver, [2] * 5, max_tokens=1)
    before = len(driver.answers["bad", 0].tokens)
    driver.step()  # "bad" is admitted again
    driver.add(make_request("second", [3] * 5, priority=URGENT))
    while preemptions(driver) == 1:
        driver.step()

    assert len(driver.answers["bad", 0].tokens) - before == 4


def test_a_displaced_request_resumes_with_its_text():
    driver = driver_of(100, max_num_seqs=1)
    running(driver, "bad", [1] * 20, priority=LATER)
    for _ in range(5):
        driver.step()

    urgent(driver, [2] * 5)
    driver.run()

    stats = driver.scheduler.stats
    assert stats.preemptions == 1
    assert stats.recomputed_tokens < 4  # all of its whole blocks were found again
    driver.check_answers()


@pytest.mark.parametrize("rule", ["pow2", "oracle"])
@pytest.mark.parametrize(("second", "displaced"), [(URGENT, 0), (LATER, 3)])
def test_regions_are_displaced_only_if_that_makes_one_long_run(rule, second, displaced):
    cache = make_regions(rule, 16, longest=64)
    driver = Driver(cache, limits=Limits(8, 64, 64, 64), order="priority")
    for i, priority in enumerate((LATER, second, LATER, URGENT)):
        running(driver, f"r{i}", [i] * 8, priority=priority, max_tokens=8)

    urgent(driver, [9] * 28, priority=NORMAL, max_tokens=4)

    assert preemptions(driver) == displaced
    driver.run()
    driver.check_answers()
