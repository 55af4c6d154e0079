"""What is said of a text's further use: how it gets to the blocks, and how far it is believed."""

from __future__ import annotations

from random import Random

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.contract.hint import CacheHint
from octavo.memory.block import Block
from octavo.memory.eviction import hears_hints
from octavo.memory.policies.bonus import Bonus
from octavo.memory.policies.cost import Cost
from octavo.memory.policies.gittins import Gittins
from octavo.memory.policies.lru import Lru
from octavo.testing.desk import Desk

CONTINUES, CLOSED = CacheHint("continues"), CacheHint("closed")


def hints_of(desk, prompt):
    """What each block of a cached text carries, first block first."""
    hit = desk.cache.lookup(desk.waiting([*prompt, 99]))
    return [block.hint for _, block in hit.runs[0]]


# ── how a hint gets to a block ────────────────────────────────────────────────────────────


def test_every_block_carries_what_was_said_of_the_whole_text():
    desk = Desk.paged(8)

    desk.release(desk.written([1] * 8, hints=(CONTINUES,)))

    assert hints_of(desk, [1] * 8) == [CONTINUES, CONTINUES]


def test_a_block_carries_the_hint_that_its_last_token_falls_under():
    desk = Desk.paged(8)
    shared, closed = CacheHint("shared", 6), CacheHint("closed", 12)

    desk.release(desk.written([1] * 16, hints=(shared, closed)))

    assert hints_of(desk, [1] * 16) == [shared, closed, closed, None]


def test_what_was_said_has_come_to_pass_when_the_text_is_taken_up():
    desk = Desk.paged(8)
    desk.release(desk.written([1] * 8, hints=(CONTINUES,)))

    again = desk.running([1] * 9)
    desk.commit()
    desk.release(again)

    assert hints_of(desk, [1] * 8) == [None, None]


def test_a_sequence_that_will_go_on_says_nothing_yet():
    desk = Desk.paged(8)
    seq = desk.written([1] * 8, hints=(CLOSED,))

    desk.cache.release(seq, 0, returns=True)

    assert hints_of(desk, [1] * 8) == [None, None]


def test_a_block_with_another_text_carries_nothing_of_the_old_one():
    desk = Desk.paged(3)
    desk.release(desk.written([1] * 8, hints=(CLOSED,)))

    desk.release(desk.written([2] * 8))

    assert hints_of(desk, [2] * 8) == [None, None]


@pytest.mark.parametrize("sizes", [(4, 8), (3, 3, 3)])
def test_hints_reach_the_blocks_of_every_group(sizes):
    desk = Desk.paged(40, sizes)

    desk.release(desk.written([1] * 24, hints=(CONTINUES,)))

    assert {block.hint for block in desk.tiers[0].keyed()} == {CONTINUES}


# ── how far it is believed ────────────────────────────────────────────────────────────────


class Traffic:
    """Texts of four blocks pass through a bag; every second one is used once more.

    Between the first use of a text and its second one, so many others come that a cache of
    `blocks` blocks in the order of use has lost it.
    """

    def __init__(self, policy, *, blocks=400, distance=100):
        self.bag, self.free = policy, [Block(i) for i in range(blocks)]
        self.cached, self.distance = {}, distance
        self.hits = self.requests = 0

    def serve(self, text, hint):
        keys = [text.to_bytes(8, "little") * 2]
        keys += [bytes([17 * text % 251, depth]) + keys[0][:14] for depth in range(1, 4)]
        held = []
        for depth, key in enumerate(keys):
            block = self.cached.pop(key, None)
            if block is None:
                block = self.free.pop() if self.free else self._evicted()
                block.key, block.depth, block.filled = key, depth, 16
                block.parent = keys[depth - 1] if depth else b""
            else:
                self.hits += 1
                self.bag.remove(block)
            held.append(block)
        for block in reversed(held):
            block.hint = hint
            self.cached[block.key] = block
            self.bag.add(block)

    def run(self, says, requests=3000):
        """Return the share of second uses that hit, late in the traffic.

        says: given whether a text is used again, what is said of it.
        """
        for number in range(requests):
            if number == requests // 2:
                self.hits = 0
            returns = number % 2 == 0
            self.serve(number, says(returns))
            back = number - self.distance
            if back >= 0 and back % 2 == 0:
                self.serve(back, says(False))
        return self.hits / (4 * (requests // 4))

    def _evicted(self):
        block = self.bag.pop()
        del self.cached[block.key]
        return block


def truth(returns):
    return CONTINUES if returns else CLOSED


def lie(returns):
    return truth(not returns)


def noise(seed):
    draw = Random(seed)
    return lambda returns: truth(draw.random() < 0.5)


LEARNING = {"bonus": Bonus, "gittins": Gittins, "cost": lambda: Cost(policy="bonus")}


@pytest.mark.parametrize("name", LEARNING)
def test_a_source_that_is_right_is_believed(name):
    silent = Traffic(LEARNING[name]()).run(lambda returns: None)

    assert Traffic(LEARNING[name]()).run(truth) > max(0.9, silent + 0.3)


@pytest.mark.parametrize("name", LEARNING)
def test_a_source_that_always_lies_comes_to_be_understood(name):
    assert Traffic(LEARNING[name]()).run(lie) > 0.9


@pytest.mark.parametrize("name", LEARNING)
def test_noise_costs_next_to_nothing(name):
    silent = Traffic(LEARNING[name]()).run(lambda returns: None)

    assert Traffic(LEARNING[name]()).run(noise(1)) > silent - 0.05


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", LEARNING)
def test_noise_takes_nothing_from_a_cache_that_holds_all_that_returns(name, seed):
    assert Traffic(LEARNING[name](), distance=30).run(lambda returns: None) == 1.0

    assert Traffic(LEARNING[name](), distance=30).run(noise(seed)) > 0.99


def test_a_probability_is_a_thing_said_like_any_other():
    assert Traffic(Bonus()).run(lambda returns: CacheHint(0.95 if returns else 0.05)) > 0.9


def test_who_says_it_matters():
    honest, liar = (Traffic(Bonus()) for _ in range(2))

    def mixed(returns):
        draw.append(0)
        source = len(draw) % 3
        right = truth(returns) if source else lie(returns)
        return CacheHint(right.says, source=f"tenant {source}")

    draw = []
    told_apart = honest.run(mixed)
    draw.clear()
    together = liar.run(lambda returns: CacheHint(mixed(returns).says))

    assert told_apart > 0.9
    assert told_apart >= together


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_a_policy_says_whether_it_listens(name):
    assert hears_hints(EVICTION_POLICIES[name]()) == (name in ("bonus", "gittins", "cost"))


def test_a_bonus_without_weight_for_hints_does_not_listen():
    assert not hears_hints(Bonus(hints=0.0))


def test_lru_does_not_listen():
    assert Traffic(Lru()).run(truth) == Traffic(Lru()).run(lie) == 0.0
