"""On whose account a block is that several tenants use, one after the other or together."""

from __future__ import annotations

import pytest

from octavo.contract.retention import Retention, TenantShare
from octavo.errors import Corrupted
from octavo.testing.desk import Desk

BLOCK = 4
TEXT = [1] * (3 * BLOCK)
"""Three blocks."""


def desk_of(blocks, *shares, **options):
    options.setdefault("partial_blocks", False)
    return Desk.paged(blocks, tenants=[TenantShare(*share) for share in shares], **options)


def blocks_of(desk):
    """Blocks of each tenant that has any, after all counts have been checked."""
    desk.cache.check()
    return {name: count for name, count in desk.cache.usage().tenant_blocks if count}


def over_text(desk, tenant, own, **options):
    """A running sequence of a tenant over the text, with a block of its own after it."""
    return desk.written([*TEXT, own], tenant=tenant, **options)


def test_a_cached_block_becomes_its_users():
    desk = desk_of(20, ("a",), ("b",))
    desk.release(over_text(desk, "a", 0))

    seq = over_text(desk, "b", 0)

    assert seq.cached_tokens == len(TEXT)
    assert blocks_of(desk) == {"b": 4}


def test_a_block_that_its_tenant_still_uses_stays_its():
    desk = desk_of(20, ("a",), ("b",))
    mine = [over_text(desk, "a", number) for number in (0, 1)]

    over_text(desk, "b", 2)
    desk.release(mine[0])

    assert blocks_of(desk) == {"a": 4, "b": 1}


def test_with_its_tenants_last_sequence_a_block_goes_to_another_holder():
    desk = desk_of(20, ("a",), ("b",))
    mine = [over_text(desk, "a", number) for number in (0, 1)]
    over_text(desk, "b", 2)

    desk.release(*mine)

    assert blocks_of(desk) == {"b": 4}


def test_forks_of_a_tenants_sequence_keep_its_blocks():
    desk = desk_of(20, ("a",), ("b",))
    parent = over_text(desk, "a", 0)
    other = over_text(desk, "b", 1)
    forks = [desk.fork(parent), desk.fork(other)]

    desk.release(parent, other)
    assert blocks_of(desk) == {"a": 4, "b": 1}

    desk.release(forks[0])
    assert blocks_of(desk) == {"b": 4}


def test_of_three_tenants_the_block_goes_to_the_one_that_may_have_most():
    desk = desk_of(20, ("a",), ("b", 0.0, 0.5), ("c", 0.0, 0.8))
    users = {name: over_text(desk, name, number) for number, name in enumerate("abc")}

    desk.release(users["a"])
    assert blocks_of(desk) == {"b": 1, "c": 4}

    desk.release(users["c"])
    assert blocks_of(desk) == {"b": 4}


def test_what_is_guaranteed_to_stay_goes_home_once_nobody_uses_it():
    desk = desk_of(12, ("a", 0.25), ("b",))
    desk.release(over_text(desk, "a", 0))

    seq = over_text(desk, "b", 0)
    assert blocks_of(desk) == {"b": 4}
    desk.release(seq)

    assert blocks_of(desk) == {"a": 3}
    for number in range(50, 60):
        desk.release(desk.written([number] * 2 * BLOCK, tenant="b"))
    assert desk.cache.lookup(desk.waiting([*TEXT, 9])).tokens == len(TEXT)


def test_beyond_the_guarantee_of_its_home_a_block_stays_its_last_users():
    desk = desk_of(20, ("a", 0.1), ("b",))
    desk.release(over_text(desk, "a", 0))

    desk.release(over_text(desk, "b", 0))

    assert blocks_of(desk) == {"a": 2, "b": 1}


def test_a_pinned_block_is_its_pinners_whoever_uses_it():
    desk = desk_of(20, ("a",), ("b",), pin_limit=0.5)
    pin = (Retention(end=len(TEXT), pin="rules"),)
    desk.release(over_text(desk, "a", 0, retention=pin))

    over_text(desk, "b", 1)

    assert blocks_of(desk) == {"a": 3, "b": 1}


def test_once_the_pin_ends_a_block_in_use_is_its_users():
    desk = desk_of(20, ("a",), ("b",), pin_limit=0.5)
    pin = (Retention(end=len(TEXT), pin="rules"),)
    desk.release(over_text(desk, "a", 0, retention=pin))
    user = over_text(desk, "b", 1)

    assert desk.cache.unpin("a", "rules") == 3
    assert blocks_of(desk) == {"b": 4}

    desk.release(user)
    assert blocks_of(desk) == {"b": 3}


def test_a_block_whose_writer_has_left_goes_to_its_user_and_then_to_whom_pins_it():
    desk = desk_of(20, ("a",), ("b",), ("c",), pin_limit=0.5)
    pin = (Retention(end=len(TEXT), pin="rules"),)
    writer, user = over_text(desk, "a", 0), over_text(desk, "b", 1)
    desk.release(over_text(desk, "c", 2, retention=pin))

    desk.release(writer)
    assert blocks_of(desk) == {"b": 4}

    desk.release(user)
    assert blocks_of(desk) == {"c": 3}


def test_a_tenant_at_its_maximum_gives_up_cached_blocks_for_those_that_become_its():
    desk = desk_of(20, ("a",), ("b", 0.0, 0.3))
    for number in (50, 51):
        desk.release(desk.written([number] * BLOCK, tenant="b"))
    desk.release(over_text(desk, "a", 0))

    over_text(desk, "b", 0)

    assert blocks_of(desk) == {"b": 6}


def test_what_a_tenant_takes_over_counts_towards_its_maximum():
    desk = desk_of(20, ("a",), ("b", 0.0, 0.25))
    desk.release(over_text(desk, "a", 0))
    over_text(desk, "b", 0)

    more = desk.waiting([50] * BLOCK, tenant="b")

    assert desk.cache.shortage(more, desk.cache.lookup(more)) == 1
    assert not desk.admit(more)


def test_what_others_still_use_is_no_part_of_a_tenants_maximum():
    desk = desk_of(20, ("a", 0.0, 0.25), ("b",))
    writer = over_text(desk, "a", 0)
    over_text(desk, "b", 1)
    desk.release(writer)

    assert desk.admit(desk.waiting([50] * (5 * BLOCK - 1), tenant="a"))
    assert blocks_of(desk) == {"a": 5, "b": 4}


def test_a_move_keeps_a_block_for_its_writer_until_it_ends():
    desk = desk_of(20, ("a",), ("b",), host_blocks=9)
    writer = over_text(desk, "a", 0)
    over_text(desk, "b", 1)

    desk.release(writer)
    assert blocks_of(desk) == {"a": 3, "b": 1}

    desk.arrive()
    assert blocks_of(desk) == {"b": 4}


def test_an_account_that_no_holder_has_is_found_by_the_check():
    desk = desk_of(20, ("a",), ("b",))
    over_text(desk, "a", 0)
    over_text(desk, "b", 1)

    desk.tiers[0].pool.blocks[0].others = None

    with pytest.raises(Corrupted, match="is held by others as None, not"):
        desk.cache.check()
