"""A tier: a pool and an index from texts to blocks."""

from __future__ import annotations

import pytest

from octavo.errors import Corrupted
from octavo.memory.policies.lru import Lru
from octavo.memory.tier import Text, Tier

TEXT = Text(b"key", b"parent", b"tokens", 0)


@pytest.fixture
def tier():
    return Tier("host", 4, Lru(), (1, 1))


def take(tier, group=0):
    (block_id,) = tier.pool.take(1, group)
    return tier.pool.blocks[block_id]


def test_a_published_block_is_found_by_its_text(tier):
    block = take(tier)

    assert tier.publish(block, TEXT)

    assert tier.find(0, TEXT) is block


def test_the_same_text_of_another_group_is_another_block(tier):
    tier.publish(take(tier), TEXT)

    assert tier.find(1, TEXT) is None
    assert tier.publish(take(tier, group=1), TEXT)


def test_a_second_block_with_a_known_text_stays_private(tier):
    first, second = take(tier), take(tier)
    tier.publish(first, TEXT)

    assert not tier.publish(second, TEXT)

    assert second.key is None
    assert tier.find(0, TEXT) is first


@pytest.mark.parametrize("field", ["tokens", "parent"])
def test_equal_keys_of_different_texts_are_a_miss(tier, field):
    tier.publish(take(tier), TEXT)

    assert tier.find(0, TEXT._replace(**{field: b"other"})) is None


def test_a_tentative_block_names_the_step_that_writes_it(tier):
    block = take(tier)

    tier.publish(block, TEXT, step=7)

    assert block.written_step == 7


def test_a_withdrawn_block_is_not_found_and_its_holder_keeps_it(tier):
    block = take(tier)
    tier.publish(block, TEXT)

    tier.withdraw(block)

    assert tier.find(0, TEXT) is None
    assert block.refs == 1
    tier.check({block.id: 1})


def test_a_withdrawn_block_without_a_holder_becomes_free(tier):
    block = take(tier)
    tier.publish(block, TEXT)
    tier.pool.drop([block.id])

    tier.withdraw(block)

    assert (tier.pool.cached, tier.pool.available) == (0, 4)
    tier.check({})


def test_an_evicted_block_is_not_found(tier):
    block = take(tier)
    tier.publish(block, TEXT)
    tier.pool.drop([block.id])

    tier.pool.take(4)

    assert tier.find(0, TEXT) is None


def test_clear_forgets_what_nobody_holds(tier):
    held, idle = take(tier), take(tier)
    tier.publish(held, TEXT)
    tier.publish(idle, TEXT._replace(key=b"idle"))
    tier.pool.drop([idle.id])

    assert tier.clear() == 1

    assert tier.keyed() == [held]
    tier.check({held.id: 1})


def test_check_finds_a_block_under_a_strange_key(tier):
    block = take(tier)
    tier.publish(block, TEXT)
    block.key = b"strange"

    with pytest.raises(Corrupted, match="names a stranger"):
        tier.check({block.id: 1})


def test_check_finds_a_key_that_is_not_in_the_index(tier):
    block = take(tier)
    block.key = b"lost"

    with pytest.raises(Corrupted, match="1 keyed blocks, 0 in the index"):
        tier.check({block.id: 1})
