"""What each eviction policy is for, told by which of a few texts it lets go of."""

from __future__ import annotations

from random import Random

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.memory.block import Block
from octavo.memory.policies.arc import Arc
from octavo.memory.policies.bonus import Bonus
from octavo.memory.policies.cost import Cost
from octavo.memory.policies.fifo import Fifo
from octavo.memory.policies.gittins import Gittins
from octavo.memory.policies.hazard import Hazard
from octavo.memory.policies.hotprefix import HotPrefix
from octavo.memory.policies.lfu import Lfu
from octavo.memory.policies.lru import Lru
from octavo.memory.policies.ranked import RankedBag
from octavo.memory.policies.s3fifo import S3Fifo
from octavo.memory.policies.use_counts import Recent, UseCounts
from octavo.testing.desk import Desk

BLOCK = 4


class Cache:
    """A desk whose requests come one after the other; the question after a text takes a block.

    The question is forgotten, so that exactly the blocks of the texts are cached.
    """

    def __init__(self, policy, blocks):
        self.desk = Desk.paged(blocks + 1, (BLOCK,), policy=policy, partial_blocks=False)

    def ask(self, *texts, times=1):
        """Serve one text after the other; returns the tokens found of the last one."""
        found = 0
        for _ in range(times):
            for text in texts:
                seq = self.desk.written([*text, 0])
                found = seq.cached_tokens or 0
                self.desk.release(seq)
        return found

    def knows(self, text):
        """How many tokens of a text are cached; changes nothing."""
        return self.desk.cache.lookup(self.desk.waiting([*text, 0])).tokens


def text(number, blocks=1):
    """A text that shares nothing with those of other numbers."""
    return [number] * (BLOCK * blocks)


def once(first, count):
    """Texts of one block that nobody asks for again."""
    return [text(number) for number in range(first, first + count)]


def left_without_a_beginning(policy):
    """Tokens of a text's later part that are cached though the earlier part is gone, at most."""
    desk = Desk.paged(20, policy=policy)
    for blocks in (4, 8, 16):
        desk.release(desk.written(range(BLOCK * blocks)))
    device, most = desk.tiers[0], 0
    while device.pool.available:
        device.pool.take(1)
        found = desk.cache.lookup(desk.waiting([*range(16 * BLOCK), 0])).tokens
        most = max(most, BLOCK * len(device.keyed()) - found)
    return most


@pytest.mark.parametrize("name", sorted(set(EVICTION_POLICIES) - {"fifo", "s3fifo"}))
def test_a_text_that_went_on_is_given_up_from_its_end(name):
    assert left_without_a_beginning(EVICTION_POLICIES[name]) == 0


@pytest.mark.parametrize("policy", [Fifo, S3Fifo])
def test_in_a_queue_a_text_goes_before_what_went_on_from_it_later(policy):
    assert left_without_a_beginning(policy) >= 8 * BLOCK


# ── first in, first out ───────────────────────────────────────────────────────────────────


def test_fifo_lets_go_of_the_text_cached_first_however_often_it_is_used():
    cache = Cache(Fifo, 4)
    cache.ask(text(1), text(2), text(3))
    cache.ask(text(1), times=5)

    cache.ask(text(4), text(5))

    assert (cache.knows(text(1)), cache.knows(text(2))) == (0, BLOCK)


def test_fifo_gives_a_text_a_new_turn_when_it_is_computed_again():
    cache = Cache(Fifo, 3)
    cache.ask(text(1), *once(10, 3), text(1))

    cache.ask(text(2), text(3))

    assert cache.knows(text(1)) == BLOCK


# ── least frequently used ─────────────────────────────────────────────────────────────────


def test_lfu_keeps_the_text_with_more_uses():
    cache = Cache(Lfu, 3)
    cache.ask(text(1), text(1), text(2))

    cache.ask(*once(10, 9))

    assert (cache.knows(text(1)), cache.knows(text(2))) == (BLOCK, 0)


def test_lfu_remembers_uses_after_eviction():
    cache = Cache(Lfu, 3)
    cache.ask(text(1), times=3)
    cache.ask(*[one for one in once(10, 3) for _ in range(4)])
    assert cache.knows(text(1)) == 0

    cache.ask(text(1), times=2)
    cache.ask(*once(20, 5))

    assert cache.knows(text(1)) == BLOCK


