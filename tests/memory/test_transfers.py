"""Moves between tiers: they may fail or come late, and then the prefix is shorter."""

from __future__ import annotations

import pytest

from octavo.contract.request import choice_seed
from octavo.testing.desk import Desk
from octavo.testing.driver import Driver, make_request
from octavo.testing.fake_runner import expected_output

TEXT = list(range(100, 112))
"""Three blocks of four."""


@pytest.fixture
def desk():
    return Desk.paged(8, host_blocks=16)


def forget_on_the_device(desk):
    """Evict every text from the device; the host keeps its copies."""
    pool = desk.tiers[0].pool
    pool.drop(pool.take(pool.available))


def stored(desk, text):
    """Let the host hold a text that the device has forgotten."""
    seq = desk.written(text)
    desk.arrive()
    desk.release(seq)
    forget_on_the_device(desk)


def loading(desk, prompt):
    """Admit a sequence whose prefix has to come from the host."""
    seq = desk.waiting(prompt)
    assert desk.admit(seq)
    assert desk.cache.loading(seq)
    return seq


# ── stores ────────────────────────────────────────────────────────────────────────────────


def test_committed_blocks_are_copied_to_the_host(desk):
    desk.written(TEXT)

    moves = desk.cache.take_moves()

    assert [(move.src.tier, move.dst.tier) for move in moves] == [("device", "host")] * 3


def test_moves_are_handed_out_once(desk):
    desk.written(TEXT)
    desk.cache.take_moves()

    assert desk.cache.take_moves() == ()


def test_a_text_that_the_host_has_is_not_copied_again(desk):
    stored(desk, TEXT)

    desk.written([*TEXT[:4], 1, 1, 1, 1])

    assert desk.cache.open_moves <= 2


def test_a_store_holds_both_ends_until_it_has_ended(desk):
    seq = desk.written(TEXT[:4])
    desk.release(seq)

    assert [tier.pool.held for tier in desk.tiers] == [1, 1]
    desk.cache.check()
    desk.arrive()
    assert [tier.pool.held for tier in desk.tiers] == [0, 0]


def test_a_failed_store_is_forgotten(desk):
    desk.release(desk.written(TEXT))

    desk.arrive(failing=True)

    assert desk.tiers[1].keyed() == []
    assert desk.cache.open_moves == 0
    desk.cache.check()


def test_a_full_host_is_no_error():
    desk = Desk.paged(16, host_blocks=2)

    desk.written(TEXT)

    assert desk.cache.open_moves == 2


def test_a_load_into_a_block_that_a_step_may_still_write_waits_for_that_step(desk):
    stored(desk, TEXT)
    seq = desk.running([1] * 28)
    desk.cache.release(seq, desk.step)

    loading(desk, [*TEXT, 1])

    moves = desk.cache.take_moves()
    assert [move.after for move in moves] == [0, desk.step, desk.step]


# ── loads ─────────────────────────────────────────────────────────────────────────────────


def test_a_prefix_on_the_host_is_loaded(desk):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])

    moves = desk.cache.take_moves()

    assert [(move.src.tier, move.dst.tier) for move in moves] == [("host", "device")] * 3
    assert desk.cache.settle([move.id for move in moves], ()) == {seq.id: 12}
    assert not desk.cache.loading(seq)


def test_a_loaded_prefix_is_found_by_others(desk):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])
    desk.arrive()

    hit = desk.cache.lookup(desk.waiting([*TEXT, 2]))

    assert [tier for tier, _ in hit.runs[0]] == [0, 0, 0]
    desk.release(seq)
    desk.cache.check()


@pytest.mark.parametrize(("failing", "left"), [(0, 0), (1, 4), (2, 8)])
def test_a_failing_load_makes_the_prefix_shorter(desk, failing, left):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])
    moves = [move.id for move in desk.cache.take_moves()]
    lost = moves.pop(failing)

    assert desk.cache.settle(moves, [lost]) == {seq.id: left}

    desk.cache.check()
    seq.scheduled = left
    assert desk.cache.extend(seq, 13, desk.step)


def test_the_last_outcome_ends_the_wait(desk):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])
    first, *rest = [move.id for move in desk.cache.take_moves()]

    assert desk.cache.settle([first], ()) == {}
    assert desk.cache.settle(rest, ()) == {seq.id: 12}


def test_giving_up_keeps_what_has_arrived(desk):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])
    moves = [move.id for move in desk.cache.take_moves()]
    desk.cache.settle(moves[:1], ())

    assert desk.cache.give_up(seq) == 4

    desk.cache.check()


