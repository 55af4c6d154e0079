"""Which cached block goes first: least recently used, and the tail before its prefix."""

from __future__ import annotations

import pytest

from octavo.memory.block import Block
from octavo.memory.policies.lru import Lru
from octavo.testing.desk import Desk


def blocks(count):
    return [Block(i) for i in range(count)]


def test_the_block_without_a_holder_for_longest_goes_first():
    bag, (a, b, c) = Lru(), blocks(3)
    for block in (b, a, c):
        bag.add(block)

    assert [bag.pop() for _ in range(3)] == [b, a, c]


def test_a_removed_block_is_never_a_victim():
    bag, (a, b, c) = Lru(), blocks(3)
    for block in (a, b, c):
        bag.add(block)

    bag.remove(b)

    assert [bag.pop(), bag.pop()] == [a, c]
    assert len(bag) == 0


def test_a_block_used_again_becomes_the_youngest():
    bag, (a, b) = Lru(), blocks(2)
    bag.add(a)
    bag.add(b)
    bag.remove(a)
    bag.add(a)

    assert bag.pop() is b


def test_popping_an_empty_bag_is_an_index_error():
    with pytest.raises(IndexError):
        Lru().pop()


def test_a_policy_derived_from_another_is_asked_as_far_as_it_differs():
    asked = []

    class Nosy(Lru):
        def add(self, block):
            asked.append(block)
            super().add(block)

    desk = Desk.paged(8, policy=Nosy)
    desk.release(desk.written(range(16)))

    assert [block.depth for block in asked] == [3, 2, 1, 0]


def test_the_suffix_of_a_released_text_is_evicted_before_its_prefix():
    desk = Desk.paged(5)
    text = list(range(16))
    desk.release(desk.written(text))
    desk.tiers[0].pool.take(1)
    found = []
    for _ in range(4):
        found.append(desk.cache.lookup(desk.waiting([*text, 0])).tokens)
        desk.tiers[0].pool.take(1)

    assert found == [16, 12, 8, 4]


def test_the_text_released_first_is_evicted_first():
    desk = Desk.paged(6)
    old, young = desk.running([1] * 8), desk.running([2] * 8)
    desk.commit()
    desk.release(old)
    desk.release(young)

    desk.tiers[0].pool.take(4)

    assert desk.cache.lookup(desk.waiting([1] * 9)).tokens == 0
    assert desk.cache.lookup(desk.waiting([2] * 9)).tokens == 8


def test_a_prefix_in_use_outlives_any_pressure():
    desk = Desk.paged(6)
    desk.written([1] * 8)
    desk.release(desk.written([2] * 8))

    desk.tiers[0].pool.take(4)

    assert desk.cache.lookup(desk.waiting([1] * 9)).tokens == 8