@pytest.mark.parametrize("policy", [Lfu, lambda: Bonus(uses=2), HotPrefix])
def test_uses_that_overlap_count_each(policy):
    desk = Desk.paged(4, (BLOCK,), policy=policy)
    together = [desk.running([*text(1), i]) for i in (1, 2)]
    desk.commit()
    desk.release(*together)
    desk.release(desk.written(text(2)))
    desk.release(desk.written(text(3)))

    desk.tiers[0].pool.take(3)

    assert desk.cache.lookup(desk.waiting([*text(1), 0])).tokens == BLOCK


def test_samples_of_one_prompt_are_one_use():
    class Heard(Lru):
        hits = 0

        def hit(self, block):
            type(self).hits += 1

    desk = Desk.paged(8, (BLOCK,), policy=Heard)
    parent = desk.written(text(1, 2))
    desk.fork(parent)
    assert Heard.hits == 0

    desk.running([*text(1, 2), 5])

    assert Heard.hits == 2


# ── S3-FIFO and ARC ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("policy", [S3Fifo, Arc, Lfu, Bonus])
def test_what_was_used_again_survives_a_scan_that_lru_does_not(policy):
    caches = [Cache(kind, 10) for kind in (policy, Lru)]
    for cache in caches:
        cache.ask(text(1), text(2), times=4)
        cache.ask(*once(10, 12))

    assert [cache.knows(text(1)) for cache in caches] == [BLOCK, 0]


def test_s3fifo_puts_a_text_that_comes_back_early_into_the_main_queue():
    cache = Cache(lambda: S3Fifo(small_share=0.1), 6)
    cache.ask(text(1), *once(10, 6))
    assert cache.knows(text(1)) == 0

    cache.ask(text(1), *once(20, 12))

    assert cache.knows(text(1)) == BLOCK


def test_arc_gives_a_returning_text_to_those_used_again():
    cache = Cache(Arc, 6)
    cache.ask(text(1), *once(10, 6))
    assert cache.knows(text(1)) == 0

    cache.ask(text(1), *once(20, 4))

    assert cache.knows(text(1)) == BLOCK


# ── bonus, Gittins, cost ──────────────────────────────────────────────────────────────────


def test_bonus_keeps_a_conversation_longer_than_a_question_of_the_same_time():
    cache = Cache(lambda: Bonus(uses=0, turn=2), 14)
    talk = text(1, 2)
    cache.ask(talk, talk + text(2), talk + text(2) + text(3))
    cache.ask(text(9, 4))

    cache.ask(*once(10, 10))

    assert (cache.knows(talk), cache.knows(text(9))) == (2 * BLOCK, 0)


def test_bonus_without_weights_is_lru():
    draw = Random(3)
    plain = Cache(Lru, 12)
    same = Cache(lambda: Bonus(uses=0, turn=0, once=0, again=0), 12)
    for _ in range(300):
        one = text(draw.randrange(6), draw.randint(1, 4))
        assert plain.ask(one) == same.ask(one)


def test_bonus_gives_up_a_partial_block_first():
    bag, blocks = Bonus(), chain(1, 3)
    blocks[0].filled = BLOCK - 1
    for block in chain(2, 3):
        bag.add(block)
    for block in blocks:
        bag.add(block)

    assert bag.pop() is blocks[0]


def test_gittins_learns_which_texts_come_back():
    cache = Cache(lambda: Gittins(sample=1, learn_every=200), 24)
    number = 1000
    for turn in range(1500):
        number += 1
        # Two texts of one block each return after 20 others, those of two blocks never.
        cache.ask(text(turn % 10), text(number, 2))
    hits = sum(cache.ask(text(turn % 10), text(turn + 10_000, 2)) == 0 for turn in range(10))
    found = [cache.knows(text(one)) for one in range(10)]

    assert hits == 10
    assert sum(map(bool, found)) >= 8


def test_the_hazard_tells_classes_apart():
    hazard = Hazard(sample=1, prior=1.0)
    hazard.add_class(0)
    hazard.add_class(0)
    for now in range(0, 100_000, 200):
        hazard.note([b"returns"], 0, now)
        hazard.note([now.to_bytes(4, "big")], 1, now + 1)
        hazard.pass_time(now, 10_000)

    returning, others = hazard.table(100_000)

    assert returning[0] > 20 * others[0]


