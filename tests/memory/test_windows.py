"""KV groups with a window: blocks that no query sees any more come back while a text grows."""

from __future__ import annotations

import pytest

from octavo.contract.ids import NO_BLOCK
from octavo.contract.layout import KVGroup
from octavo.memory.groups import Groups
from octavo.testing.desk import Desk
from octavo.testing.driver import Driver, capacity, make_request

TEXT = list(range(100, 124))
"""Six blocks of four."""


def group_of(size, window):
    return KVGroup(name="g", layers=(0,), kv_heads=1, head_dim=2, block_size=size, window=window)


# ── blocks come back ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("window", [1, 2, 4, 5, 9, 16])
@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_growing_text_holds_what_the_layout_says_at_every_length(size, window):
    desk = Desk.paged(80, (size,), windows=(window,))
    seq = desk.written([1])
    layout = group_of(size, window)

    for length in range(2, 60):
        assert desk.extend(seq, length)
        desk.commit()
        assert desk.cache.usage().blocks_used == layout.held_blocks(length)


@pytest.mark.parametrize("window", [1, 2, 4, 5, 9, 16])
@pytest.mark.parametrize("step", [1, 2, 3, 7, 50])
def test_a_prompt_in_chunks_never_holds_more_than_the_peak(window, step):
    desk = Desk.paged(80, windows=(window,))
    seq = desk.waiting(range(60))
    layout, peak = group_of(4, window), 0
    assert desk.admit(seq, step)

    while seq.scheduled < 60:
        peak = max(peak, desk.cache.usage().blocks_used)
        upto = min(60, seq.scheduled + step)
        assert desk.cache.extend(seq, upto, desk.step)
        seq.scheduled = upto
    peak = max(peak, desk.cache.usage().blocks_used)

    assert peak <= layout.peak_blocks(60, step)


def test_groups_give_back_blocks_each_by_its_own_window():
    desk = Desk.paged(80, (4, 4, 4), windows=(None, 8, 2))

    seq = desk.written([1])
    for token in range(2, 41):
        desk.extend(seq, token)

    assert desk.cache.usage().group_blocks == (10, 2, 1)


def test_a_passed_block_that_another_sequence_sees_stays():
    desk = Desk.paged(20, windows=(4,))
    first = desk.written(TEXT[:9])
    desk.running([*TEXT[:8], 1])
    assert desk.cache.usage().blocks_shared == 1

    for token in range(20):
        desk.extend(first, token)

    assert desk.cache.lookup(desk.waiting([*TEXT[:8], 5])).tokens == 8


def test_an_extension_may_use_the_blocks_that_it_gives_back():
    desk = Desk.paged(3, windows=(4,))
    seq = desk.written([1])

    for token in range(40):
        assert desk.extend(seq, token)


def test_an_extension_that_is_refused_gives_nothing_back():
    desk = Desk.paged(8, windows=(4,))
    seq, other = desk.written(TEXT[:12]), desk.written([1] * 13)
    assert other.scheduled == 13
    seq.tokens.extend(range(20))
    before = desk.snapshot()

    assert not desk.cache.extend(seq, 32, desk.step)
    assert desk.snapshot() == before


def test_a_runner_is_not_told_of_blocks_behind_the_window():
    desk = Desk.paged(20, windows=(4,))
    desk.release(desk.written(TEXT))

    seq = desk.running([*TEXT, 1])

    assert desk.blocks(seq)[:5] == [NO_BLOCK] * 5
    assert NO_BLOCK not in desk.blocks(seq)[5:]


# ── prefixes ──────────────────────────────────────────────────────────────────────────────


def evict(desk, group, depth):
    """Forget the cached block `depth` of a group, as if it had been evicted."""
    device = desk.tiers[0]
    (block,) = [b for b in device.keyed() if (b.group, b.depth) == (group, depth)]
    device.withdraw(block)


def test_a_prefix_needs_only_what_the_window_sees_of_its_end():
    desk = Desk.paged(40, (4, 4), windows=(None, 5))
    desk.release(desk.written(TEXT))
    for depth in range(5):
        evict(desk, 1, depth)

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 24


def test_a_prefix_without_its_end_in_a_window_is_shorter():
    desk = Desk.paged(40, (4, 4), windows=(None, 5))
    desk.release(desk.written(TEXT))
    evict(desk, 1, 4)

    hit = desk.cache.lookup(desk.waiting([*TEXT[:21], 1]))

    assert hit.tokens == 16


def test_a_prefix_in_a_window_alone_is_no_prefix():
    desk = Desk.paged(40, (4, 4), windows=(None, 5))
    desk.release(desk.written(TEXT))
    evict(desk, 0, 0)

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 0


def test_a_window_of_one_token_needs_no_prefix_at_all():
    desk = Desk.paged(40, (4, 4), windows=(None, 1))
    desk.release(desk.written(TEXT))
    for depth in range(6):
        evict(desk, 1, depth)

    assert desk.cache.lookup(desk.waiting([*TEXT, 1])).tokens == 24


def test_a_failed_load_of_what_a_window_sees_leaves_nothing_to_reuse():
    desk = Desk.paged(12, windows=(9,), host_blocks=20)
    desk.release(desk.written(TEXT))
    desk.arrive()
    desk.cache._device.clear()
    seq = desk.waiting([*TEXT, 1])
    assert desk.admit(seq)
    assert desk.cache.loading(seq)

    moves = desk.cache.take_moves()
    ready = desk.cache.settle([m.id for m in moves[:1]], [m.id for m in moves[1:]])

    assert ready == {seq.id: 0}
    desk.cache.check()


# ── the engine ────────────────────────────────────────────────────────────────────────────


def test_a_text_may_be_far_longer_than_the_pool_if_all_groups_have_windows():
    driver = Driver.paged(8, windows=(8,), budget=8)

    driver.add(make_request("r", [1] * 90, max_tokens=200))
    driver.run()

    assert len(driver.answers["r", 0].tokens) == 200
    driver.check_answers()


def test_a_pool_holds_texts_as_long_as_its_capacity():
    groups = Groups((4, 4), (None, 8), step_tokens=16)
    longest = capacity(20, groups)
    driver = Driver.paged(20, (4, 4), windows=(None, 8), budget=16)

    driver.add(make_request("r", [1] * (longest - 1), max_tokens=9))
    driver.run()

    assert longest > 20 * 4 // 2
    assert len(driver.answers["r", 0].tokens) == 1


@pytest.mark.parametrize("windows", [(None, 8), (8, 8), (3, None)])
def test_a_prefix_beyond_the_window_is_computed_once(windows):
    driver = Driver.paged(400, (4, 4), windows=windows, budget=512, max_num_seqs=16)
    prefix = [7] * 100

    driver.add_all(make_request(f"r{i}", [*prefix, i], max_tokens=4) for i in range(12))
    driver.run()

    assert driver.scheduler.stats.computed_prompt_tokens == 101 + 11
    driver.check_answers()
