"""Preemption is release, resumption is a prefix hit; nobody notices, and it ends."""

from __future__ import annotations

from collections import Counter

import pytest

from octavo.contract.request import Phase
from octavo.testing.driver import Driver, make_request


def crowd(count, *, prompt=8, max_tokens=40):
    return [
        make_request(f"r{i}", [i] * prompt, max_tokens=max_tokens, seed=i) for i in range(count)
    ]


def crowded(*, blocks=24, count=6, **options):
    """Let more sequences run than can grow to their end."""
    driver = Driver.paged(blocks, **options)
    driver.add_all(crowd(count))
    return driver


@pytest.mark.parametrize("depth", [1, 2])
def test_preempted_requests_are_answered_as_if_nothing_had_happened(depth):
    driver = crowded(depth=depth)

    driver.run()

    assert driver.scheduler.stats.preemptions > 0
    assert all(len(answer.tokens) == 40 for answer in driver.answers.values())
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_streamed_tokens_are_never_repeated_or_lost(depth):
    driver = crowded(depth=depth)
    streamed = {}
    while driver.scheduler.busy:
        for news in driver.step():
            streamed.setdefault((news.request_id, news.index), []).extend(news.tokens)
        driver.check_answers()

    assert streamed == {key: answer.tokens for key, answer in driver.answers.items()}


def test_the_last_come_is_preempted_first():
    driver = crowded()
    while not driver.scheduler.stats.preemptions:
        driver.step()

    left = sorted(piece.seq for piece in driver.batches[-1].slices)
    assert left == list(range(len(left)))
    assert 0 < len(left) < 6


def test_a_victim_resumes_as_a_prefix_hit():
    driver = Driver.paged(12, max_num_seqs=2)
    driver.add(make_request("first", [1] * 8, max_tokens=28))
    driver.add(make_request("second", [2] * 8, max_tokens=28))

    driver.run()

    stats = driver.scheduler.stats
    assert stats.preemptions >= 1
    # Part of the victim's text was overwritten by the first, part of it was found again.
    computed = sum(len(piece.tokens) for batch in driver.batches for piece in batch.slices)
    assert stats.recomputed_tokens < 8 + 28
    assert computed == 2 * (8 + 27) + stats.recomputed_tokens
    driver.check_answers()


def test_cached_tokens_tell_of_the_first_admission_alone():
    driver = crowded()
    cached = set()
    while driver.scheduler.busy:
        cached |= {news.cached_tokens for news in driver.step()}

    assert driver.scheduler.stats.preemptions > 0
    assert cached == {0}


def progress_between_preemptions(driver):
    """Run to the end; return by how much each victim had grown when it was preempted again."""
    phases, length_when_admitted, progress = {}, {}, []
    while driver.scheduler.busy:
        lengths = {seq_id: seq.length for seq_id, seq in alive(driver)}
        driver.step()
        for seq_id, seq in alive(driver):
            before, phases[seq_id] = phases.get(seq_id), seq.phase
            if seq.phase is before or seq_id not in lengths:
                continue
            if seq.phase is Phase.RUNNING:
                length_when_admitted[seq_id] = lengths[seq_id]
            elif seq.preemptions > 1:
                progress.append(lengths[seq_id] - length_when_admitted[seq_id])
    return progress


def alive(driver):
    seqs = {i: driver.scheduler.sequence(i) for i in range(len(driver.requests))}
    return [(seq_id, seq) for seq_id, seq in seqs.items() if seq is not None]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("guard", [2, 8, 16])
def test_a_victim_makes_progress_before_it_is_a_victim_again(guard, depth):
    driver = Driver.paged(40, max_num_seqs=20, storm_guard_tokens=guard, depth=depth)
    driver.add_all(crowd(20, max_tokens=60))

    progress = progress_between_preemptions(driver)

    assert progress
    assert min(progress) >= guard
    driver.check_answers()


def test_a_pool_that_holds_only_one_sequence_serves_all_in_the_end():
    driver = Driver.paged(6, max_num_seqs=4)
    driver.add_all(crowd(4, prompt=3, max_tokens=20))

    driver.run()

    driver.check_answers()
    assert all(len(answer.tokens) == 20 for answer in driver.answers.values())


def test_nothing_stands_still_though_every_victim_is_spared_to_its_end():
    driver = Driver.paged(8, max_num_seqs=4, storm_guard_tokens=10_000)
    driver.add_all(crowd(4, prompt=3, max_tokens=25))

    driver.run()

    driver.check_answers()


@pytest.mark.parametrize("order", ["fcfs", "priority"])
def test_preemptions_are_few(order):
    driver = crowded(blocks=30, count=20, order=order)

    driver.run()

    # Each victim makes 16 tokens of progress or the pool would stand still.
    assert driver.scheduler.stats.preemptions <= 20 * 40 / 16
    driver.check_answers()


def test_forks_survive_preemption():
    driver = Driver.paged(16, max_num_seqs=8)
    driver.add(make_request("r", [1] * 10, n=5, max_tokens=20))

    driver.run()

    assert driver.scheduler.stats.preemptions > 0
    assert all(len(answer.tokens) == 20 for answer in driver.answers.values())
    driver.check_answers()


def test_a_preemption_says_why_and_the_next_token_how_often():
    driver = Driver.paged(12, storm_guard_tokens=1)
    driver.add_all([make_request(f"r{i}", [i + 1, 2, 3], max_tokens=30) for i in range(3)])
    told, last = Counter(), Counter()
    for _ in range(200):
        for update in driver.step():
            told[update.request_id] += update.preemptions
            last[update.request_id] = update.preemptions

    stats = driver.scheduler.stats
    assert set(stats.preemptions_by_reason) == {"no_room"}
    assert stats.preemptions_by_reason["no_room"] == stats.preemptions > 0
    assert sum(told.values()) == stats.preemptions
    assert told["r0"] == 0
    assert sum(last.values()) == 0, "news come with what comes next, not at the end"