def test_cost_keeps_the_text_that_took_more_to_compute():
    kept = []
    for equal_tokens in (1e9, 1.0):
        cache = Cache(lambda tokens=equal_tokens: Cost(equal_tokens=tokens), 20)
        cache.ask(text(1, 8), text(2, 2))
        cache.ask(*once(10, 18))
        kept.append(cache.knows(text(1, 8)))

    assert kept == [0, 8 * BLOCK]


# ── HotPrefix ─────────────────────────────────────────────────────────────────────────────


def test_hotprefix_lets_go_of_leaves_only():
    draw = Random(5)
    cache = Cache(HotPrefix, 16)
    texts = [[draw.randrange(2) for _ in range(4 * BLOCK)] for _ in range(40)]
    for one in texts * 3:
        cache.ask(one)
        keyed = {block.key: block for block in cache.desk.tiers[0].keyed()}
        orphans = [block for block in keyed.values() if block.depth and block.parent not in keyed]
        assert not orphans, "a suffix outlived its prefix"


def test_hotprefix_forgets_an_old_favourite_by_its_clock():
    cache = Cache(lambda: HotPrefix(max_age=8, decay_requests=1), 4)
    cache.ask(text(1), times=3)
    cache.ask(*once(10, 40))

    cache.ask(*[one for one in once(100, 3) for _ in range(4)])

    assert cache.knows(text(1)) == 0


def test_hotprefix_gives_up_what_was_not_admitted_first():
    cache = Cache(lambda: HotPrefix(admit_uses=2, hotness="plain"), 4)
    cache.ask(text(1), text(1), *once(10, 3))

    cache.ask(*once(20, 10))

    assert cache.knows(text(1)) == BLOCK


def zipf(draw, prefixes):
    weights = [1 / rank for rank in range(1, prefixes + 1)]
    return draw.choices(range(prefixes), weights)[0]


def hit_share(policy):
    """Zipf-distributed prefixes of three blocks, each with a suffix of three that is new."""
    draw, cache, hits = Random(7), Cache(policy, 40), 0
    for number in range(1500):
        hits += cache.ask(text(zipf(draw, 40), 3) + text(1000 + number, 3)) / (3 * BLOCK)
    return hits / 1500


def test_hotprefix_finds_more_of_zipf_prefixes_with_new_suffixes_than_lru():
    assert hit_share(HotPrefix) > 1.17 * hit_share(Lru)


# ── what they are made of ─────────────────────────────────────────────────────────────────


def test_use_counts_outlive_others_up_to_their_bound():
    counts = UseCounts(bound=8)
    counts.use(b"old")
    for number in range(100):
        assert counts.use(b"favourite") == number + 1
        counts.use(bytes([number]))

    assert len(counts) <= 8
    assert counts.of(b"favourite") == 100
    assert counts.of(b"old") == 0


def test_use_counts_remember_more_for_a_larger_cache():
    counts = UseCounts(4.0, bound=8)
    counts.fit(100)
    counts.use_all([bytes([number]) for number in range(200)])

    assert counts.of(bytes([0])) == 1


def test_recent_values_are_bounded():
    recent = Recent(6)
    for number in range(50):
        recent.put(bytes([number]), number)

    assert len(recent) <= 6
    assert (recent.get(bytes([49])), recent.get(bytes([0]))) == (49, None)


@pytest.mark.parametrize("seed", range(20))
def test_a_ranked_bag_gives_the_smallest_rank_and_of_equals_the_first(seed):
    draw, bag, inside = Random(seed), RankedBag(), {}
    blocks = [Block(number) for number in range(30)]
    for serial in range(800):
        outside = [block for block in blocks if block not in inside]
        if outside and draw.random() < 0.5:
            block, rank = draw.choice(outside), draw.randrange(4)
            bag.add(block, rank)
            inside[block] = (rank, serial)
        elif inside and draw.random() < 0.6:
            block = draw.choice(list(inside))
            bag.remove(block)
            del inside[block]
        elif inside:
            truth = min(inside, key=inside.__getitem__)
            assert bag.pop() is truth
            del inside[truth]
        assert len(bag) == len(inside)


def chain(number, count):
    """Blocks of one text, tail first, each with its predecessor's key."""
    blocks = [Block(1000 * number + depth) for depth in reversed(range(count))]
    for block in blocks:
        block.depth = block.id % 1000
        block.key = b"%d-%d" % (number, block.depth)
        block.parent = b"%d-%d" % (number, block.depth - 1) if block.depth else b""
        block.filled = BLOCK
    return blocks
