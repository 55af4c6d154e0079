"""How long KV is kept after its request: priorities, times, pins and their limit."""

from __future__ import annotations

import numpy as np
import pytest

from octavo.build import EVICTION_POLICIES
from octavo.contract.retention import Retention, TenantShare
from octavo.errors import RequestError
from octavo.memory.kept import EXPIRED, NORMAL, Kept, better, keeps_of, kept_at
from octavo.memory.timers import Timers
from octavo.testing.desk import Desk

BLOCK = 4


def paged(blocks, *sizes, **options):
    """A desk at which whole blocks alone are kept, so that they can be counted."""
    return Desk.paged(blocks, *sizes, partial_blocks=False, **options)


def text(number, blocks=1):
    """A text that shares nothing with those of other numbers."""
    return [number] * (BLOCK * blocks)


def serve(desk, tokens, *retention, **options):
    """Serve one request over a text; its question takes a block of its own."""
    desk.release(desk.written([*tokens, 0], retention=retention, **options))


def knows(desk, tokens):
    """How many tokens of a text are cached; changes nothing."""
    return desk.cache.lookup(desk.waiting([*tokens, 0])).tokens


def press(desk, blocks, first=50):
    """Let other texts come and go until so many blocks have been taken."""
    for number in range(blocks):
        serve(desk, text(first + number))


# ── priorities ────────────────────────────────────────────────────────────────────────────


def test_the_lowest_priority_goes_first_however_young():
    desk = paged(5)
    serve(desk, text(1))
    serve(desk, text(2), Retention(priority=10))
    serve(desk, text(3))

    press(desk, 2)

    assert [knows(desk, text(i)) for i in (1, 2, 3)] == [BLOCK, 0, BLOCK]


def test_a_high_priority_outlives_any_number_of_others():
    desk = paged(6)
    serve(desk, text(1, 2), Retention(priority=90))

    press(desk, 40)

    assert knows(desk, text(1, 2)) == 2 * BLOCK


def test_a_high_priority_goes_when_nothing_lower_is_left():
    desk = paged(6)
    serve(desk, text(1, 2), Retention(priority=100))

    desk.running(text(2, 5))

    assert knows(desk, text(1, 2)) == BLOCK


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_inside_a_class_the_policy_decides_as_it_does_alone(name):
    def victims(*retention):
        desk = paged(12, policy=EVICTION_POLICIES[name])
        for number in (1, 2, 3, 1, 4, 1, 2, 5, 6, 1, 7, 8, 9, 3, 2):
            serve(desk, text(number), *retention)
        return [knows(desk, text(number)) for number in range(1, 10)]

    assert victims(Retention(priority=80)) == victims()


def test_what_lies_before_a_range_is_kept_as_well_as_the_range():
    desk = paged(6)
    serve(desk, text(1, 3), Retention(2 * BLOCK, priority=90))

    press(desk, 30)

    assert knows(desk, text(1, 3)) == 3 * BLOCK


def test_a_range_ends_where_it_says():
    desk = paged(8)
    serve(desk, text(1, 4), Retention(end=2 * BLOCK + 3, priority=90))

    press(desk, 30)

    assert knows(desk, text(1, 4)) == 2 * BLOCK


def test_a_text_that_two_use_is_kept_as_the_higher_asks():
    desk = paged(6)
    serve(desk, text(1), Retention(priority=90))
    serve(desk, text(1), Retention(priority=0))

    press(desk, 30)

    assert knows(desk, text(1)) == BLOCK


def test_a_use_without_wishes_saves_a_text_that_was_to_go_first():
    desk = paged(5)
    serve(desk, text(1), Retention(priority=0))
    serve(desk, text(1))
    serve(desk, text(2), Retention(priority=20))

    press(desk, 3)

    assert (knows(desk, text(1)), knows(desk, text(2))) == (BLOCK, 0)


# ── times ─────────────────────────────────────────────────────────────────────────────────


