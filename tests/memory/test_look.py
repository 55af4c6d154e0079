"""What is shown of the memory is what is there, and costs nothing while nobody looks."""

from __future__ import annotations

import pytest

from octavo.contract.memory_view import CellState
from octavo.contract.retention import Retention, TenantShare
from octavo.sched.limits import Limits
from octavo.testing.driver import Driver, make_regions, make_request
from octavo.testing.watcher import Watcher

PROMPT = list(range(1, 12))


def states(watcher, *names):
    counts = watcher.mirror.counts()
    return tuple(counts[CellState[name.upper()]] for name in names)


def test_nothing_is_followed_before_the_first_look_and_after_the_last():
    driver = Driver.paged(20)
    driver.add(make_request("a", PROMPT))
    driver.run()
    pool = driver.cache.device.pool
    assert pool.touched is None

    Watcher(driver.scheduler, driver.cache).check(driver.now_s)
    assert pool.touched == set()

    driver.scheduler.lookout.end()
    assert pool.touched is None


def test_a_second_look_tells_only_what_has_changed():
    driver = Driver.paged(20)
    watcher = Watcher(driver.scheduler, driver.cache)
    driver.add(make_request("a", PROMPT, max_tokens=20))
    assert len(watcher.look(1.0).frame.memory.cells.state) == 20
    driver.step()

    rows = watcher.look(2.0).frame.memory

    assert not rows.whole
    assert len(rows.cells.state) == 3
    assert len(watcher.look(3.0).frame.memory.cells.state) == 0


def test_whoever_has_missed_a_frame_is_shown_everything():
    driver = Driver.paged(20)
    lookout = driver.scheduler.lookout
    first = lookout.frame(1.0, 0)

    assert not lookout.frame(2.0, first.number).memory.whole
    assert lookout.frame(3.0, first.number).memory.whole


def test_a_step_in_flight_shows_its_blocks_as_tentative_until_it_is_applied():
    driver = Driver.paged(20, depth=2)
    watcher = Watcher(driver.scheduler, driver.cache)
    driver.add(make_request("a", PROMPT, max_tokens=4))
    driver.step()

    watcher.check(driver.now_s)
    assert states(watcher, "tentative", "in_use") == (2, 1)

    driver.settle()
    watcher.check(driver.now_s)
    assert states(watcher, "tentative", "in_use") == (0, 3)


def test_shared_cached_and_pinned_blocks_are_told_apart():
    driver = Driver.paged(40, pin_limit=0.5, max_num_seqs=4)
    watcher = Watcher(driver.scheduler, driver.cache)
    driver.add(make_request("pinned", [7] * 9, max_tokens=1, retention=(Retention(pin="x"),)))
    driver.run()
    driver.add(make_request("a", PROMPT, max_tokens=30))
    driver.step()
    driver.add(make_request("b", PROMPT, max_tokens=30))
    driver.step()

    watcher.check(driver.now_s)

    assert states(watcher, "shared", "pinned") == (2, 2)
    shared = {i for i, there in watcher.mirror.holders.items() if len(there) == 2}
    assert {int(watcher.mirror.hits[i]) for i in shared} == {1}


def test_a_copy_on_write_is_told_with_its_step_and_its_blocks():
    driver = Driver.paged(40)
    watcher = Watcher(driver.scheduler, driver.cache)
    watcher.look(0.0)
    driver.add(make_request("a", PROMPT, n=2, max_tokens=5))
    for _ in range(3):
        driver.step()
        copies = driver.batches[-1].copies
        driver.scheduler.lookout.note(copies, driver.batches[-1].step)

    driver.add(make_request("b", [*PROMPT[:7], 30, 31], max_tokens=2))
    driver.step()
    driver.scheduler.lookout.note(driver.batches[-1].copies, driver.batches[-1].step)

    notes = watcher.look(4.0).frame.copies

    assert [note.why for note in notes] == ["fork", "prefix"]
    made = {(one.step, copy.src, copy.dst) for one in driver.batches for copy in one.copies}
    assert {(note.step, note.src, note.dst) for note in notes} == made


def test_facts_tell_hits_and_why_there_were_no_more():
    driver = Driver.paged(40)
    watcher = Watcher(driver.scheduler, driver.cache)
    driver.add(make_request("a", PROMPT, max_tokens=1))
    driver.run()
    driver.add(make_request("b", [*PROMPT[:8], 40, 41, 42], max_tokens=9))
    (before,) = watcher.look(1.0).frame.facts
    driver.step()

    (after,) = watcher.look(2.0).frame.facts

    assert (before.hit, before.miss) == (None, None)
    assert (after.request, after.hit) == ("b", 8)
    assert after.miss is not None
    assert after.miss.reason == "diverged"


def test_a_block_is_told_with_its_text_and_all_of_it_before():
    driver = Driver.paged(40)
    driver.add(make_request("a", PROMPT, max_tokens=9))
    driver.step()
    lookout = driver.scheduler.lookout

    full = lookout.block(1, driver.now_s, prefix=True)
    open_end = lookout.block(2, driver.now_s, prefix=True)

    assert (full.tokens, full.prefix) == (tuple(PROMPT[4:8]), tuple(PROMPT[:8]))
    assert (open_end.key, open_end.tokens, open_end.prefix) == (None, (9, 10, 11), tuple(PROMPT))
    assert lookout.block(40, 0.0, prefix=False) is None
    assert lookout.block(39, 0.0, prefix=False).state is CellState.FREE


def test_blocks_of_several_tenants_name_all_of_them():
    shares = [TenantShare("a"), TenantShare("b")]
    driver = Driver.paged(40, tenants=shares, max_num_seqs=4)
    watcher = Watcher(driver.scheduler, driver.cache)
    for name in ("a", "b"):
        driver.add(make_request(name, PROMPT, max_tokens=20, tenant=name))
        driver.step()

    watcher.check(driver.now_s)

    number = {name: watcher.mirror.tenants.index(name) for name in ("a", "b")}
    sees = {name: set(watcher.mirror.is_tenants(one).nonzero()[0]) for name, one in number.items()}
    assert {0, 1} <= sees["a"] & sees["b"]
    assert sees["a"] - sees["b"]
    assert sees["b"] - sees["a"]


def test_other_rules_are_told_with_what_they_would_reserve():
    driver = Driver.paged(100, max_model_len=64, max_num_seqs=4)
    driver.add(make_request("a", PROMPT, max_tokens=21))
    driver.add(make_request("b", PROMPT, max_tokens=21, ignore_eos=True))
    driver.step()

    frame = driver.scheduler.lookout.frame(1.0, 0)

    told = {one.rule: (one.blocks, one.fits, one.exact) for one in frame.reserved}
    # a: 11 tokens and one so far; b: 11 and 21 in the end.
    assert told["max"] == (2 * 64 // 4, 2, True)
    assert told["pow2"] == (3 + 11, 2, False)
    assert told["oracle"] == (3 + 8, 2, False)
    assert driver.scheduler.lookout.frame(1.5, frame.number).reserved is None


@pytest.mark.parametrize("rule", ["max", "pow2"])
def test_regions_are_shown_too(rule):
    driver = Driver(make_regions(rule, 32), limits=Limits(4, 64, 64, 128))
    watcher = Watcher(driver.scheduler, driver.cache)
    driver.add(make_request("a", PROMPT, max_tokens=20))
    for _ in range(3):
        driver.step()
        watcher.check(driver.now_s)
    driver.run()
    watcher.check(driver.now_s)

    assert states(watcher, "free") == (32,)
