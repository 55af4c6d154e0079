"""What each tenant has of a pool: its guarantee, its maximum, and who gives up a block."""

from __future__ import annotations

from random import Random

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.contract.retention import Retention, TenantShare
from octavo.errors import RequestError
from octavo.memory.shares import Shares
from octavo.memory.shelves import Shelves
from octavo.testing.conformance import check_eviction_policy
from octavo.testing.desk import Desk

BLOCK = 4
NAMES = {"a": 100, "b": 400, "default": 700}


def desk_of(blocks, *shares, **options):
    options.setdefault("partial_blocks", False)
    return Desk.paged(blocks, tenants=[TenantShare(*share) for share in shares], **options)


def serve(desk, tenant, *numbers, **options):
    """Serve requests of one tenant, over a text of one block and a question each."""
    for number in numbers:
        tokens = [NAMES[tenant] + number] * BLOCK
        desk.release(desk.written([*tokens, 0], tenant=tenant, salt=tenant, **options))


def cached(desk):
    """Blocks of each tenant."""
    return {name: count for name, count in desk.cache.usage().tenant_blocks if count}


def fits(desk, tenant, blocks):
    """Say whether a new text of so many blocks would be admitted."""
    seq = desk.waiting(range(5000, 5000 + blocks * BLOCK - 1), tenant=tenant)
    return desk.cache.shortage(seq, desk.cache.lookup(seq)) == 0


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_the_layered_form_of_every_policy_keeps_the_promises_of_one(name):
    check_eviction_policy(lambda: Shelves(EVICTION_POLICIES[name], Shares(1000)))


def test_without_shares_all_blocks_are_one_tenants():
    desk = desk_of(10)
    serve(desk, "default", 1, 2, 3)

    assert cached(desk) == {"default": 3}


def test_a_share_of_whole_blocks_is_not_rounded_down():
    # In floating point 0.29 * 100 is less than 29, and so is 100 * 0.57 less than 57.
    shares = Shares(100, [TenantShare("a", 0.29, 0.57)], pin_limit=0.29)

    account = shares.account("a")
    assert (account.guaranteed, account.maximum, shares.most_pinned) == (29, 57, 29)


def test_blocks_within_a_guarantee_are_not_evicted_for_others():
    desk = desk_of(10, ("a", 0.4), ("b",))
    serve(desk, "a", 1, 2, 3, 4)

    serve(desk, "b", *range(50))

    assert cached(desk)["a"] == 4


def test_blocks_above_a_guarantee_go_first():
    desk = desk_of(10, ("a", 0.4), ("b", 0.3))
    serve(desk, "b", 1, 2, 3)
    serve(desk, "a", 1, 2, 3, 4, 5, 6)

    desk.running(range(11))

    assert (cached(desk)["a"], cached(desk)["b"]) == (4, 3)


def test_without_guarantees_the_one_with_most_gives_up_first():
    desk = desk_of(12, ("a",), ("b",))
    serve(desk, "b", 1, 2, 3)
    serve(desk, "a", 1, 2, 3, 4, 5, 6, 7, 8)

    serve(desk, "b", 4, 5)

    assert cached(desk) == {"a": 6, "b": 5}


def test_a_high_priority_of_one_tenant_displaces_nothing_of_anothers_guarantee():
    desk = desk_of(10, ("a", 0.4), ("b",))
    serve(desk, "a", 1, 2, 3, 4, retention=(Retention(priority=0),))

    serve(desk, "b", *range(50), retention=(Retention(priority=100),))

    assert cached(desk)["a"] == 4


def test_a_tenant_at_its_maximum_evicts_its_own_though_blocks_are_free():
    desk = desk_of(20, ("a", 0.0, 0.25))

    serve(desk, "a", *range(30))

    assert cached(desk) == {"a": 4}
    assert desk.tiers[0].pool.available == 20


def test_a_tenant_never_has_more_than_its_maximum():
    desk = desk_of(20, ("a", 0.0, 0.5))
    desk.running([NAMES["a"]] * (7 * BLOCK - 1), tenant="a")

    assert fits(desk, "a", 3)
    assert not fits(desk, "a", 4)
    assert fits(desk, "default", 13)


def test_a_text_that_its_tenant_can_never_hold_is_refused():
    desk = desk_of(20, ("a", 0.0, 0.5))

    with pytest.raises(RequestError, match=r"does not fit into the 10 of 20 blocks .* tenant 'a'"):
        desk.waiting(range(10 * BLOCK), tenant="a")


def test_a_text_grows_as_far_as_its_tenant_can_count_on():
    desk = desk_of(20, ("a", 0.3, 0.5), ("b", 0.3))

    limits = [desk.waiting([1], tenant=name, output=500).limit for name in ("a", "b", "default")]

    assert limits == [10 * BLOCK, 14 * BLOCK, 8 * BLOCK]


def test_what_a_tenant_can_count_on_is_admitted_while_others_use_their_guarantee():
    desk = desk_of(400, ("b", 0.5))
    desk.running(range(200 * BLOCK - 1), tenant="b")

    most = desk.waiting(range(1000, 1000 + 200 * BLOCK - 1))

    assert desk.cache.shortage(most, desk.cache.lookup(most)) == 0


def test_beside_others_of_its_tenant_a_text_leaves_some_blocks_free():
    desk = desk_of(400, ("b", 0.5))
    desk.running(range(200 * BLOCK - 1), tenant="b")
    desk.running(range(1000, 1000 + 100 * BLOCK - 1))

    some, more = (desk.waiting(range(2000, 2000 + n * BLOCK - 1)) for n in (96, 97))

    assert desk.cache.shortage(some, desk.cache.lookup(some)) == 0
    assert desk.cache.shortage(more, desk.cache.lookup(more)) == 1


