"""The cache manager: prefixes are found, refusals change nothing, extension is O(1)."""

from __future__ import annotations

from random import Random

import pytest

from octavo.errors import Corrupted
from octavo.testing.calls import calls_of
from octavo.testing.desk import Desk

TEXT = list(range(100, 112))
"""Three blocks of four."""


@pytest.fixture
def desk():
    return Desk.paged(16)


# ── prefixes ──────────────────────────────────────────────────────────────────────────────


def test_a_released_prefix_is_found_by_the_next_request(desk):
    desk.release(desk.written(TEXT))

    assert desk.cache.lookup(desk.waiting([*TEXT, 1, 2])).tokens == 12


def test_at_least_one_token_is_left_to_compute(desk):
    desk.release(desk.written(TEXT))

    assert desk.cache.lookup(desk.waiting(TEXT)).tokens == 11


@pytest.mark.parametrize("length", [5, 8, 9])
def test_without_partial_blocks_only_whole_ones_are_found(length):
    desk = Desk.paged(16, partial_blocks=False)
    desk.release(desk.written(TEXT[:length]))

    assert desk.cache.lookup(desk.waiting(TEXT)).tokens == length // 4 * 4


def test_a_prefix_ends_where_the_texts_part(desk):
    desk.release(desk.written(TEXT))

    assert desk.cache.lookup(desk.waiting([*TEXT[:6], 0, 0, *TEXT[8:], 1])).tokens == 6


def test_lookup_changes_no_count(desk):
    desk.release(desk.written(TEXT))
    before = desk.snapshot()

    desk.cache.lookup(desk.waiting([*TEXT, 1]))

    assert desk.snapshot() == before


def test_a_hit_shares_the_blocks_of_the_first(desk):
    first = desk.written(TEXT)

    second = desk.running([*TEXT, 1])

    assert desk.blocks(second)[:3] == desk.blocks(first)
    assert desk.cache.usage().blocks_shared == 3


def test_a_running_sequence_takes_over_what_others_have_written_since(desk):
    slow = desk.waiting([*TEXT, 1])
    assert desk.admit(slow, upto=4)
    desk.written(TEXT)

    gained = desk.cache.adopt(slow)

    assert gained == 8
    desk.cache.check()


def test_a_block_that_a_sequence_has_begun_is_given_up_for_one_that_is_full(desk):
    slow = desk.waiting([*TEXT, 1])
    assert desk.admit(slow, upto=5)
    begun = desk.blocks(slow)[1]
    other = desk.written(TEXT)

    assert desk.cache.adopt(slow) == 7

    assert desk.blocks(slow) == desk.blocks(other)
    assert begun not in desk.blocks(slow)
    desk.cache.check()


def test_a_sequence_that_is_ahead_of_the_others_takes_over_nothing(desk):
    quick = desk.waiting([*TEXT, 1])
    assert desk.admit(quick, upto=6)
    desk.written(TEXT[:5])

    assert desk.cache.adopt(quick) == 0


