"""Contiguous runs: split and merged by address, from pools of any size."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from octavo.errors import Corrupted
from octavo.memory.buddy import BuddyAllocator

SIZES = st.integers(1, 200)


def drain(buddy):
    """Take single blocks until none is left; return their addresses."""
    runs = []
    while (run := buddy.take(1)) is not None:
        runs.append(run[0])
    return runs


def test_the_lowest_address_is_taken_first():
    buddy = BuddyAllocator(16)

    assert [buddy.take(4) for _ in range(4)] == [(0, 4), (4, 4), (8, 4), (12, 4)]


def test_a_run_is_rounded_up_to_a_power_of_two():
    assert BuddyAllocator(16).take(5) == (0, 8)


def test_a_run_lies_at_a_multiple_of_its_length():
    buddy = BuddyAllocator(16)
    buddy.take(1)

    assert buddy.take(8) == (8, 8)


def test_a_gap_in_front_is_filled_before_fresh_blocks():
    buddy = BuddyAllocator(16)
    for _ in range(3):
        buddy.take(4)
    buddy.drop(4)

    assert buddy.take(3) == (4, 4)


def test_no_room_is_none_and_changes_nothing():
    buddy = BuddyAllocator(8)
    buddy.take(1)

    assert buddy.take(8) is None
    assert not buddy.fits(8)
    assert buddy.take(4) == (4, 4)


def test_blocks_in_two_gaps_do_not_make_one_run():
    buddy = BuddyAllocator(8)
    starts = [buddy.take(2)[0] for _ in range(4)]
    buddy.drop(starts[1])
    buddy.drop(starts[2])

    assert not buddy.fits(4)
    assert buddy.fits(2)


@pytest.mark.parametrize(("size", "largest"), [(0, 0), (1, 1), (12, 8), (15_728, 8192)])
def test_the_largest_run_of_a_pool(size, largest):
    assert BuddyAllocator(size).largest == largest


def test_a_pool_without_blocks_gives_nothing():
    assert BuddyAllocator(0).take(1) is None


@given(size=SIZES)
def test_a_pool_of_any_size_gives_out_every_block_once(size):
    assert sorted(drain(BuddyAllocator(size))) == list(range(size))


@given(order=st.integers(0, 8))
def test_a_pool_of_a_power_of_two_gives_out_its_blocks_in_order(order):
    assert drain(BuddyAllocator(1 << order)) == list(range(1 << order))


@given(size=SIZES, moves=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 99)), max_size=60))
@settings(max_examples=150, deadline=None)
def test_runs_never_overlap_and_merge_back_to_the_initial_pool(size, moves):
    buddy, taken = BuddyAllocator(size), {}
    for count, pick in moves:
        if taken and pick % 3 == 0:
            start = sorted(taken)[pick % len(taken)]
            del taken[start]
            buddy.drop(start)
        elif buddy.fits(count):
            start, length = buddy.take(count)
            used = {block for run in taken.items() for block in range(run[0], sum(run))}
            assert used.isdisjoint(range(start, start + length))
            assert count <= length < 2 * count
            assert start + length <= size
            taken[start] = length
        else:
            assert buddy.take(count) is None
        buddy.check()

    for start in sorted(taken, key=lambda start: start * 7919 % 101):
        buddy.drop(start)

    buddy.check()
    fresh = BuddyAllocator(size)
    assert [buddy.take(1 << k) for k in range(9)] == [fresh.take(1 << k) for k in range(9)]


@given(size=SIZES, count=st.integers(1, 220))
def test_fits_tells_what_take_will_say(size, count):
    buddy = BuddyAllocator(size)

    assert buddy.fits(count) == (buddy.take(count) is not None)


def test_dropping_a_run_twice_is_an_error():
    buddy = BuddyAllocator(4)
    buddy.take(2)
    buddy.drop(0)

    with pytest.raises(KeyError):
        buddy.drop(0)


def test_check_finds_a_pool_of_the_wrong_size():
    buddy = BuddyAllocator(4)
    buddy.size = 5

    with pytest.raises(Corrupted, match="runs end at block 4 of 5"):
        buddy.check()
