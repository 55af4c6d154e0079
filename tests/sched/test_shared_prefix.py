"""Requests with one new prefix compute it once, however they arrive."""

from __future__ import annotations

import pytest

from octavo.testing.driver import Driver, make_request

PREFIX = [i % 47 for i in range(1024)]
COUNT = 32
TAIL = 3


def requests(**options):
    return [
        make_request(f"r{i}", [*PREFIX, i, i, i], max_tokens=2, **options) for i in range(COUNT)
    ]


def driver_for(budget, *, block_sizes=(16,), depth=1):
    return Driver.paged(2000, block_sizes, depth=depth, max_num_seqs=64, budget=budget)


def computed(driver):
    return driver.scheduler.stats.computed_prompt_tokens


ONCE = len(PREFIX) + COUNT * TAIL
"""Prompt tokens to compute if the prefix is computed once."""


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [48, 100, 256, 4096])
def test_requests_that_arrive_together_compute_their_prefix_once(budget, depth):
    driver = driver_for(budget, depth=depth)
    driver.add_all(requests())

    driver.run()

    assert computed(driver) == ONCE
    driver.check_answers()


def test_followers_read_in_the_same_step_what_their_leader_writes():
    driver = driver_for(4096)
    driver.add_all(requests())

    driver.step()

    assert [len(piece.tokens) for piece in driver.batches[0].slices] == [1027] + [TAIL] * 31


def test_tokens_shared_while_tentative_count_as_cached():
    driver = driver_for(4096)
    driver.add_all(requests())

    news = driver.step()

    assert [update.cached_tokens for update in news] == [0] + [1024] * 31


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [100, 4096])
def test_requests_that_arrive_in_later_steps_compute_their_prefix_once(budget, depth):
    driver = driver_for(budget, depth=depth)
    for request in requests():
        driver.add(request)
        driver.step()

    driver.run()

    assert computed(driver) == ONCE
    driver.check_answers()


def test_requests_that_arrive_between_chunks_compute_their_prefix_once():
    driver = driver_for(64)
    first, *others = requests()
    driver.add(first)
    for _ in range(3):
        driver.step()
    driver.add_all(others)

    driver.run()

    assert computed(driver) == ONCE


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("chunks", [1, 5, 15])
def test_an_aborted_leader_hands_its_progress_on(chunks, depth):
    driver = driver_for(64, depth=depth)
    driver.add_all(requests())
    for _ in range(chunks):
        driver.step()

    driver.scheduler.abort("r0")
    driver.run()

    assert computed(driver) <= ONCE
    assert computed(driver) >= ONCE - TAIL
    driver.check_answers()


def test_a_leader_that_is_preempted_computes_nothing_twice():
    driver = Driver.paged(
        200, (16,), order="priority", max_num_seqs=1, budget=64, storm_guard_tokens=4
    )
    leader, *_ = requests(priority=1)
    driver.add(leader)
    for _ in range(5):
        driver.step()
    driver.add(make_request("urgent", [*PREFIX, 9], priority=0, max_tokens=2))

    driver.run()

    assert driver.scheduler.stats.preemptions == 1
    assert computed(driver) == len(PREFIX) + TAIL + 1
    driver.check_answers()


@pytest.mark.parametrize("block_sizes", [(16, 32), (4, 8), (6, 4)])
def test_several_groups_compute_a_prefix_once_but_for_a_shared_rest(block_sizes):
    driver = driver_for(4096, block_sizes=block_sizes)
    driver.add_all(requests())

    driver.run()

    driver.check_answers()
    rest = len(PREFIX) % 12 if block_sizes == (6, 4) else 0
    assert computed(driver) == ONCE + (COUNT - 1) * rest


def test_different_tenants_share_nothing():
    driver = driver_for(4096)
    driver.add(make_request("a", [*PREFIX, 1], max_tokens=1, salt="one"))
    driver.add(make_request("b", [*PREFIX, 1], max_tokens=1, salt="two"))

    driver.run()

    assert computed(driver) == 2 * 1025


def test_choices_share_the_blocks_of_their_prompt():
    driver = driver_for(4096)
    driver.add(make_request("r", [*PREFIX, 1, 2], n=4, max_tokens=2))

    driver.step()

    usage = driver.cache.usage()
    assert (usage.blocks_used, usage.blocks_logical) == (65, 4 * 65)
    driver.run()
    assert driver.scheduler.stats.copies == 3
    driver.check_answers()