def test_a_fork_keeps_its_partial_block(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    child.tokens.extend([*TEXT[6:], 1])
    desk.written(TEXT)

    assert desk.cache.adopt(child) == 0


def test_clear_forgets_only_what_nobody_uses(desk):
    desk.written(TEXT)
    desk.release(desk.written([1] * 8))

    assert desk.cache.clear() == 2

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 12
    assert desk.cache.lookup(desk.waiting([1] * 9)).tokens == 0


# ── all or nothing ────────────────────────────────────────────────────────────────────────


def test_an_admission_that_is_refused_changes_nothing():
    desk = Desk.paged(6)
    desk.written(TEXT)
    before = desk.snapshot()

    assert not desk.admit(desk.waiting([*TEXT[:4], *range(12)]))

    assert desk.snapshot() == before


def test_an_extension_that_is_refused_changes_nothing():
    desk = Desk.paged(4)
    seq = desk.written(TEXT)
    assert desk.extend(seq, 1, 2, 3, 4)
    before = desk.snapshot()

    assert not desk.extend(seq, 5)

    assert desk.snapshot() == before


def test_an_extension_without_room_for_its_copy_changes_nothing():
    desk = Desk.paged(3)
    parent = desk.written(TEXT[:6])
    desk.written([1, 2])
    child = desk.fork(parent)
    before = desk.snapshot()

    assert not desk.extend(child, 1)

    assert desk.snapshot() == before
    assert desk.cache.take_copies() == ()


def test_shortage_tells_how_many_blocks_must_come_back():
    desk = Desk.paged(6)
    desk.written(TEXT)
    seq = desk.waiting([*TEXT[:4], *range(12)])

    assert desk.cache.shortage(seq, desk.cache.lookup(seq)) == 2


def test_a_release_without_blocks_has_no_effect(desk):
    before = desk.snapshot()

    desk.release(desk.waiting(TEXT))

    assert desk.snapshot() == before


def test_a_second_release_has_no_effect(desk):
    seq = desk.written(TEXT)
    desk.release(seq)
    before = desk.snapshot()

    desk.release(seq)

    assert desk.snapshot() == before


# ── promises ──────────────────────────────────────────────────────────────────────────────


def test_blocks_of_a_prompt_in_chunks_are_promised_to_it():
    desk = Desk.paged(6)
    long = desk.waiting(range(20))
    assert desk.admit(long, upto=4)

    assert not desk.admit(desk.waiting([1, 2, 3]))


def test_a_promise_is_kept_chunk_by_chunk():
    desk = Desk.paged(6)
    long = desk.waiting(range(20))
    assert desk.admit(long, upto=4)

    for upto in (8, 12, 16, 20):
        assert desk.cache.extend(long, upto, desk.step)
        long.scheduled = upto
        desk.cache.check()


def test_a_hundredth_of_the_pool_stays_free_for_those_who_run():
    desk = Desk.paged(200)
    assert desk.admit(desk.waiting(range(700)))

    assert not desk.admit(desk.waiting(range(1000, 1090)))
    assert desk.admit(desk.waiting(range(1000, 1080)))


def test_a_lone_sequence_may_fill_the_pool():
    desk = Desk.paged(200)

    assert desk.admit(desk.waiting(range(799)))


def test_a_promise_ends_with_its_sequence():
    desk = Desk.paged(6)
    long = desk.waiting(range(20))
    desk.admit(long, upto=4)

    desk.release(long)

    assert desk.admit(desk.waiting([1] * 20))


def test_blocks_taken_over_from_others_pay_for_the_promise():
    desk = Desk.paged(12)
    slow = desk.waiting([*TEXT, 1])
    desk.admit(slow, upto=4)
    desk.written(TEXT)
    desk.cache.adopt(slow)

    other = desk.waiting([7] * 23)

    assert desk.cache.shortage(other, desk.cache.lookup(other)) == 0


# ── groups ────────────────────────────────────────────────────────────────────────────────


def test_groups_have_their_own_blocks_in_one_pool():
    desk = Desk.paged(16, (4, 8))
    seq = desk.written(range(17))

    fine, coarse = desk.cache.growth(seq)[1]

    assert (len(fine), len(coarse)) == (5, 3)
    assert set(fine).isdisjoint(coarse)


@pytest.mark.parametrize(("sizes", "found"), [((4, 8), 16), ((4, 6), 12), ((2,), 20)])
def test_a_prefix_counts_as_far_as_every_group_has_it_whole(sizes, found):
    desk = Desk.paged(64, sizes, partial_blocks=False)
    desk.release(desk.written(range(21)))

    assert desk.cache.lookup(desk.waiting(range(23))).tokens == found


def test_a_prefix_ends_where_one_group_has_lost_it():
    desk = Desk.paged(9, (4, 8))
    desk.release(desk.written(range(16)))

    desk.tiers[0].pool.take(5)  # three were free, then the tail of the first group goes

    assert desk.cache.lookup(desk.waiting(range(17))).tokens == 8


def test_usage_weighs_the_slots_of_all_groups_alike():
    desk = Desk.paged(16, (4, 8))
    desk.written(range(16))

    usage = desk.cache.usage()

    assert usage.slots == 16 * 8
    assert (usage.allocated, usage.tokens) == (6 * 8, 16 * 2 + 16 * 1)


# ── cost and waste ────────────────────────────────────────────────────────────────────────


def calls_of_an_extension(length):
    """Count the calls, Python's and C's, that one more token costs at a length."""
    desk = Desk.paged(length // 16 + 2, (16,))
    seq = desk.waiting([7] * 16)
    assert desk.admit(seq)
    seq.tokens.extend(bytes(length - 16))
    assert desk.cache.extend(seq, length, desk.step)
    seq.scheduled = length
    desk.cache.growth(seq)
    desk.commit()
    seq.tokens.append(1)
    return calls_of(lambda: desk.cache.extend(seq, length + 1, desk.step))


def test_extending_ten_million_tokens_costs_what_extending_a_thousand_costs():
    assert calls_of_an_extension(10_000_000) == calls_of_an_extension(1_008)


def test_less_than_four_percent_is_wasted_on_chat_lengths():
    draw = Random(0)
    desk = Desk.paged(20_000, (16,))
    # ShareGPT: prompts and answers of a few hundred tokens, with a long tail.
    lengths = [
        max(4, round(draw.lognormvariate(4.6, 1.1))) + max(4, round(draw.lognormvariate(5.4, 0.9)))
        for _ in range(300)
    ]
    for number, length in enumerate(lengths):
        desk.running([number] * length)

    usage = desk.cache.usage()

    assert usage.tokens == sum(lengths)
    assert 1 - usage.tokens / usage.allocated < 0.04


def test_check_finds_a_reference_that_no_table_holds(desk):
    desk.written(TEXT)
    desk.tiers[0].pool.share([0])

    with pytest.raises(Corrupted, match="block 0: refs 2, holders 1"):
        desk.cache.check()
