"""A paused choice is given no tokens until it is resumed, and nobody else suffers."""

from __future__ import annotations

import pytest

from octavo.testing.driver import Driver, make_request


def test_a_paused_choice_gets_no_tokens_and_keeps_its_blocks():
    driver = Driver.paged(24)
    driver.add(make_request("a", [1] * 8))
    driver.step()
    driver.scheduler.pause("a", 0)
    held = driver.cache.usage().blocks_used

    for _ in range(3):
        assert driver.step() == []
    assert driver.cache.usage().blocks_used == held
    assert driver.scheduler.busy


@pytest.mark.parametrize("depth", [1, 2])
def test_a_resumed_choice_is_answered_as_if_nothing_had_happened(depth):
    driver = Driver.paged(24, depth=depth)
    driver.add_all(make_request(name, [1] * 8) for name in "ab")
    driver.step()
    driver.scheduler.pause("a", 0)
    for _ in range(12):
        driver.step()
    assert len(driver.answers["b", 0].tokens) == 8
    assert len(driver.answers["a", 0].tokens) <= depth

    driver.scheduler.resume("a", 0)
    driver.run()

    assert len(driver.answers["a", 0].tokens) == 8
    driver.check_answers()


def test_a_paused_choice_may_be_preempted_and_then_waits_without_standing_in_the_way():
    driver = Driver.paged(8, max_num_seqs=3, storm_guard_tokens=0)
    driver.add(make_request("first", [1] * 12, max_tokens=12))
    driver.add(make_request("paused", [2] * 12, max_tokens=4))
    driver.step()
    driver.scheduler.pause("paused", 0)
    while not driver.scheduler.stats.preemptions:
        driver.step()
    driver.add(make_request("later", [3] * 4, max_tokens=4))
    for _ in range(20):
        driver.step()

    assert len(driver.answers["first", 0].tokens) == 12
    assert len(driver.answers["later", 0].tokens) == 4
    assert len(driver.answers["paused", 0].tokens) < 4
    driver.scheduler.resume("paused", 0)
    driver.run()
    driver.check_answers()


def test_one_that_found_no_room_and_is_paused_lets_others_pass():
    driver = Driver.paged(8)
    driver.add(make_request("first", [1] * 12, max_tokens=12))
    driver.add(make_request("paused", [2] * 20, max_tokens=4))
    driver.step()
    driver.scheduler.pause("paused", 0)
    driver.add(make_request("later", [3] * 4, max_tokens=2))
    for _ in range(2):
        driver.step()

    assert len(driver.answers["later", 0].tokens) == 2
    driver.scheduler.resume("paused", 0)
    driver.run()
    driver.check_answers()


def test_all_beams_of_a_search_pause_together():
    driver = Driver.paged(40)
    driver.add(make_request("a", [1] * 8, use_beam_search=True, beam_width=3))
    driver.step()
    driver.scheduler.pause("a", 0)

    assert driver.step() == []
    assert not driver.batches[-1].slices or driver.batches[-1].step == 1
    driver.scheduler.resume("a", 0)
    driver.run()
    driver.check_answers()


def test_a_search_is_resumed_after_its_first_beams_have_died():
    driver = Driver.paged(40)
    driver.add(make_request("a", [1] * 8, use_beam_search=True, beam_width=3, max_tokens=30))
    while driver.scheduler.sequence(0) is not None:
        driver.step()
    driver.scheduler.pause("a", 0)
    driver.step()
    driver.scheduler.resume("a", 0)

    driver.run(max_steps=100)

    driver.check_answers()


def test_a_paused_choice_gives_way_to_one_that_came_later_and_needs_room():
    driver = Driver.paged(8, max_num_seqs=3, storm_guard_tokens=0)
    driver.add(make_request("paused", [1] * 12, max_tokens=12))
    driver.add(make_request("later", [2] * 12, max_tokens=16))
    driver.step()
    driver.scheduler.pause("paused", 0)

    for _ in range(20):
        driver.step()

    assert len(driver.answers["later", 0].tokens) == 16
    driver.scheduler.resume("paused", 0)
    driver.run()
    driver.check_answers()


@pytest.mark.parametrize(("blocks", "places"), [(8, 3), (40, 1)], ids=["blocks", "places"])
def test_a_paused_choice_gives_way_to_one_that_waits(blocks, places):
    driver = Driver.paged(blocks, max_num_seqs=places)
    driver.add(make_request("paused", [1] * 16, max_tokens=12))
    driver.step()
    driver.scheduler.pause("paused", 0)
    driver.add(make_request("later", [2] * 16, max_tokens=4))

    for _ in range(6):
        driver.step()

    assert len(driver.answers["later", 0].tokens) == 4
    driver.scheduler.resume("paused", 0)
    driver.run()
    driver.check_answers()


def test_a_paused_choice_keeps_its_blocks_while_others_find_room():
    driver = Driver.paged(40, max_num_seqs=3)
    driver.add(make_request("paused", [1] * 16, max_tokens=12))
    driver.step()
    driver.scheduler.pause("paused", 0)
    driver.add_all(make_request(name, [2] * 16, max_tokens=4) for name in ("one", "two"))

    for _ in range(6):
        driver.step()

    assert not driver.scheduler.stats.preemptions


def test_a_choice_that_is_paused_without_giving_way_keeps_its_blocks_from_those_behind_it():
    driver = Driver.paged(8, max_num_seqs=3)
    driver.add(make_request("paused", [1] * 16, max_tokens=12))
    driver.step()
    driver.scheduler.pause("paused", 0, gives_way=False)
    driver.add(make_request("later", [2] * 16, max_tokens=4))

    for _ in range(6):
        driver.step()

    assert not driver.answers["later", 0].tokens
