"""Forks and tentative blocks: who may read what, and what a failed step takes along."""

from __future__ import annotations

import pytest

from octavo.contract.batch import Copy
from octavo.testing.desk import Desk

TEXT = list(range(100, 112))
"""Three blocks of four."""


@pytest.fixture
def desk():
    return Desk.paged(24)


# ── forks ─────────────────────────────────────────────────────────────────────────────────


def test_a_fork_holds_the_same_blocks(desk):
    parent = desk.written(TEXT[:6])

    child = desk.fork(parent)

    assert desk.blocks(child) == desk.blocks(parent)
    assert desk.cache.usage().blocks_used == 2
    desk.cache.check()


def test_who_writes_first_into_the_shared_partial_block_copies_it(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    old = desk.blocks(parent)

    desk.extend(child, 1)

    new = desk.blocks(child)
    assert (new[0], desk.blocks(parent)) == (old[0], old)
    assert desk.cache.take_copies() == (Copy(old[1], new[1]),)


def test_copies_are_reported_once(desk):
    parent = desk.written(TEXT[:6])
    desk.extend(desk.fork(parent), 1)
    desk.cache.take_copies()

    assert desk.cache.take_copies() == ()


def test_the_last_holder_writes_in_place(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    old = desk.blocks(parent)
    desk.extend(child, 1)
    desk.cache.take_copies()

    desk.extend(parent, 2)

    assert desk.blocks(parent) == old
    assert desk.cache.take_copies() == ()


@pytest.mark.parametrize("children", [1, 2, 5])
def test_a_family_makes_one_copy_less_than_it_has_members(desk, children):
    parent = desk.written(TEXT[:6])
    family = [parent, *(desk.fork(parent) for _ in range(children))]

    for number, seq in enumerate(family):
        desk.extend(seq, number)

    assert len(desk.cache.take_copies()) == children
    desk.cache.check()


def test_a_fork_at_the_end_of_a_block_copies_nothing(desk):
    parent = desk.written(TEXT[:8])
    child = desk.fork(parent)

    desk.extend(child, 1)
    desk.extend(parent, 2)

    assert desk.cache.take_copies() == ()


def test_a_copied_block_is_sent_to_the_runner_again(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    desk.blocks(child)
    desk.extend(child, 1)

    kept, blocks = desk.cache.growth(child)

    assert kept == (1,)
    assert len(blocks[0]) == 1


def test_an_extension_after_the_other_has_ended_copies_nothing(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    desk.release(parent)

    desk.extend(child, 1)

    assert desk.cache.take_copies() == ()


def test_every_group_copies_its_own_partial_block():
    desk = Desk.paged(24, (4, 8, 2))
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)

    desk.extend(child, 1)

    assert len(desk.cache.take_copies()) == 2  # six tokens end a block of the third group
    desk.cache.check()


def test_forks_with_the_same_continuation_publish_it_once(desk):
    parent = desk.written(TEXT[:6])
    child = desk.fork(parent)
    desk.extend(child, 1, 2)
    desk.extend(parent, 1, 2)
    desk.commit()

    hit = desk.cache.lookup(desk.waiting([*TEXT[:6], 1, 2, 3]))

    assert hit.tokens == 8
    desk.cache.check()


# ── tentative blocks ──────────────────────────────────────────────────────────────────────


def test_planned_blocks_are_found_before_the_step_is_over(desk):
    leader = desk.running(TEXT)

    follower = desk.running([*TEXT, 1])

    assert follower.cached_tokens == 12
    assert desk.blocks(follower)[:3] == desk.blocks(leader)


def test_nothing_is_moved_before_the_step_is_over():
    desk = Desk.paged(16, host_blocks=16)
    desk.running(TEXT)
    assert desk.cache.take_moves() == ()

    desk.commit()

    assert len(desk.cache.take_moves()) == 3


def test_a_block_whose_last_token_is_being_sampled_is_published_when_it_is_known(desk):
    seq = desk.written(TEXT[:7])
    seq.sampling = 1
    assert desk.cache.extend(seq, 8, desk.step)
    seq.scheduled = 8
    assert desk.cache.lookup(desk.waiting([*TEXT[:8], 1])).tokens == 4

    seq.tokens.append(TEXT[7])
    desk.cache.seal(seq)

    assert desk.cache.lookup(desk.waiting([*TEXT[:8], 1])).tokens == 8


def test_a_failed_step_takes_its_blocks_back(desk):
    seq = desk.running(TEXT)

    doomed = desk.fail(seq)

    assert doomed == {seq.id}
    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 0


def test_what_was_committed_before_the_failure_stays(desk):
    seq = desk.written(TEXT[:8])
    desk.extend(seq, *TEXT[8:])

    desk.fail(seq)
    desk.release(seq)

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 8
    desk.cache.check()


def test_a_failed_step_takes_its_readers_along(desk):
    leader, follower = desk.running(TEXT), desk.running([*TEXT, 1])

    assert desk.fail(leader) == {leader.id, follower.id}


def test_a_failed_step_leaves_strangers_alone(desk):
    stranger = desk.written([1] * 9)
    leader = desk.running(TEXT)

    assert stranger.id not in desk.fail(leader)


def test_readers_of_readers_are_taken_along(desk):
    leader = desk.running(TEXT)
    first_step = desk.step
    desk.step += 1  # a second step in flight
    reader = desk.running([*TEXT, 1, 2, 3, 4])
    second_reader = desk.running([*TEXT, 1, 2, 3, 4, 5])

    doomed = desk.cache.revoke(first_step, {leader.id})

    assert doomed == {leader.id, reader.id, second_reader.id}
    assert desk.cache.lookup(desk.waiting([*TEXT, 1, 2, 3, 4, 5])).tokens == 0


def test_a_reader_of_a_reader_with_a_first_part_of_its_own_is_taken_along(desk):
    slow = desk.waiting([*TEXT, 1])
    assert desk.admit(slow, upto=6)
    desk.commit()
    leader = desk.running(TEXT[:8])
    first_step = desk.step
    desk.step += 1
    reader = desk.running(TEXT)
    assert desk.cache.extend(slow, 8, desk.step)  # its own second block, not the leader's
    slow.scheduled = 8
    assert desk.cache.adopt(slow) == 4  # the reader's third

    assert desk.cache.revoke(first_step, {leader.id}) == {leader.id, reader.id, slow.id}


def test_readers_of_a_later_step_that_stands_are_left_alone(desk):
    leader = desk.running(TEXT)
    first_step = desk.step
    desk.step += 1
    desk.running([1] * 8)
    desk.running([1] * 9)

    assert desk.cache.revoke(first_step, {leader.id}) == {leader.id}


def test_forks_that_share_a_private_block_are_taken_along(desk):
    parent = desk.running(TEXT[:6])
    child = desk.fork(parent)

    assert desk.fail(parent) == {parent.id, child.id}


def test_a_fork_of_a_sequence_that_has_left_is_taken_along(desk):
    parent = desk.waiting(TEXT[:2])
    desk.admit(parent)
    failing = desk.step
    desk.step += 1
    child = desk.fork(parent)
    desk.release(parent)

    doomed = desk.cache.revoke(failing, set())

    assert doomed == {child.id}


def test_a_failure_after_everybody_was_released_leaves_a_clean_pool(desk):
    leader, follower = desk.running(TEXT), desk.running([*TEXT, 1])
    for seq in (leader, follower):
        desk.cache.release(seq, desk.step)

    desk.fail(leader)

    assert desk.tiers[0].keyed() == []
    desk.cache.check()


def test_blocks_of_a_sequence_that_ended_in_flight_are_committed_with_its_step(desk):
    seq = desk.running(TEXT)
    desk.cache.release(seq, desk.step)

    desk.commit()

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 12
    desk.cache.check()


def test_blocks_of_an_ended_writer_are_not_trusted_after_an_older_failure(desk):
    leader = desk.running(TEXT)
    first_step = desk.step
    desk.step += 1
    reader = desk.running([*TEXT, 1, 2, 3, 4])
    desk.cache.release(reader, desk.step)

    desk.cache.revoke(first_step, {leader.id})
    desk.release(leader)
    desk.written(TEXT)

    assert desk.cache.lookup(desk.waiting([*TEXT, 1, 2, 3, 4, 5])).tokens == 12
    desk.cache.check()


def test_a_block_evicted_in_flight_is_not_committed_with_the_step_that_wrote_it_first():
    desk = Desk.paged(4, host_blocks=8)
    first = desk.running(TEXT)
    desk.cache.release(first, desk.step)
    first_step = desk.step
    desk.step += 1
    desk.running([1] * 13)

    desk.cache.commit(first_step)

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 0
    assert desk.cache.take_moves() == ()  # what lies in the blocks now is still tentative
    desk.cache.check()
