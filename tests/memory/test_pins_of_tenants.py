"""Pins of texts that somebody else wrote, that are cached already, or that are taken back."""

from __future__ import annotations

import pytest

from octavo.contract.retention import PinFacts, Retention, TenantShare
from octavo.errors import RequestError
from octavo.testing.desk import Desk

BLOCK = 4
RULES = [1] * (3 * BLOCK)
PIN = (Retention(end=3 * BLOCK, pin="rules"),)


def desk_of(blocks, *shares, pin_limit=0.4):
    tenants = [TenantShare(*share) for share in shares]
    return Desk.paged(blocks, tenants=tenants, pin_limit=pin_limit, partial_blocks=False)


def serve(desk, tokens, **options):
    """Serve one request over a text; its question takes a block of its own."""
    desk.release(desk.written([*tokens, 0], **options))


def press(desk, tenant="default", count=60):
    """Let other texts come and go."""
    for number in range(count):
        serve(desk, [1000 + number] * BLOCK, tenant=tenant)
        desk.cache.check()


def known(desk):
    """Tokens of the rules that are cached; changes nothing."""
    return desk.cache.lookup(desk.waiting([*RULES, 0])).tokens


def blocks_of(desk, tenant):
    return dict(desk.cache.usage().tenant_blocks)[tenant]


# ── whoever wrote the text ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("others", [0, 1])
def test_a_pin_holds_where_a_tenant_that_may_pin_no_more_wrote_the_text_first(others):
    desk = desk_of(20, ("a", 0.0, 0.5))
    serve(desk, [2] * (4 * BLOCK), tenant="a", retention=(Retention(pin="own"),))
    owner = desk.written([*RULES, 0], tenant="a")
    if not others:
        desk.release(owner)

    serve(desk, RULES, retention=PIN)
    desk.release(owner)
    press(desk)

    assert known(desk) == 3 * BLOCK


def test_what_is_pinned_is_on_the_account_of_who_pins_it():
    desk = desk_of(20, ("a", 0.0, 0.5), ("b",))
    serve(desk, RULES, tenant="a")

    serve(desk, RULES, tenant="b", retention=PIN)

    assert (blocks_of(desk, "a"), blocks_of(desk, "b")) == (0, 3)
    desk.cache.check()


def test_what_others_pin_takes_no_room_from_who_wrote_it():
    desk = desk_of(20, ("a", 0.0, 0.5), pin_limit=0.5)
    texts = [[number] * (4 * BLOCK) for number in (3, 4)]
    for text in texts:
        serve(desk, text, tenant="a")

    for text in texts:
        serve(desk, text, retention=(Retention(pin="rules"),))
    own = desk.waiting(range(100, 100 + 4 * BLOCK), tenant="a")

    assert desk.cache.usage().blocks_pinned == 8
    assert desk.cache.shortage(own, desk.cache.lookup(own)) == 0


def test_once_one_of_two_tenants_lets_go_the_others_pin_holds():
    desk = desk_of(20, ("a", 0.0, 0.5), ("b",))
    serve(desk, RULES, tenant="a", retention=PIN)
    serve(desk, RULES, tenant="b", retention=PIN)

    desk.cache.unpin("a", None)
    serve(desk, [2] * (4 * BLOCK), tenant="a", retention=(Retention(pin="own"),))
    press(desk)

    assert known(desk) == 3 * BLOCK
    assert (blocks_of(desk, "a"), blocks_of(desk, "b")) == (4, 3)


def test_a_tenant_that_comes_above_its_maximum_by_a_pin_gives_up_what_it_has_cached():
    desk = desk_of(20, ("a", 0.0, 0.5))
    serve(desk, RULES)
    for number in range(9):
        serve(desk, [100 + number] * BLOCK, tenant="a")
    assert blocks_of(desk, "a") == 9

    desk.waiting([*RULES, 0], tenant="a", retention=PIN)

    assert blocks_of(desk, "a") == 10
    desk.cache.check()
    press(desk, "a")
    assert known(desk) == 3 * BLOCK


def test_a_tenant_that_uses_all_of_its_maximum_gives_back_first_what_its_requests_leave():
    desk = desk_of(20, ("a", 0.0, 0.5))
    serve(desk, RULES)
    busy = [desk.running(range(n, n + 5 * BLOCK - 1), tenant="a") for n in (100, 200)]
    desk.commit()

    desk.waiting([*RULES, 0], tenant="a", retention=PIN)

    desk.cache.check()
    assert blocks_of(desk, "a") == 13
    desk.release(*busy)
    desk.cache.check()
    assert blocks_of(desk, "a") <= 10
    assert known(desk) == 3 * BLOCK


