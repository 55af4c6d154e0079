"""Why a prompt was not found further: as a value, and never with news of another namespace."""

from __future__ import annotations

import pytest

from octavo.contract.misses import Miss, MissReason
from octavo.contract.retention import Retention, TenantShare
from octavo.memory.block import Block
from octavo.memory.departures import Departures
from octavo.memory.policies.lfu import Lfu
from octavo.testing.desk import Desk
from octavo.testing.driver import make_regions

TEXT = list(range(100, 112))
"""Three blocks of four."""


@pytest.fixture
def desk():
    return Desk.paged(24)


def why(desk, prompt, **options):
    seq = desk.waiting(prompt, **options)
    return desk.cache.explain(seq, desk.cache.lookup(seq))


def test_a_text_that_nobody_has_begun_is_seen_first(desk):
    assert why(desk, TEXT) == Miss(reason=MissReason.FIRST_SEEN, position=0, tokens=11)


def test_a_text_that_goes_on_after_a_known_one_is_seen_first_from_there(desk):
    desk.release(desk.written(TEXT[:8]))

    assert why(desk, [*TEXT, 1]) == Miss(reason=MissReason.FIRST_SEEN, position=8, tokens=4)


def test_nothing_is_missing_of_a_prompt_that_was_found(desk):
    desk.release(desk.written(TEXT))

    assert why(desk, TEXT) is None


@pytest.mark.parametrize("position", [4, 5, 7])
def test_a_text_that_leaves_another_says_at_which_token(desk, position):
    desk.release(desk.written(TEXT))

    miss = why(desk, [*TEXT[:position], 1, 2, 3, 4, 5, 6])

    assert miss == Miss(reason=MissReason.DIVERGED, position=position, tokens=5)


def test_a_text_that_goes_on_after_a_kept_end_has_left_no_other(desk):
    desk.release(desk.written(TEXT[:6]))

    miss = why(desk, TEXT)
    assert miss == Miss(reason=MissReason.FIRST_SEEN, position=6, tokens=5)
    assert why(desk, TEXT[:8]) == Miss(reason=MissReason.TOO_SHORT, position=6, tokens=1)
    assert why(desk, [*TEXT[:5], 1, 2, 3, 4]).reason == "diverged"


def test_what_does_not_fill_a_block_is_too_short(desk):
    desk.release(desk.written(TEXT[:4]))

    assert why(desk, TEXT[:7]) == Miss(reason=MissReason.TOO_SHORT, position=4, tokens=2)
    assert why(desk, [7, 7]).reason == "too_short"


def test_without_partial_blocks_the_rest_of_a_block_is_too_short():
    desk = Desk.paged(24, partial_blocks=False)
    desk.release(desk.written(TEXT))

    assert why(desk, TEXT) == Miss(reason=MissReason.TOO_SHORT, position=8, tokens=3)


def test_an_evicted_block_that_could_not_have_been_used_whole_is_too_short():
    desk = Desk.paged(24, partial_blocks=False)
    desk.release(desk.written(TEXT))
    pool = desk.tiers[0].pool
    pool.take(pool.available - 2)  # all but the first two blocks

    assert why(desk, TEXT) == Miss(reason=MissReason.TOO_SHORT, position=8, tokens=3)
    assert why(desk, [*TEXT, 1]).reason == "evicted"


def test_an_evicted_text_tells_by_what_and_how_long_ago(desk):
    desk.cache.pass_time(10.0)
    desk.release(desk.written(TEXT))
    pool = desk.tiers[0].pool
    pool.take(pool.available - 1)  # all but the first block
    desk.cache.pass_time(17.5)

    assert why(desk, [*TEXT, 1]) == Miss(
        reason=MissReason.EVICTED, position=4, tokens=8, policy="lru", age_s=7.5, evicted_since=2
    )


def test_a_text_that_outlived_its_time_says_so_once_it_is_gone():
    desk = Desk.paged(4)
    desk.release(desk.written(TEXT[:4], retention=(Retention(priority=90, ttl_s=10),)))
    desk.release(desk.written([1] * 4))
    desk.cache.pass_time(11.0)
    assert why(desk, [*TEXT[:4], 1]) is None
    desk.running([2] * 11)
    desk.cache.pass_time(14.0)

    assert why(desk, [*TEXT[:4], 1]) == Miss(
        reason=MissReason.EXPIRED, position=0, tokens=4, age_s=3.0, evicted_since=1
    )


def test_a_text_that_its_tenants_maximum_drove_out_tells_the_policy_inside():
    desk = Desk.paged(20, tenants=[TenantShare("a", 0.0, 0.1)], policy=Lfu)
    desk.release(desk.written(TEXT[:4], tenant="a"))
    for number in (1, 2):
        desk.release(desk.written([number] * 4, tenant="a"))

    miss = why(desk, [*TEXT[:4], 1])

    assert (miss.reason, miss.policy) == ("evicted", "lfu")


def test_a_part_that_another_text_lends_does_not_hide_the_eviction():
    desk = Desk.paged(5)
    desk.release(desk.written(TEXT[:8]))
    desk.release(desk.written([*TEXT[:6], 1, 2]))
    pool = desk.tiers[0].pool
    pool.take(pool.available - 2)

    miss = why(desk, [*TEXT[:8], 3])

    assert (miss.reason, miss.position, miss.tokens) == ("evicted", 6, 2)


def test_a_text_that_came_back_is_no_longer_gone(desk):
    desk.release(desk.written(TEXT))
    desk.cache.clear()
    desk.release(desk.written(TEXT))

    assert why(desk, TEXT) is None
    assert why(desk, [*TEXT[:8], 1, 2, 3, 4]).reason == "diverged"