def test_beams_are_bounded_by_their_tenants_maximum():
    desk = desk_of(20, ("a", 0.0, 0.5))

    assert desk.cache.limit(8, 100, 100, 2, "a") == 24


def test_an_unknown_tenant_is_told_who_there_is():
    with pytest.raises(RequestError, match="tenant 'c' is not one of default, a"):
        desk_of(20, ("a",)).waiting([1], tenant="c")


def test_a_free_block_that_is_promised_is_not_turned_into_a_guarantee():
    desk = desk_of(15, ("a", 0.6), ("b",))
    serve(desk, "a", 1, 2, 3, 4, 5)
    desk.running(range(3 * BLOCK - 1))
    slow = desk.waiting([NAMES["b"]] * (6 * BLOCK - 1), tenant="b")
    assert desk.admit(slow, upto=1)

    desk.running([NAMES["a"] + 9] * (4 * BLOCK - 1), tenant="a")

    assert desk.cache.extend(slow, slow.length, desk.step)
    desk.cache.check()


def test_whom_a_release_helps():
    desk = desk_of(20, ("a", 0.5, 0.5), ("b",))
    own = desk.running([1] * 39, tenant="a")
    other = desk.running([2] * 7, tenant="b")

    waiting = [desk.waiting([3] * 7, tenant=name) for name in ("a", "b", "default")]

    useful = [list(desk.cache.useful([own, other], seq)) for seq in waiting]
    assert useful == [[own], [other], [other]]


def test_a_request_is_no_victim_for_blocks_that_it_has_only_been_promised():
    desk = desk_of(20, ("a", 0.5), ("b",))
    slow = desk.waiting([1] * 51, tenant="a")
    assert desk.admit(slow, upto=4 * BLOCK)

    seq = desk.waiting([3] * 39, tenant="b")

    assert list(desk.cache.useful([slow], seq, desk.cache.lookup(seq))) == []
    assert list(desk.cache.useful([slow], desk.running([4], tenant="b"))) == []


def test_what_is_found_is_looked_at_once_for_all_victims(monkeypatch):
    desk = desk_of(400, ("a", 0.1), ("b",))
    victims = [desk.running([n] * 15, tenant="b") for n in range(40)]
    serve(desk, "a", 1)
    seq = desk.waiting([NAMES["a"] + 1] * BLOCK + [7], tenant="a", salt="a")
    hit, looked = desk.cache.lookup(seq), []

    class Runs(tuple):
        def __iter__(self):
            looked.append(1)
            return super().__iter__()

    hit = hit._replace(runs=Runs(hit.runs))

    assert list(desk.cache.useful(victims, seq, hit)) == victims
    assert len(looked) == 1


def test_relief_counts_what_the_waiting_one_may_have():
    desk = desk_of(10, ("a", 0.0, 0.5), ("b",))
    mine = desk.running([1] * 7, tenant="a")
    other = desk.running([2] * 31, tenant="b")
    seq = desk.waiting([3] * 15, tenant="a")
    hit = desk.cache.lookup(seq)

    assert desk.cache.shortage(seq, hit) == 4
    assert list(desk.cache.relief(seq, hit, [other])) == [3]
    assert list(desk.cache.relief(seq, hit, [other, mine])) == [3, 2]


def test_the_same_calls_give_the_same_victims_whatever_the_tenants():
    def evictions():
        desk = desk_of(12, ("a", 0.2), ("b", 0.1, 0.6))
        for round_ in range(20):
            for name in NAMES:
                serve(desk, name, round_ % 7, round_ % 3, round_)
        return cached(desk), [block.key for block in desk.tiers[0].pool.blocks]

    assert evictions() == evictions()


@pytest.mark.parametrize("seed", range(80))
def test_blocks_taken_together_come_from_whom_they_would_come_one_by_one(seed):
    most = [("a", 0.2, 0.5), ("b", 0.1, 0.4)], [("a", 0.3, 0.8), ("b", 0.1, 0.6)]

    def taken(at_once):
        draw = Random(seed)
        desk = desk_of(40, *most[seed % 2], pin_limit=0.2)
        pool, found = desk.tiers[0].pool, []
        for number in range(12):
            serve_text(desk, draw, number)
            account = pool.shares.account(draw.choice(list(NAMES)))
            able = max(0, pool.shares.takeable(account))
            count = draw.choice([able, draw.randint(0, able)])
            runs = [count] if at_once else [1] * count
            held = [block for run in runs for block in pool.take(run, 0, account)]
            found.append(held)
            pool.drop(held)
            desk.cache.check()
        return found

    assert taken(True) == taken(False)


def serve_text(desk, draw, number):
    """Serve a new text of some tenant; the beginning of every third one is pinned."""
    pins = (Retention(0, BLOCK, pin="p"),) if number % 3 == 0 else ()
    tokens = [number] * (BLOCK * draw.randint(1, 8))
    tenant = draw.choice(list(NAMES))
    try:
        seq = desk.waiting(tokens, output=4, tenant=tenant, retention=pins)
    except RequestError:  # no more may be pinned
        return
    if desk.admit(seq):
        desk.commit()
    desk.release(seq)


def test_a_tenant_whose_text_stays_pinned_in_part_gives_up_the_rest_in_its_turn():
    desk = desk_of(12, ("a",), ("b",), pin_limit=0.5)
    pin = (Retention(0, BLOCK, pin="p"),)
    desk.release(desk.written([1] * 5 * BLOCK, tenant="a", output=1, retention=pin))

    desk.cache.check()  # no tenant may be noted as less above its guarantee than it is