def test_after_its_time_a_text_goes_before_all_others():
    desk = paged(5)
    serve(desk, text(1))
    serve(desk, text(2), Retention(priority=90, ttl_s=10))
    serve(desk, text(3))
    desk.cache.pass_time(9)
    press(desk, 1)
    assert [knows(desk, text(i)) for i in (1, 2, 3)] == [BLOCK, BLOCK, BLOCK]

    desk.cache.pass_time(11)
    press(desk, 1, first=70)

    assert [knows(desk, text(i)) for i in (1, 2, 3)] == [BLOCK, 0, BLOCK]


def test_each_use_begins_the_time_anew():
    desk = paged(5)
    serve(desk, text(2), Retention(priority=90, ttl_s=10))
    desk.cache.pass_time(9)
    serve(desk, text(2))

    desk.cache.pass_time(18)
    press(desk, 30)

    assert knows(desk, text(2)) == BLOCK


def test_a_text_that_another_uses_without_end_becomes_a_normal_one():
    desk = paged(5)
    serve(desk, text(1), Retention(priority=90, ttl_s=10))
    serve(desk, text(1))
    serve(desk, text(2), Retention(priority=20))

    desk.cache.pass_time(100)
    press(desk, 3)

    assert (knows(desk, text(1)), knows(desk, text(2))) == (BLOCK, 0)


def test_time_that_does_not_come_costs_nothing():
    timers = Timers()
    for key in range(10_000):
        timers.set(key, 1000 + key % 7)
    for key in range(10_000):
        timers.set(key, 2000)

    assert timers.due(1999) == []
    assert len(timers.due(2000)) == 10_000
    assert len(timers) == 0


# ── ranges ────────────────────────────────────────────────────────────────────────────────


def test_a_text_is_never_kept_better_than_what_lies_before_it():
    keeps = keeps_of([Retention(10, 20, priority=5), Retention(30, 40, 90, ttl_s=8)], 50)

    classes = [(kept_at(keeps, end) or NORMAL).priority for end in range(1, 60)]
    assert classes == [90] * 40 + [35] * 19
    later = [(kept_at(keeps, end) or NORMAL).after for end in (10, 20, 40)]
    assert later == [35, 5, EXPIRED]


@pytest.mark.parametrize(
    ("ranges", "told"),
    [
        ([Retention(0, 10), Retention(5, 20)], "begins at 5, before the one before it ends at 10"),
        ([Retention(60)], "begins at 60, but the prompt ends at 50"),
    ],
)
def test_ranges_that_cannot_be_are_told(ranges, told):
    with pytest.raises(RequestError, match=told):
        keeps_of(ranges, 50)


def test_numbers_of_numpy_are_numbers_in_every_field():
    given = Retention(np.int64(3), np.uint8(9), np.int16(80), np.float32(0.5), "x")

    assert given == Retention(3, 9, 80, 0.5, "x")
    assert {type(getattr(given, name)) for name in ("start", "end", "priority")} == {int}
    assert type(given.ttl_s) is float


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"start": -1}, "from -1 to None is empty"),
        ({"start": 5, "end": 5}, "from 5 to 5 is empty"),
        ({"priority": 101}, "from 0 .* to 100, got 101"),
        ({"priority": "high"}, "must be a whole number from 0 .* got 'high'"),
        ({"priority": True}, "must be a whole number from 0 .* got True"),
        ({"priority": np.True_}, "must be a whole number from 0 .* got np.True_"),
        ({"priority": 35.0}, "must be a whole number from 0 .* got 35.0"),
        ({"end": np.float64(5)}, "end must be a whole number, got 5.0"),
        ({"start": 10**5000, "end": 5}, "from an int of 16610 bits to 5 is empty"),
        ({"ttl_s": 0}, "ttl_s must be above 0 and at most 31622400 seconds, a year, got 0"),
        ({"ttl_s": float("inf")}, "a year, got inf"),
        ({"ttl_s": np.float32("nan")}, "a year, got nan"),
        ({"ttl_s": 1e9}, "a year, got 1000000000.0"),
        ({"ttl_s": 10**400}, "a year, got 1000.*…: leave it out"),
        ({"pin": True}, "pin must be the name .* got True"),
        ({"pin": ""}, "pin must be the name"),
    ],
)
def test_a_wrong_wish_is_told(fields, told):
    with pytest.raises(RequestError, match=told):
        Retention(**fields)


