"""Beginning again without the blocks about which something is wrong."""

from __future__ import annotations

from random import Random

import pytest

from octavo.contract.misses import MissReason
from octavo.contract.retention import Retention, TenantShare
from octavo.errors import Corrupted, RequestError
from octavo.testing.damage import DAMAGES
from octavo.testing.desk import Desk

TEXT = range(1, 13)


def desk(blocks=10, **options):
    return Desk.paged(blocks, **options)


def broken(one, kind="a holder is made up"):
    """Do one kind of damage, and see that it is found."""
    assert DAMAGES[kind](one.tiers[0], Random(1))
    with pytest.raises(Corrupted):
        one.cache.check()
    return one.cache.quarantine()


def test_a_suspect_block_is_given_out_no_more_and_all_others_are():
    one = desk()

    assert broken(one) == 1
    seq = one.running(range(1, 36))
    assert len(set(one.blocks(seq))) == 9
    assert set(one.blocks(seq)).isdisjoint(one.tiers[0].pool.quarantined)
    one.cache.check()


def test_a_wrong_sum_costs_no_block():
    one = desk()

    assert broken(one, "held is wrong") == 0
    assert one.tiers[0].pool.available == 10


def test_nothing_of_what_was_known_is_trusted():
    one = desk()
    one.release(one.written(TEXT))
    broken(one, "logical is wrong")

    assert one.cache.usage().blocks_cached == 0
    again = one.waiting(TEXT)
    hit = one.cache.lookup(again)
    assert hit.tokens == 0
    assert one.cache.explain(again, hit).reason is MissReason.CLEARED


def test_what_was_quarantined_stays_so():
    one = desk()
    broken(one)
    first = set(one.tiers[0].pool.quarantined)

    assert broken(one) == 2
    assert first < one.tiers[0].pool.quarantined


def test_a_pool_of_which_half_is_suspect_is_given_up():
    one = desk(4)
    broken(one)
    broken(one)

    with pytest.raises(Corrupted, match="something is wrong with 3 of 4 blocks"):
        broken(one)


def test_a_text_is_limited_to_what_is_left():
    one = desk(4)
    assert one.waiting([1, 2, 3]).limit == 10_003
    broken(one)

    assert one.waiting([1, 2, 3]).limit == 12
    with pytest.raises(RequestError, match="does not fit"):
        one.waiting(range(1, 13))


def test_shares_are_counted_anew():
    one = desk(20, tenants=[TenantShare("a", 0.5, 0.8)])
    one.release(one.written(TEXT, tenant="a"))
    broken(one, "an account is wrong")

    seq = one.running(range(1, 60), tenant="a")
    assert dict(one.cache.usage().tenant_blocks) == {"default": 0, "a": 15}
    one.release(seq)
    one.cache.check()


def test_a_pin_outlives_it_and_holds_its_text_once_that_is_computed_again():
    one = desk(20, pin_limit=0.5)
    one.release(one.written(TEXT, retention=(Retention(pin="rules"),)))
    assert one.cache.usage().blocks_pinned == 3
    broken(one, "filled is wrong")
    assert one.cache.usage().blocks_pinned == 0

    one.release(one.written(TEXT))
    assert one.cache.usage().blocks_pinned == 3


def test_pins_that_are_wrong_themselves_are_forgotten():
    one = desk(20, pin_limit=0.5)
    one.release(one.written(TEXT, retention=(Retention(pin="rules"),)))
    broken(one, "pins are wrong")

    one.release(one.written(TEXT))
    assert one.cache.usage().blocks_pinned == 0
    assert one.cache.unpin(None, None) == 0
