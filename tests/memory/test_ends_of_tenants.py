"""Kept ends of texts: whose they are, how long they stay, and who may take them over."""

from __future__ import annotations

from octavo.contract.retention import Retention, TenantShare
from octavo.testing.desk import Desk

TEXT = list(range(100, 106))
"""A block and a half."""


def desk_of(blocks):
    return Desk.paged(blocks, tenants=[TenantShare("a"), TenantShare("b")])


def blocks_of(desk, tenant):
    return dict(desk.cache.usage().tenant_blocks)[tenant]


def test_an_end_stays_on_the_account_of_its_tenant():
    desk = desk_of(10)

    desk.release(desk.written(TEXT, tenant="a"))

    assert blocks_of(desk, "a") == 2
    desk.cache.check()


def test_a_text_of_the_same_tenant_takes_an_end_over():
    desk = desk_of(10)
    desk.release(desk.written(TEXT, tenant="a"))

    desk.running([*TEXT, 1], tenant="a")

    assert desk.cache.take_copies() == ()
    assert blocks_of(desk, "a") == 2
    desk.cache.check()


def test_another_tenants_end_is_copied_and_stays_his():
    desk = desk_of(10)
    desk.release(desk.written(TEXT, tenant="a"))

    desk.running([*TEXT, 1], tenant="b")

    assert len(desk.cache.take_copies()) == 1
    assert (blocks_of(desk, "a"), blocks_of(desk, "b")) == (1, 2)  # the whole block is b's now
    assert desk.cache.lookup(desk.waiting([*TEXT, 2])).tokens == 6
    desk.cache.check()


def test_an_end_is_kept_as_its_last_token_and_then_only_copied():
    desk = Desk.paged(5)
    desk.release(desk.written(TEXT, retention=(Retention(priority=90),)))
    desk.release(desk.running([*TEXT, 1]))
    assert len(desk.cache.take_copies()) == 1
    desk.commit()

    for number in range(10):
        desk.release(desk.written([number] * 4))

    assert desk.cache.lookup(desk.waiting([*TEXT, 2])).tokens == 6


def test_an_end_that_stays_within_a_guarantee_is_no_relief_for_others():
    desk = Desk.paged(8, tenants=[TenantShare("a", 0.5), TenantShare("b")])
    desk.written([*range(11)])
    victim = desk.written(TEXT, tenant="a")
    seq = desk.waiting([*range(50, 65)], tenant="b")
    hit = desk.cache.lookup(seq)
    before = desk.cache.shortage(seq, hit)

    (relief,) = desk.cache.relief(seq, hit, [victim])
    desk.release(victim)

    assert relief == before - desk.cache.shortage(seq, desk.cache.lookup(seq)) == 0
    assert before == 1