def test_two_wishes_together_are_the_same_in_either_order():
    values = [
        None, Kept(0, None, 0), Kept(90, None, 90), Kept(90, 5), Kept(35, 9), Kept(60, 5, 35),
        Kept(EXPIRED, None, EXPIRED),
    ]  # fmt: skip

    for one in values:
        assert better(one, one) == one
        for two in values:
            assert better(one, two) == better(two, one)


# ── pins ──────────────────────────────────────────────────────────────────────────────────


def test_a_pinned_text_outlives_everything():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(end=3 * BLOCK, pin="rules"))

    for _ in range(3):
        serve(desk, text(2, 5))
        press(desk, 10)

    assert knows(desk, text(1, 3)) == 3 * BLOCK
    assert desk.cache.usage().blocks_pinned == 3


def test_a_pinned_block_is_not_counted_on_for_others():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(pin="rules"))
    desk.running(range(100, 100 + 5 * BLOCK - 1))

    long, longer = (desk.waiting(range(200, 200 + blocks * BLOCK - 1)) for blocks in (2, 3))

    assert desk.cache.shortage(long, desk.cache.lookup(long)) == 0
    assert desk.cache.shortage(longer, desk.cache.lookup(longer)) == 1


def test_a_pin_that_is_let_go_is_as_other_texts_are():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(pin="rules"))

    assert desk.cache.unpin(None, "rules") == 3
    press(desk, 20)

    assert knows(desk, text(1, 3)) == 0


def test_a_text_whose_pin_has_ended_goes_from_its_end():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(end=3 * BLOCK, pin="rules"))

    desk.cache.unpin(None, "rules")
    press(desk, 7)

    assert knows(desk, text(1, 3)) == 2 * BLOCK


def test_letting_go_of_one_pin_leaves_the_others():
    desk = paged(10, pin_limit=0.6)
    serve(desk, text(1, 2), Retention(pin="one"))
    serve(desk, [*text(1), *text(2)], Retention(pin="two"))

    desk.cache.unpin(None, "one")
    press(desk, 20)

    assert knows(desk, [*text(1), *text(2)]) == 2 * BLOCK
    assert knows(desk, text(1, 2)) == BLOCK


def test_a_pin_ends_some_time_after_its_last_request():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(pin="rules", ttl_s=60))
    desk.cache.pass_time(50)
    serve(desk, text(1, 3), Retention(pin="rules", ttl_s=60))
    assert not desk.cache.pass_time(109)

    assert desk.cache.pass_time(110)
    press(desk, 20)

    assert knows(desk, text(1, 3)) == 0


def test_a_pin_without_a_time_ends_after_an_hour():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(pin="rules"))

    assert not desk.cache.pass_time(3599)
    assert desk.cache.pass_time(3600)


def test_a_pin_holds_while_a_request_that_names_it_waits():
    desk = paged(10, pin_limit=0.4)
    desk.waiting(text(1, 3), retention=(Retention(pin="rules", ttl_s=1),))

    assert not desk.cache.pass_time(1e6)


def test_a_request_that_would_exceed_the_limit_is_refused_and_changes_nothing():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(pin="rules"))
    before = desk.snapshot()

    with pytest.raises(
        RequestError, match=r"pin 'more' needs 2 more blocks, and 3 of at most 4 .* raise pin_limit"
    ):
        desk.waiting(text(2, 2), retention=(Retention(pin="more"),))

    assert desk.snapshot() == before
    assert desk.cache.unpin(None, "more") == 0


def test_the_same_pin_by_many_requests_counts_once():
    desk = paged(10, pin_limit=0.3)

    for _ in range(9):
        desk.waiting(text(1, 3), retention=(Retention(pin="rules"),))

    with pytest.raises(RequestError, match="needs 1 more block, and 3 of at most 3"):
        desk.waiting(text(2), retention=(Retention(pin="rules"),))