def test_above_its_maximum_a_text_goes_on_in_the_blocks_that_it_has():
    desk = desk_of(20, ("a", 0.0, 0.5))
    serve(desk, RULES)
    parent = desk.running(range(100, 100 + 5 * BLOCK - 2), tenant="a")
    child = desk.fork(parent)
    desk.running(range(200, 200 + 5 * BLOCK - 1), tenant="a")
    desk.commit()
    desk.waiting([*RULES, 0], tenant="a", retention=PIN)

    assert not desk.extend(child, 7)
    desk.cache.release(child, 0)

    assert desk.extend(parent, 7)
    assert not desk.extend(parent, 8, 9)
    desk.cache.check()


# ── from when it is accepted ──────────────────────────────────────────────────────────────


def test_a_cached_text_is_kept_from_when_a_request_that_pins_it_is_accepted():
    desk = desk_of(10)
    serve(desk, RULES)

    desk.waiting([*RULES, 0], retention=PIN)
    press(desk)

    assert known(desk) == 3 * BLOCK


def test_a_pin_takes_room_even_if_that_was_promised():
    desk = desk_of(10)
    serve(desk, RULES)
    seq = desk.waiting(range(100, 100 + 10 * BLOCK - 17))
    assert desk.admit(seq, BLOCK)
    other = desk.waiting(range(200, 200 + 4 * BLOCK - 1))
    assert desk.admit(other, BLOCK)

    desk.waiting([*RULES, 0], retention=PIN)

    desk.cache.check()
    assert known(desk) == 3 * BLOCK
    desk.release(other)
    assert desk.extend(seq)


# ── taken back ────────────────────────────────────────────────────────────────────────────


def test_a_request_that_is_taken_back_leaves_no_pin():
    desk = desk_of(10)
    seq = desk.waiting(RULES, retention=PIN)

    desk.cache.withdraw(seq.request)
    desk.cache.part(seq.request)

    assert desk.cache.unpin(None, None) == 0
    desk.cache.check()


def test_a_pin_is_as_it_was_once_a_request_that_named_it_too_is_taken_back():
    desk = desk_of(20)
    more = [*RULES, *[7] * BLOCK]
    serve(desk, RULES, retention=(Retention(end=3 * BLOCK, pin="rules", ttl_s=60),))
    seq = desk.waiting(more, retention=(Retention(pin="rules", ttl_s=600),))

    desk.cache.withdraw(seq.request)
    desk.cache.part(seq.request)

    assert not desk.cache.pass_time(59)
    assert desk.cache.usage().blocks_pinned == 3
    assert desk.cache.unpin(None, "rules") == 3
    assert not desk.cache.pass_time(60)


def test_taking_back_one_of_two_requests_leaves_what_the_other_pins():
    desk = desk_of(10)
    first, second = (desk.waiting(RULES, retention=PIN) for _ in range(2))

    desk.cache.withdraw(first.request)
    with pytest.raises(RequestError, match="needs 2 more blocks, and 3 of at most 4"):
        desk.waiting([8] * (2 * BLOCK), retention=(Retention(pin="more"),))
    desk.cache.withdraw(second.request)

    desk.waiting([8] * (4 * BLOCK), retention=(Retention(pin="more"),))
    desk.cache.check()


def test_taking_back_a_request_whose_pin_was_let_go_leaves_the_new_one_of_that_name():
    desk = desk_of(10)
    first = desk.waiting(RULES, retention=PIN)
    desk.cache.unpin(None, "rules")
    desk.waiting(RULES, retention=PIN)

    desk.cache.withdraw(first.request)

    assert desk.cache.unpin(None, "rules") == 3
    desk.cache.check()


# ── what is told of pins ──────────────────────────────────────────────────────────────────


def test_a_pin_is_told_by_its_name_its_blocks_and_what_is_left_of_its_time():
    desk = desk_of(20, ("acme",), ("other",))
    seq = desk.written([*RULES, 0], tenant="acme", retention=(Retention(pin="rules", ttl_s=60),))

    (live,) = desk.cache.pins("acme")
    desk.release(seq)
    desk.cache.pass_time(20)
    (left,) = desk.cache.pins("acme")

    assert live == PinFacts("acme", "rules", 3, 1, None)
    assert left == PinFacts("acme", "rules", 3, 0, 40)


def test_pins_of_others_are_not_told():
    desk = desk_of(20, ("acme",), ("other",))
    serve(desk, RULES, tenant="acme", retention=PIN)

    assert desk.cache.pins("other") == ()
    assert [pin.tenant for pin in desk.cache.pins(None)] == ["acme"]


def test_a_pin_whose_time_is_over_is_told_no_more():
    desk = desk_of(20)
    serve(desk, RULES, retention=(Retention(pin="rules", ttl_s=60),))

    desk.cache.pass_time(61)

    assert desk.cache.pins(None) == ()


def test_pins_of_a_tenant_that_there_is_not_are_refused():
    with pytest.raises(RequestError, match="nobody"):
        desk_of(20).cache.pins("nobody")