def test_a_cleared_cache_says_so(desk):
    desk.cache.pass_time(1.0)
    desk.release(desk.written(TEXT))
    desk.cache.clear()
    desk.cache.pass_time(4.0)

    miss = why(desk, TEXT)

    assert (miss.reason, miss.position, miss.age_s, miss.policy) == ("cleared", 0, 3.0, None)


def test_a_failed_step_says_so(desk):
    seq = desk.running(TEXT)
    desk.fail(seq)
    desk.release(seq)

    assert why(desk, TEXT).reason == "failed"


def test_a_load_that_takes_too_long_is_why_the_prompt_is_computed():
    desk = Desk.paged(4, host_blocks=8)
    desk.release(desk.written(TEXT[:8]))
    desk.arrive()
    desk.tiers[0].clear()
    slow = desk.waiting([*TEXT[:8], 1])
    assert desk.admit(slow)
    desk.cache.give_up(slow)
    desk.release(slow)

    assert why(desk, [*TEXT[:8], 2]).reason == "not_loaded"


def test_what_a_slower_tier_could_only_have_brought_in_part_is_not_waited_for():
    desk = Desk.paged(4, host_blocks=8)
    desk.release(desk.written(TEXT[:8]))
    desk.arrive()
    desk.tiers[0].clear()

    miss = why(desk, TEXT[:8])

    assert (miss.reason, miss.position, miss.tokens) == ("cleared", 4, 3)


def test_one_group_that_has_lost_its_block_is_why():
    desk = Desk.paged(9, (4, 8))
    desk.release(desk.written(range(16)))

    desk.tiers[0].pool.take(5)  # three were free, then the tail of the first group goes

    miss = why(desk, range(17))
    assert (miss.reason, miss.tokens) == ("evicted", 16 - miss.position)


# ── namespaces ────────────────────────────────────────────────────────────────────────────


def test_the_operator_learns_in_which_field_namespaces_differ(desk):
    desk.release(desk.written(TEXT, salt="one tenant"))

    miss = why(desk, TEXT, salt="another")

    assert (miss.elsewhere, miss.label) == (("salt",), "namespace_salt")


def test_what_all_texts_of_a_namespace_begin_with_hides_no_other_namespace(desk):
    desk.release(desk.written(TEXT, salt="one tenant"))
    desk.release(desk.written([*TEXT[:2], 1, 2], salt="another"))

    miss = why(desk, TEXT, salt="another")

    assert (miss.reason, miss.position, miss.label) == ("diverged", 2, "namespace_salt")
    assert miss.for_caller().label == "diverged"


def test_a_text_that_differs_from_its_first_token_on_has_left_no_other(desk):
    desk.release(desk.written(TEXT))

    assert why(desk, [1, 2, 3, 4, 5]).reason == "first_seen"


def test_the_caller_does_not(desk):
    alone = why(desk, TEXT, salt="another").for_caller()
    desk.release(desk.written(TEXT, salt="one tenant"))

    assert why(desk, TEXT, salt="another").for_caller() == alone


def test_a_caller_learns_all_of_its_own_namespace(desk):
    desk.release(desk.written(TEXT))
    desk.cache.clear()
    miss = why(desk, TEXT)

    assert miss.for_caller() is miss


def test_a_tenant_learns_of_its_own_eviction_whatever_others_have(desk):
    desk.release(desk.written(TEXT, salt="one tenant"))
    desk.cache.clear()
    desk.release(desk.written(TEXT, salt="another"))

    assert why(desk, TEXT, salt="one tenant").reason == "cleared"


def how_many_were_evicted(desk, **others):
    """What a caller is told after its text has made room for somebody's."""
    desk.release(desk.written(TEXT[:4]))
    desk.release(desk.written([1] * 4, **others))
    desk.running([2] * 11)
    miss = why(desk, [*TEXT[:4], 1])
    assert miss.reason == "evicted"
    return miss.for_caller().evicted_since


def test_a_caller_alone_is_told_how_many_blocks_were_evicted_since():
    assert how_many_were_evicted(Desk.paged(4)) == 1


def test_a_caller_cannot_measure_what_other_salts_and_tenants_evict():
    tenants = [TenantShare("a")]

    assert how_many_were_evicted(Desk.paged(4), salt="another") is None
    assert how_many_were_evicted(Desk.paged(4, tenants=tenants)) is None
    assert how_many_were_evicted(Desk.paged(4, tenants=tenants), tenant="a") is None


def test_explaining_changes_nothing(desk):
    desk.release(desk.written(TEXT, salt="one tenant"))
    before = desk.snapshot()

    first, second = (why(desk, TEXT, salt="another") for _ in range(2))

    assert first == second
    assert desk.snapshot() == before


def test_contiguous_regions_look_for_nothing():
    desk = Desk(make_regions("max", 8))

    assert why(desk, TEXT) is None


# ── what is remembered ────────────────────────────────────────────────────────────────────


def gone(number, group=0):
    block = Block(number)
    block.key, block.group = number.to_bytes(16, "little"), group
    return block


def test_departures_remember_at_least_their_bound_and_no_more_than_twice_that():
    departures = Departures(1, 100, "lru")
    for number in range(1000):
        departures.advance(float(number), number)
        departures.evict_all([gone(number)])
        assert len(departures) <= 200
        recent = range(max(0, number - 99), number + 1)
        assert all(departures.get(0, gone(one).key) is not None for one in recent)


def test_departures_know_the_last_reason_and_time_of_a_text():
    departures = Departures(2, 100, "lru")
    departures.advance(1.0, 0)
    departures.evict_all([gone(1)])
    departures.advance(2.0, 5)
    departures.note(gone(1), MissReason.CLEARED)

    assert departures.get(0, gone(1).key) == (MissReason.CLEARED, 2.0, 5)
    assert departures.get(1, gone(1).key) is None