def test_ranges_of_one_name_are_one_pin_that_holds_all_of_them_for_the_longest_time():
    desk = paged(10, pin_limit=0.4)
    ranges = (
        Retention(end=3 * BLOCK, pin="rules", ttl_s=60),
        Retention(3 * BLOCK, 3 * BLOCK + 1, pin="rules", ttl_s=30),
    )
    serve(desk, text(1, 3), *ranges)

    assert not desk.cache.pass_time(59)
    assert desk.cache.usage().blocks_pinned == 3
    assert desk.cache.pass_time(60)
    assert desk.cache.usage().blocks_pinned == 0


def test_all_pins_of_a_request_together_stay_below_the_limit():
    desk = paged(10, pin_limit=0.4)
    ranges = (Retention(end=2 * BLOCK, pin="one"), Retention(2 * BLOCK, 3 * BLOCK, pin="two"))

    with pytest.raises(RequestError, match=r"pins 'one', 'two' .* 5 more .* 0 of at most 4"):
        desk.waiting(text(1, 3), retention=ranges)

    assert desk.cache.unpin(None, None) == 0
    desk.cache.check()


def test_a_range_without_a_full_block_leaves_no_pin():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1), Retention(end=BLOCK - 1, pin="short", ttl_s=5))

    assert not desk.cache.pass_time(9)


def test_nor_may_it_name_one_where_nothing_can_be_pinned():
    desk = paged(10)

    with pytest.raises(RequestError, match="build the engine with pin_limit"):
        desk.waiting(text(1), retention=(Retention(end=BLOCK - 1, pin="short"),))


def test_without_a_limit_nothing_can_be_pinned():
    desk = paged(10)

    with pytest.raises(RequestError, match="build the engine with pin_limit"):
        desk.waiting(text(1), retention=(Retention(pin="rules"),))


def test_what_may_be_pinned_is_not_there_for_the_longest_text():
    desk = paged(10, pin_limit=0.4)

    assert desk.waiting(text(1), output=1000).limit == 6 * BLOCK
    with pytest.raises(RequestError, match=r"the 6 of 10 blocks .* can count on"):
        desk.waiting(text(1, 6))


def test_a_window_is_pinned_as_far_as_its_end_is_seen():
    desk = paged(60, (4, 4), windows=(None, 8), pin_limit=0.5)
    desk.release(desk.written([*range(40), 0], retention=(Retention(end=40, pin="rules"),)))

    assert desk.cache.usage().blocks_pinned == 10 + 2
    press(desk, 60, first=100)

    assert desk.cache.lookup(desk.waiting([*range(40), 0])).tokens == 40


def test_a_cleared_cache_forgets_pinned_texts_and_pins_them_when_they_come_back():
    desk = paged(10, pin_limit=0.4)
    serve(desk, text(1, 3), Retention(pin="rules"))

    desk.cache.clear()
    assert (knows(desk, text(1, 3)), desk.cache.usage().blocks_pinned) == (0, 0)
    serve(desk, text(1, 3))

    assert desk.cache.usage().blocks_pinned == 3


def test_choices_pin_their_prompt_once():
    desk = paged(20, pin_limit=0.4)
    parent = desk.written([*text(1, 3), 0], retention=(Retention(end=12, pin="rules"),))
    child = desk.fork(parent)
    desk.release(parent)
    desk.cache.release(child, 0)

    assert desk.cache.usage().blocks_pinned == 3


def test_a_pin_of_one_tenant_cannot_take_anothers_share():
    shares = (TenantShare("a", maximum=0.5), TenantShare("b", guaranteed=0.3))
    desk = paged(20, tenants=shares, pin_limit=0.4)

    with pytest.raises(RequestError, match="of at most 4 are pinned by tenant 'a'"):
        desk.waiting(text(1, 5), tenant="a", retention=(Retention(pin="rules"),))