def test_a_late_load_is_still_of_use_to_others(desk):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])
    moves = [move.id for move in desk.cache.take_moves()]
    desk.cache.give_up(seq)
    desk.release(seq)

    desk.cache.settle(moves, ())

    hit = desk.cache.lookup(desk.waiting([*TEXT, 1]))
    assert [tier for tier, _ in hit.runs[0]] == [0, 0, 0]
    desk.cache.check()


def test_a_load_holds_both_ends_though_its_sequence_is_aborted(desk):
    stored(desk, TEXT)
    seq = loading(desk, [*TEXT, 1])

    desk.release(seq)

    assert [tier.pool.held for tier in desk.tiers] == [3, 3]
    desk.cache.check()
    desk.arrive()
    assert [tier.pool.held for tier in desk.tiers] == [0, 0]
    desk.cache.check()


@pytest.mark.parametrize("failing", [False, True])
def test_a_load_without_a_sequence_ends_quietly(desk, failing):
    stored(desk, TEXT)
    desk.release(loading(desk, [*TEXT, 1]))
    moves = [move.id for move in desk.cache.take_moves()]

    assert desk.cache.settle(() if failing else moves, moves if failing else ()) == {}


def test_a_follower_sees_that_its_prefix_is_arriving(desk):
    stored(desk, TEXT)
    loading(desk, [*TEXT, 1])

    assert desk.cache.lookup(desk.waiting([*TEXT, 2])).arriving
    desk.arrive()
    assert not desk.cache.lookup(desk.waiting([*TEXT, 2])).arriving


def test_a_follower_waits_no_longer_than_its_leader(desk):
    stored(desk, TEXT)
    leader = loading(desk, [*TEXT, 1])

    desk.cache.give_up(leader)

    hit = desk.cache.lookup(desk.waiting([*TEXT, 2]))
    assert (hit.tokens, hit.arriving) == (0, False)


def test_a_follower_loads_itself_when_its_leader_is_aborted(desk):
    stored(desk, TEXT)
    desk.release(loading(desk, [*TEXT, 1]))

    hit = desk.cache.lookup(desk.waiting([*TEXT, 2]))

    assert (hit.tokens, hit.arriving) == (12, False)


def test_a_late_load_that_has_ended_is_late_no_more(desk):
    stored(desk, TEXT)
    leader = loading(desk, [*TEXT, 1])
    desk.cache.give_up(leader)
    desk.arrive(failing=True)

    hit = desk.cache.lookup(desk.waiting([*TEXT, 2]))

    assert (hit.tokens, hit.arriving) == (12, False)


def test_nobody_waits_for_another_text(desk):
    stored(desk, TEXT)
    loading(desk, [*TEXT, 1])

    assert not desk.cache.lookup(desk.waiting([*TEXT[:3], 0, 1])).arriving


def test_groups_load_together():
    desk = Desk.paged(16, (4, 8), host_blocks=16)
    stored(desk, list(range(16)))
    seq = loading(desk, range(17))
    moves = [move.id for move in desk.cache.take_moves()]

    assert len(moves) == 4 + 2
    assert desk.cache.settle(moves[:5], moves[5:]) == {seq.id: 8}
    desk.cache.check()


# ── with a scheduler ──────────────────────────────────────────────────────────────────────


class SlowHost:
    """A driver whose moves end only when the test says so."""

    def __init__(self, **options):
        self.driver = Driver.paged(8, host_blocks=32, vocab_size=12, **options)

    def remember(self, text):
        """Let the host hold a text that the device has forgotten."""
        self.answer("first", text, max_tokens=1)
        while self.driver.cache.open_moves:
            self.driver.step()
        for number in range(2):
            self.answer(f"filler {number}", [number] * 28, max_tokens=1)
        while self.driver.cache.open_moves:
            self.driver.step()

    def answer(self, name, prompt, **options):
        self.driver.add(make_request(name, prompt, **options))
        self.driver.run()
        return self.driver.answers[name, 0]


def test_a_text_that_went_to_the_host_and_back_is_answered_right():
    host = SlowHost()
    host.remember(TEXT)

    answer = host.answer("again", [*TEXT, 1], max_tokens=4)

    assert answer.tokens == expected_output([*TEXT, 1], choice_seed(0, 0), 4, 12)
    moves = [move for batch in host.driver.batches for move in batch.moves]
    assert any(move.src.tier == "host" for move in moves)


def test_a_load_that_is_late_is_waited_for_until_its_deadline():
    host = SlowHost()
    host.remember(TEXT)
    driver = host.driver
    driver.add(make_request("again", [*TEXT, 1], max_tokens=4))
    waited = []
    scheduler = driver.scheduler
    batch = scheduler.plan(100.0)
    assert batch is not None
    for now in (101.0, 104.9, 105.0):
        batch = scheduler.plan(now)
        waited.append(not (batch and batch.slices))

    assert waited == [True, True, False]
