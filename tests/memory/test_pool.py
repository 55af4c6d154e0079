"""The block pool: ids and reference counts, O(1) each, and nothing ever lost."""

from __future__ import annotations

import pytest

from octavo.errors import Corrupted, OutOfBlocks
from octavo.memory.policies.lru import Lru
from octavo.memory.tier import Text, Tier


def tier_of(num_blocks, weights=(1,)):
    return Tier("device", num_blocks, Lru(), weights)


def pool_of(num_blocks, weights=(1,)):
    return tier_of(num_blocks, weights).pool


def keyed(tier, name):
    """Take one block that holds the text `name`."""
    (block_id,) = tier.pool.take(1)
    assert tier.publish(tier.pool.blocks[block_id], Text(name, b"", name, 0))
    return block_id


def test_a_new_pool_hands_out_blocks_in_ascending_order():
    assert pool_of(4).take(3) == [0, 1, 2]


def test_taking_more_than_there_is_raises_and_changes_nothing():
    pool = pool_of(4)
    pool.take(3)

    with pytest.raises(OutOfBlocks, match="2 blocks asked of a pool with 1 available"):
        pool.take(2)

    assert (pool.held, pool.available) == (3, 1)
    pool.check({0: 1, 1: 1, 2: 1})


def test_taking_nothing_is_allowed_in_a_full_pool():
    pool = pool_of(1)
    pool.take(1)

    assert pool.take(0) == []


def test_a_block_comes_back_with_its_last_holder():
    pool = pool_of(2)
    pool.take(1)
    pool.share([0, 0])

    pool.drop([0, 0])
    assert pool.available == 1
    pool.drop([0])

    assert pool.available == 2


def test_shared_blocks_count_once_as_held_and_each_time_as_logical():
    pool = pool_of(4)
    pool.take(2)

    pool.share([1])

    assert (pool.held, pool.logical, pool.shared) == (2, 3, 1)


def test_dropping_a_block_that_nobody_holds_is_our_bug():
    pool = pool_of(2)

    with pytest.raises(Corrupted, match="block 1 was dropped more often than held"):
        pool.drop([1])


def test_a_dropped_block_that_holds_a_text_stays_cached():
    tier = tier_of(2)
    block = keyed(tier, b"text")

    tier.pool.drop([block])

    assert (tier.pool.cached, tier.pool.available, tier.pool.held) == (1, 2, 0)


def test_free_blocks_go_before_cached_ones():
    tier = tier_of(3)
    tier.pool.drop([keyed(tier, b"text")])

    tier.pool.take(2)

    assert (tier.pool.cached, tier.pool.evictions) == (1, 0)


def test_a_cached_block_is_evicted_when_no_free_one_is_left():
    tier = tier_of(2)
    block = keyed(tier, b"text")
    tier.pool.drop([block])

    taken = tier.pool.take(2)

    assert block in taken
    assert tier.pool.evictions == 1
    assert tier.keyed() == []


def test_a_shared_cached_block_can_no_longer_be_evicted():
    tier = tier_of(2)
    block = keyed(tier, b"text")
    tier.pool.drop([block])

    tier.pool.share([block])

    assert tier.pool.available == 1
    assert block not in tier.pool.take(1)


def test_blocks_dropped_first_are_evicted_first():
    tier = tier_of(3)
    blocks = [keyed(tier, name) for name in (b"a", b"b", b"c")]
    tier.pool.drop(reversed(blocks))

    assert tier.pool.take(3) == blocks[::-1]


def test_filled_slots_count_once_however_many_hold_the_block():
    pool = pool_of(2)
    pool.take(1)
    pool.fill(0, 3)

    pool.share([0])

    assert pool.filled == 3


def test_a_block_is_never_less_filled_than_before():
    pool = pool_of(2)
    pool.take(1)
    pool.fill(0, 3)

    pool.fill(0, 2)

    assert pool.filled == 3


def test_slots_of_a_group_with_few_tokens_per_block_weigh_more():
    pool = pool_of(2, weights=(1, 4))
    pool.take(1, 0)
    pool.take(1, 1)

    pool.fill(0, 8)
    pool.fill(1, 2)

    assert pool.filled == 8 + 2 * 4


def test_a_cached_block_that_is_shared_again_is_as_full_as_before():
    tier = tier_of(2)
    block = keyed(tier, b"text")
    tier.pool.fill(block, 4)
    tier.pool.drop([block])
    assert tier.pool.filled == 0

    tier.pool.share([block])

    assert tier.pool.filled == 4


def test_a_taken_block_is_empty():
    pool = pool_of(1)
    pool.take(1)
    pool.fill(0, 4)
    pool.drop([0])

    pool.take(1)

    assert pool.filled == 0


@pytest.mark.parametrize("holders", [{}, {0: 2}, {0: 1, 1: 1}])
def test_check_finds_a_count_that_is_not_the_number_of_holders(holders):
    pool = pool_of(2)
    pool.take(1)

    with pytest.raises(Corrupted, match="refs"):
        pool.check(holders)


def test_check_finds_a_wrong_sum():
    pool = pool_of(2)
    pool.take(1)
    pool.filled += 1

    with pytest.raises(Corrupted, match="filled is 1, not 0"):
        pool.check({0: 1})
