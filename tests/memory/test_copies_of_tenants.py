"""Copies of parts of blocks: on whose account they are, how long they and their sources stay."""

from __future__ import annotations

from octavo.contract.retention import Retention, TenantShare
from octavo.testing.desk import Desk

BLOCK = 4
TEXT = list(range(100, 108))
"""Two blocks."""


def knows(desk, tokens):
    """How many tokens of a text are cached; changes nothing."""
    return desk.cache.lookup(desk.waiting([*tokens, 0])).tokens


def press(desk, blocks):
    """Let other texts come and go until so many blocks have been taken."""
    for number in range(blocks):
        desk.release(desk.written([50 + number] * BLOCK))


def test_a_copy_is_on_the_account_of_the_tenant_that_copies():
    desk = Desk.paged(10, tenants=[TenantShare("a"), TenantShare("b")])
    desk.release(desk.written(TEXT, tenant="a"))

    desk.release(desk.written([*TEXT[:6], 1, 2], tenant="b"))

    assert desk.cache.usage().tenant_blocks == (("default", 0), ("a", 1), ("b", 2))
    desk.cache.check()


def test_a_tenant_at_its_maximum_copies_into_blocks_of_its_own():
    desk = Desk.paged(12, tenants=[TenantShare("a"), TenantShare("b", 0.0, 0.25)])
    desk.release(desk.written(TEXT, tenant="a"))
    for number in (1, 2, 3):
        desk.release(desk.written([number] * BLOCK, tenant="b"))

    desk.release(desk.written([*TEXT[:6], 1, 2], tenant="b"))

    assert desk.cache.usage().tenant_blocks == (("default", 0), ("a", 1), ("b", 3))
    assert knows(desk, TEXT) == 2 * BLOCK
    desk.cache.check()


def test_a_block_that_was_begun_comes_back_to_its_tenant_for_anothers_that_is_full():
    desk = Desk.paged(10, tenants=[TenantShare("a", 0.5), TenantShare("b", 0.2)])
    slow = desk.waiting([*TEXT, 1], tenant="b")
    assert desk.admit(slow, upto=5)
    desk.release(desk.written(TEXT, tenant="a"))

    assert desk.cache.adopt(slow) == 3

    assert desk.cache.usage().tenant_blocks == (("default", 0), ("a", 0), ("b", 2))
    desk.cache.check()


def test_a_copy_is_kept_as_the_request_wants_that_copies():
    desk = Desk.paged(5)
    desk.release(desk.written(TEXT[:4], retention=(Retention(priority=0),)))
    desk.release(desk.written([*TEXT[:3], 1], retention=(Retention(priority=90),)))

    press(desk, 10)

    assert (knows(desk, TEXT[:4]), knows(desk, [*TEXT[:3], 1])) == (3, 4)


def test_copying_a_part_of_a_text_begins_its_time_anew():
    desk = Desk.paged(5)
    desk.release(desk.written(TEXT[:4], retention=(Retention(priority=90, ttl_s=10),)))
    desk.cache.pass_time(9)
    desk.release(desk.written([*TEXT[:3], 1]))

    desk.cache.pass_time(18)
    press(desk, 10)

    assert knows(desk, TEXT[:4]) == 4


def test_a_pinned_source_stays_pinned():
    desk = Desk.paged(6, pin_limit=0.25)
    desk.release(desk.written(TEXT[:4], retention=(Retention(pin="rules"),)))

    desk.release(desk.written([*TEXT[:3], 1]))
    press(desk, 10)

    assert desk.cache.usage().blocks_pinned == 1
    assert knows(desk, TEXT[:4]) == 4
