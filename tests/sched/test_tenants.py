"""Tenants at the door: who waits for whom, who is displaced for whom, and a pinned rulebook."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason
from octavo.contract.retention import Retention, TenantShare
from octavo.errors import RequestError
from octavo.testing.driver import Driver, make_request

BLOCK = 4


def driver_of(blocks, *shares, **options):
    tenants = [TenantShare(*share) for share in shares]
    return Driver.paged(blocks, tenants=tenants, budget=512, **options)


def request(name, tenant, number, blocks, **options):
    """A request that is promised so many blocks."""
    prompt = [number % 50] * (blocks * BLOCK - 1)
    return make_request(name, prompt, tenant=tenant, salt=name, **({"max_tokens": 1} | options))


def running(driver):
    """Requests that computed something in the last step."""
    seqs = [driver.scheduler.sequence(piece.seq) for piece in driver.batches[-1].slices]
    return [seq.request.id for seq in seqs if seq is not None]


def test_a_request_beyond_its_tenants_maximum_waits_and_holds_up_no_other_tenant():
    driver = driver_of(40, ("a", 0.0, 0.25), max_num_seqs=20)
    driver.add_all(request(f"a{i}", "a", i, 5, max_tokens=9) for i in range(6))
    driver.add_all(request(f"d{i}", "default", 20 + i, 5, max_tokens=9) for i in range(2))

    driver.step()

    assert running(driver) == ["a0", "a1", "d0", "d1"]
    driver.run()
    driver.check_answers()


def test_ten_thousand_requests_of_a_full_tenant_do_not_hide_another_tenants_request():
    driver = driver_of(40, ("a", 0.0, 0.25), max_num_seqs=4)
    driver.add_all(request(f"a{i}", "a", i, 8, max_tokens=9) for i in range(10_000))
    driver.step()

    driver.add(request("d", "default", 1, 5, max_tokens=9))
    driver.step()

    assert running(driver) == ["a0", "d"]


def test_a_tenant_within_its_guarantee_does_not_wait_for_a_request_that_finds_no_room():
    driver = driver_of(40, ("a", 0.3), ("b",), max_num_seqs=20)
    driver.add(request("b0", "b", 1, 20, max_tokens=9))
    driver.add(request("d0", "default", 2, 24, max_tokens=9))
    driver.add(request("a0", "a", 3, 10, max_tokens=9))
    driver.add(request("b1", "b", 4, 3, max_tokens=9))

    driver.step()

    assert running(driver) == ["b0", "a0"]


@pytest.mark.parametrize("leave", ["abort", "pause"])
def test_who_waits_behind_another_tenants_request_is_admitted_once_that_no_longer_waits(leave):
    driver = driver_of(40, ("b",), ("c",), max_num_seqs=20)
    driver.add(request("b0", "b", 1, 20, max_tokens=30))
    driver.add(request("d0", "default", 2, 24, max_tokens=9))
    driver.add(request("c0", "c", 3, 5, max_tokens=9))
    driver.step()
    assert running(driver) == ["b0"]

    if leave == "abort":
        driver.scheduler.abort("d0")
    else:
        driver.scheduler.pause("d0", 0)
    driver.step()

    assert running(driver) == ["b0", "c0"]


def test_who_waits_for_room_that_a_guarantee_keeps_gets_it_once_the_cache_is_cleared():
    driver = driver_of(40, ("b", 0.5), max_num_seqs=20)
    driver.add(request("b0", "b", 1, 20))
    driver.run()
    driver.add(request("d0", "default", 2, 11, max_tokens=30))
    driver.add(request("d1", "default", 3, 12, max_tokens=9))
    driver.step()
    driver.step()
    assert running(driver) == ["d0"]

    driver.scheduler.clear_cache()
    driver.step()

    assert running(driver) == ["d0", "d1"]


def test_where_all_stand_still_nobody_within_a_guarantee_is_displaced():
    driver = driver_of(40, ("b", 0.5), order="priority", max_num_seqs=9, storm_guard_tokens=4)
    driver.add_all(
        make_request(name, [i] * tokens, tenant=tenant, salt=name, priority=5, max_tokens=20)
        for i, (name, tenant, tokens) in enumerate(
            (("a1", "default", 57), ("a2", "default", 51), ("b1", "b", 37))
        )
    )
    driver.step()
    driver.add(request("urgent", "default", 4, 5))
    driver.step()
    driver.step()
    driver.scheduler.pause("a2", 0)  # just back, it is spared
    before = driver.scheduler.stats.preemptions

    for _ in range(6):
        driver.step()

    assert running(driver) == ["a1", "b1"]
    assert driver.scheduler.stats.preemptions == before + 1
    driver.scheduler.resume("a2", 0)
    driver.run()
    driver.check_answers()


@pytest.mark.parametrize("first", ["ended", "running"])
def test_a_prefix_that_others_go_on_using_takes_nothing_of_its_writers_guarantee(first):
    driver = driver_of(40, ("c", 0.2, 0.2))
    shared = [2] * (4 * BLOCK)
    driver.add(make_request("c0", shared, tenant="c", max_tokens=1 if first == "ended" else 3))
    if first == "ended":
        driver.run()
    users = 0
    for step in range(60):
        while sum(driver.answers[f"d{i}", 0].finish is None for i in range(users)) < 2:
            driver.add(make_request(f"d{users}", [*shared, users % 50, 7], max_tokens=6))
            users += 1
        if step == 5:
            driver.add(make_request("c1", [3] * 23, tenant="c", max_tokens=4))
        driver.step()
        driver.cache.check()

    assert driver.answers["c1", 0].finish is FinishReason.LENGTH
    assert driver.batches[6].slices[-1].tokens[0] == 3  # at once
    driver.check_answers()


def test_tenants_that_outgrow_together_what_a_guarantee_leaves_go_on():
    driver = driver_of(20, ("a", 0.5), ("c", 0.0, 0.4))
    driver.add(request("a0", "a", 1, 10))
    driver.run()
    shared = [2] * (4 * BLOCK)
    driver.add(make_request("c0", shared, tenant="c", max_tokens=1))
    driver.run()
    # Both may grow to seven blocks; beside a's there are ten.
    driver.add(make_request("c1", [3] * 7, tenant="c", max_tokens=20))
    driver.add(make_request("d", [*shared, 4, 4, 4], max_tokens=12))

    driver.run(200)

    driver.check_answers()
    assert driver.scheduler.stats.preemptions
    account = driver.cache.usage().tenant_blocks
    assert dict(account)["a"] == 10


def test_a_tenant_that_grows_beyond_its_maximum_displaces_its_own():
    driver = driver_of(20, ("a", 0.0, 0.5), max_num_seqs=9, storm_guard_tokens=1)
    driver.add_all(
        make_request(f"a{i}", [i] * 7, max_tokens=25, tenant="a", salt=str(i)) for i in range(3)
    )
    driver.add(make_request("d", [9] * 7, max_tokens=20))

    for _ in range(19):
        driver.step()
        driver.cache.check()
        assert "d" in running(driver)

    assert driver.scheduler.stats.preemptions
    driver.run()
    driver.check_answers()


def test_an_urgent_request_whose_text_is_arriving_does_not_keep_others_from_displacing():
    driver = driver_of(20, order="priority", max_num_seqs=9, host_blocks=40)
    driver.add(make_request("before", [49] * 32, max_tokens=1))
    driver.run()
    driver.add_all(request(f"slow{i}", "default", i, 9, priority=5, max_tokens=9) for i in (1, 2))
    for _ in range(3):
        driver.step()

    urgent = {"priority": 0, "max_tokens": 9}
    driver.add_all(make_request(name, [49] * 32 + [1], **urgent) for name in ("loads", "follows"))
    driver.add(request("other", "default", 4, 9, **urgent))
    driver.step()

    assert running(driver) == ["other"]
    driver.run()
    driver.check_answers()


def test_a_guarantee_protects_running_requests_from_urgent_ones_of_others():
    driver = driver_of(20, ("a", 0.5), ("b",), order="priority", max_num_seqs=9)
    driver.add(request("a0", "a", 1, 10, priority=5, max_tokens=9))
    driver.step()
    driver.add(request("b0", "b", 2, 10, priority=5, max_tokens=9))
    driver.step()

    driver.add(request("b1", "b", 3, 8, priority=0, max_tokens=9))
    driver.step()

    assert running(driver) == ["b1", "a0"]
    driver.run()
    driver.check_answers()


def test_an_urgent_request_passes_over_those_whose_blocks_their_guarantee_keeps():
    driver = driver_of(30, ("c", 0.4), order="priority", max_num_seqs=9)
    for name, tenant, blocks in (("d", "default", 12), ("c1", "c", 8), ("c2", "c", 8)):
        driver.add(request(name, tenant, blocks, blocks, priority=5, max_tokens=9))
        driver.step()

    driver.add(request("urgent", "default", 4, 10, priority=0, max_tokens=9))
    driver.step()

    # c2 gives four blocks back, d the rest; c1 would give none.
    assert "urgent" in running(driver)
    assert driver.scheduler.stats.preemptions == 2
    driver.run()
    driver.check_answers()


def test_an_urgent_request_beyond_its_maximum_displaces_nobody_elses():
    driver = driver_of(20, ("a", 0.0, 0.5), order="priority", max_num_seqs=9)
    driver.add(request("d", "default", 1, 8, priority=5, max_tokens=9))
    driver.add(request("a0", "a", 2, 8, priority=1, max_tokens=9))
    driver.step()

    driver.add(request("a1", "a", 3, 8, priority=0, max_tokens=9))
    driver.step()

    assert set(running(driver)) == {"d", "a1"}


def test_an_urgent_request_that_is_paused_does_not_keep_others_of_its_tenant_from_displacing():
    driver = driver_of(20, order="priority", max_num_seqs=9)
    driver.add_all(request(f"slow{i}", "default", i, 9, priority=5, max_tokens=9) for i in (1, 2))
    driver.step()
    driver.add(request("paused", "default", 3, 8, priority=0, max_tokens=9))
    driver.scheduler.pause("paused", 0)

    driver.add(request("urgent", "default", 4, 8, priority=0, max_tokens=9))
    driver.step()

    assert running(driver) == ["urgent", "slow1"]


def test_a_request_that_just_fits_into_its_tenants_maximum_is_taken():
    driver = driver_of(20, ("a", 0.0, 0.25))

    driver.add(request("r", "a", 1, 5))
    driver.run()

    assert driver.answers["r", 0].finish is FinishReason.LENGTH


def test_a_request_that_can_never_fit_is_refused_at_once():
    driver = driver_of(20, ("a", 0.0, 0.25))

    with pytest.raises(RequestError, match="tenant 'a'"):
        driver.add(request("r", "a", 1, 6))
    assert not driver.scheduler.busy


def test_an_unknown_tenant_is_refused_at_once():
    with pytest.raises(RequestError, match="'nobody' is not one of default"):
        driver_of(20).add(request("r", "nobody", 1, 2))


def test_output_is_cut_where_the_tenants_share_ends():
    driver = driver_of(20, ("a", 0.0, 0.25))
    driver.add(make_request("r", [1] * 7, max_tokens=None, tenant="a"))

    driver.run()

    assert len(driver.answers["r", 0].tokens) == 5 * BLOCK - 7
    assert driver.answers["r", 0].finish is FinishReason.LENGTH


# ── pins ──────────────────────────────────────────────────────────────────────────────────

RULEBOOK = [i % 47 for i in range(16 * BLOCK)]
BLOCKS = 40


def rulebook_under_pressure(*, requests, pin, depth=2):
    """Ask over a rulebook, while other texts fill the memory between two questions."""
    driver = Driver.paged(
        BLOCKS, depth=depth, max_num_seqs=4, budget=512, pin_limit=0.4 if pin else 0.0
    )
    retention = (Retention(end=len(RULEBOOK), pin="rulebook"),) if pin else ()
    for i in range(requests):
        question = [i % 50, i // 50, 7]
        driver.add(make_request(f"r{i}", [*RULEBOOK, *question], max_tokens=1, retention=retention))
        driver.run()
        driver.add_all(
            make_request(f"o{i}-{j}", [48, i % 50, j, i // 50] + [48] * 84, max_tokens=1)
            for j in range(2)
        )
        driver.run()
    driver.check_answers()
    driver.cache.check()
    return driver


def computed_of_rulebook(driver):
    """Tokens of the rulebook that some step computed."""
    return sum(
        max(0, min(piece.start + len(piece.tokens), len(RULEBOOK)) - piece.start)
        for batch in driver.batches
        for piece in batch.slices
        if piece.tokens[:BLOCK] == tuple(RULEBOOK[piece.start : piece.start + BLOCK])
    )


def test_a_thousand_requests_over_a_pinned_rulebook_compute_it_once():
    driver = rulebook_under_pressure(requests=1000, pin=True)

    assert computed_of_rulebook(driver) == len(RULEBOOK)
    assert driver.cache.usage().blocks_pinned == len(RULEBOOK) // BLOCK


def test_without_the_pin_each_of_them_computes_it():
    driver = rulebook_under_pressure(requests=20, pin=False)

    assert computed_of_rulebook(driver) == 20 * len(RULEBOOK)


def test_pins_are_let_go_by_name_and_their_room_is_used_at_once():
    driver = Driver.paged(40, pin_limit=0.25, max_num_seqs=4, budget=512)
    driver.add(request("r", "default", 1, 10, retention=(Retention(pin="x"),)))
    driver.run()
    driver.add(request("first", "default", 2, 20, max_tokens=9))
    driver.add(request("second", "default", 3, 18, max_tokens=9))
    driver.step()
    assert running(driver) == ["first"]

    assert driver.scheduler.unpin(name="x") == 9
    driver.step()

    assert running(driver) == ["first", "second"]


def test_a_pin_that_ends_by_time_lets_a_waiting_request_in():
    driver = Driver.paged(40, pin_limit=0.25, max_num_seqs=4, budget=512)
    driver.add(request("r", "default", 1, 10, retention=(Retention(pin="x", ttl_s=4),)))
    driver.run()
    driver.add(request("first", "default", 2, 20, max_tokens=20))
    driver.add(request("second", "default", 3, 18, max_tokens=20))

    seen = []
    for _ in range(8):
        driver.step()
        seen.append(len(running(driver)))

    assert seen[0] == 1
    assert max(seen) == 2


def test_an_aborted_request_leaves_its_pin_to_its_time():
    driver = Driver.paged(40, pin_limit=0.5)
    driver.add(request("r", "default", 1, 10, max_tokens=9, retention=(Retention(pin="x"),)))
    driver.step()
    driver.scheduler.abort("r")

    assert driver.cache.usage().blocks_pinned == 9
    driver.now_s += 3700
    driver.add(request("other", "default", 2, 1))
    driver.run()
    assert driver.cache.usage().blocks_pinned == 0
    driver.cache.check()


def test_a_pinned_prefix_of_one_tenant_does_not_starve_another():
    driver = driver_of(40, ("a", 0.0, 0.5), ("b", 0.25), pin_limit=0.5, max_num_seqs=8)
    pinned = [[1] * 36, [2] * 36]
    driver.add(
        make_request("a0", pinned[0], max_tokens=1, tenant="a", retention=(Retention(pin="x"),))
    )
    driver.run()
    with pytest.raises(RequestError, match="of at most 10 are pinned by tenant 'a'"):
        driver.add(
            make_request("a1", pinned[1], max_tokens=1, tenant="a", retention=(Retention(pin="y"),))
        )

    driver.add_all(request(f"b{i}", "b", i, 8, max_tokens=2) for i in range(6))
    driver.run()

    assert all(a.finish is FinishReason.LENGTH for a in driver.answers.values())
