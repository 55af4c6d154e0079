"""The contiguous baselines: their waste is real and adds up."""

from __future__ import annotations

from random import Random

import pytest

from octavo.errors import Corrupted
from octavo.memory.regions import RegionCache
from octavo.memory.reservation import RESERVATIONS
from octavo.testing.desk import Desk

RULES = [name for name, rule in RESERVATIONS.items() if rule.tokens is not None]


def regions(rule, num_blocks, *, block_size=4, longest=64):
    cache = RegionCache(RESERVATIONS[rule], num_blocks, block_size=block_size, longest=longest)
    return Desk(cache)


def admitted(desk, lengths):
    """Admit as many requests with these (prompt, output) lengths as fit; return them."""
    seqs = [desk.waiting([1] * prompt, output=64, expected=output) for prompt, output in lengths]
    return [seq for seq in seqs if desk.admit(seq)]


def external(usage):
    """Slots that no region uses or may use."""
    return usage.slots - usage.tokens - usage.reserved - usage.internal


@pytest.mark.parametrize("rule", RULES)
def test_the_shares_of_waste_add_up_to_the_pool(rule):
    draw = Random(1)
    desk = regions(rule, 100)
    lengths = [(draw.randint(1, 30), draw.randint(1, 30)) for _ in range(40)]
    alive = admitted(desk, lengths)
    for _ in range(30):
        for seq in list(alive):
            if seq.length < seq.limit and draw.random() < 0.9:
                desk.extend(seq, 1)
            else:
                desk.release(seq)
                alive.remove(seq)
        usage = desk.cache.usage()
        desk.cache.check()

        inside = usage.tokens + usage.reserved + usage.internal
        assert min(usage.tokens, usage.reserved, usage.internal) >= 0
        assert inside <= usage.allocated <= usage.slots
        assert external(usage) == usage.slots - usage.allocated + (usage.allocated - inside)


@pytest.mark.parametrize(
    ("rule", "allocated", "tokens", "reserved", "internal"),
    [
        ("max", 64, 10, 5, 49),
        ("static", 64, 10, 5, 49),
        ("pow2", 32, 10, 5, 3),  # 10 + 8 slots asked for, five blocks, rounded to eight
        ("oracle", 16, 10, 5, 0),
    ],
)
def test_each_rule_reserves_what_the_paper_says(rule, allocated, tokens, reserved, internal):
    desk = regions(rule, 64)
    admitted(desk, [(10, 5)])

    usage = desk.cache.usage()

    assert (usage.allocated, usage.tokens) == (allocated, tokens)
    assert (usage.reserved, usage.internal) == (reserved, internal)


def test_max_admits_seven_requests_at_the_setting_of_the_paper():
    desk = regions("max", 15_728, block_size=1, longest=2048)

    assert len(admitted(desk, [(100, 100)] * 20)) == 7


@pytest.mark.parametrize("rule", RULES)
def test_on_demand_holds_more_requests_than_any_region(rule):
    lengths = [(20, 10)] * 40
    paged = Desk.paged(100)

    on_demand = [s for i in range(40) if paged.admit(s := paged.waiting([i] * 20))]

    assert len(admitted(regions(rule, 100), lengths)) < len(on_demand)


@pytest.mark.parametrize("rule", RULES)
def test_a_refused_admission_changes_nothing(rule):
    desk = regions(rule, 16)
    while admitted(desk, [(30, 30)]):
        pass
    before = desk.snapshot()

    assert admitted(desk, [(30, 30)]) == []

    assert desk.snapshot() == before


@pytest.mark.parametrize("rule", RULES)
def test_a_released_region_can_be_had_again(rule):
    desk = regions(rule, 16)
    (seq,) = admitted(desk, [(30, 30)])

    desk.release(seq)
    desk.release(seq)

    assert desk.cache.usage().blocks_used == 0
    assert len(admitted(desk, [(30, 30)])) == 1


@pytest.mark.parametrize("rule", RULES)
def test_a_region_is_a_run_of_consecutive_blocks_sent_once(rule):
    desk = regions(rule, 64)
    seq = admitted(desk, [(10, 5)])[-1]

    kept, (blocks,) = desk.cache.growth(seq)

    assert kept == (0,)
    assert list(blocks) == list(range(blocks[0], blocks[0] + len(blocks)))
    assert desk.cache.growth(seq) == ((len(blocks),), ((),))


@pytest.mark.parametrize(
    ("rule", "limit"), [("max", 64), ("static", 64), ("pow2", 18), ("oracle", 15)]
)
def test_a_request_ends_where_its_region_ends(rule, limit):
    desk = regions(rule, 64)

    assert desk.cache.limit(10, 5, 1000) == limit


@pytest.mark.parametrize("rule", RULES)
def test_no_region_is_longer_than_the_largest_run_of_the_pool(rule):
    assert regions(rule, 12, longest=10_000).cache.longest == 32


def test_static_forms_one_batch_and_admits_nobody_until_it_has_ended():
    desk = regions("static", 64)
    cache = desk.cache
    assert cache.quota(10, 0) == 4
    batch = admitted(desk, [(10, 5)] * 4)

    assert cache.quota(6, 4) == 0
    desk.release(*batch[1:])
    assert cache.quota(6, 1) == 0
    desk.release(batch[0])
    assert cache.quota(6, 0) == 4


def test_a_static_batch_is_no_larger_than_the_queue():
    cache = regions("static", 64).cache
    assert cache.quota(2, 0) == 2


@pytest.mark.parametrize("rule", ["max", "pow2", "oracle"])
def test_the_other_rules_admit_at_any_time(rule):
    assert regions(rule, 64).cache.quota(10, 3) == 10


@pytest.mark.parametrize("rule", RULES)
def test_nothing_is_found_and_nothing_is_shared(rule):
    desk = regions(rule, 64)
    first = admitted(desk, [(10, 5)])[0]
    desk.commit()
    desk.release(first)

    assert desk.cache.lookup(desk.waiting([1] * 10)).tokens == 0
    assert not desk.cache.shares


@pytest.mark.parametrize("rule", RULES)
def test_a_region_cannot_be_forked(rule):
    desk = regions(rule, 64)
    (seq,) = admitted(desk, [(10, 5)])

    with pytest.raises(Corrupted, match="cannot be forked"):
        desk.fork(seq)


@pytest.mark.parametrize("rule", RULES)
def test_writing_behind_the_region_is_our_bug(rule):
    desk = regions(rule, 64)
    (seq,) = admitted(desk, [(10, 5)])

    with pytest.raises(AssertionError, match="lies behind a region"):
        desk.cache.extend(seq, 65, desk.step)
