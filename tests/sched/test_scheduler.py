"""The scheduler's promises: limits, order, refusals, abort."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason
from octavo.errors import RequestError
from octavo.testing.driver import Driver, make_request


def tokens_of(batch):
    return sum(len(piece.tokens) for piece in batch.slices)


def load(count, *, length=20, max_tokens=6):
    return [make_request(f"r{i}", [i % 50] * length, max_tokens=max_tokens) for i in range(count)]


@pytest.mark.parametrize("depth", [1, 2])
def test_every_request_is_answered_right(depth):
    driver = Driver.paged(200, depth=depth)
    driver.add_all(load(12))

    driver.run()

    driver.check_answers()
    assert all(len(answer.tokens) == 6 for answer in driver.answers.values())


@pytest.mark.parametrize("budget", [1, 7, 64])
def test_a_step_never_computes_more_than_the_budget(budget):
    driver = Driver.paged(200, budget=budget)
    driver.add_all(load(12))

    driver.run()

    assert max(map(tokens_of, driver.batches)) <= budget
    driver.check_answers()


@pytest.mark.parametrize("most", [1, 3])
def test_never_more_sequences_run_than_allowed(most):
    driver = Driver.paged(200, max_num_seqs=most)
    driver.add_all(load(8))
    running = []
    while driver.scheduler.busy:
        driver.step()
        running.append(driver.scheduler.queue_lengths[0])

    assert max(running) == most
    assert driver.scheduler.stats.running_peak == most


@pytest.mark.parametrize("n", [2, 9])
def test_forks_count_as_sequences(n):
    driver = Driver.paged(200, max_num_seqs=3)
    driver.add(make_request("r", [1] * 9, n=n))

    driver.run()

    assert driver.scheduler.stats.running_peak <= 3
    assert all(answer.finish is FinishReason.LENGTH for answer in driver.answers.values())
    driver.check_answers()


def test_a_long_prompt_is_computed_in_chunks():
    driver = Driver.paged(200, budget=16)
    driver.add(make_request("r", list(range(40)), max_tokens=1))

    driver.run()

    assert [tokens_of(batch) for batch in driver.batches] == [16, 16, 8]


def test_only_the_chunk_that_ends_the_prompt_asks_for_a_token():
    driver = Driver.paged(200, budget=16)
    driver.add(make_request("r", list(range(40)), max_tokens=1))

    driver.run()

    samples = [len(piece.samples) for batch in driver.batches for piece in batch.slices]
    assert samples == [0, 0, 1]


def test_the_first_come_is_served_first():
    driver = Driver.paged(200, max_num_seqs=1)
    driver.add_all(load(4))
    ended = []
    while driver.scheduler.busy:
        ended += [news.request_id for news in driver.step() if news.finish]

    assert ended == ["r0", "r1", "r2", "r3"]


def test_nobody_overtakes_a_request_that_does_not_fit_yet():
    driver = Driver.paged(10)
    driver.add(make_request("running", [1] * 20, max_tokens=8))
    driver.step()
    driver.add(make_request("large", [2] * 30, max_tokens=2))
    driver.add(make_request("small", [3] * 2, max_tokens=2))
    ended = []
    while driver.scheduler.busy:
        ended += [news.request_id for news in driver.step() if news.finish]

    assert ended[0] == "running"
    assert driver.scheduler.stats.preemptions == 0


def test_a_newcomer_joins_a_running_batch():
    driver = Driver.paged(200)
    driver.add(make_request("old", [1] * 9, max_tokens=20))
    driver.step()
    driver.add(make_request("new", [2] * 9, max_tokens=2))

    driver.step()

    assert len(driver.batches[-1].slices) == 2


def test_there_is_nothing_to_plan_without_requests():
    driver = Driver.paged(20)

    assert driver.scheduler.plan() is None
    assert not driver.scheduler.busy


def test_the_end_token_ends_a_request_that_does_not_ignore_it():
    driver = Driver.paged(200, vocab_size=4)
    driver.add_all(
        [make_request(f"r{i}", [i, 1], eos=True, seed=i, max_tokens=40) for i in range(4)]
    )

    driver.run()

    driver.check_answers()
    assert {answer.finish for answer in driver.answers.values()} == {FinishReason.STOP}


# ── how much a request may write ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("max_tokens", "context", "blocks", "effective"),
    [
        (8, 1000, 100, 8),
        (500, 30, 100, 20),
        (500, 1000, 10, 30),
        (None, 1000, 10, 30),
        (None, 35, 10, 25),
        (1, 11, 10, 1),
    ],
)
def test_the_effective_maximum_is_the_least_of_three(max_tokens, context, blocks, effective):
    driver = Driver.paged(blocks, max_model_len=context)
    request = make_request("r", [1] * 10, max_tokens=max_tokens)

    assert driver.scheduler.add(request) == effective


def test_a_request_writes_exactly_its_effective_maximum():
    driver = Driver.paged(10, max_model_len=35)
    driver.add(make_request("r", [1] * 10, max_tokens=None))

    driver.run()

    answer = driver.answers["r", 0]
    assert (len(answer.tokens), answer.finish) == (25, FinishReason.LENGTH)


def test_a_prompt_that_fills_the_context_is_refused_with_the_numbers():
    driver = Driver.paged(100, max_model_len=20)

    with pytest.raises(RequestError, match="the prompt has 20 tokens and the context 20"):
        driver.scheduler.add(make_request("r", [1] * 20))


def test_a_prompt_that_fills_the_memory_is_refused_with_the_numbers():
    driver = Driver.paged(5)

    with pytest.raises(RequestError, match="the prompt has 20 tokens and the KV memory holds 20"):
        driver.scheduler.add(make_request("r", [1] * 20))


def test_a_prompt_with_room_for_one_token_is_accepted():
    driver = Driver.paged(5)
    driver.add(make_request("r", [1] * 19))

    driver.run()

    assert len(driver.answers["r", 0].tokens) == 1


def test_an_empty_prompt_is_refused():
    with pytest.raises(RequestError, match="the prompt is empty"):
        Driver.paged(5).scheduler.add(make_request("r", []))


def test_an_id_in_use_is_refused_and_the_first_goes_on():
    driver = Driver.paged(20)
    driver.add(make_request("r", [1] * 5))

    with pytest.raises(RequestError, match="'r' is in use"):
        driver.scheduler.add(make_request("r", [2] * 5))

    driver.run()
    driver.check_answers()


def test_an_id_can_be_used_again_after_its_end():
    driver = Driver.paged(20)
    for _ in range(2):
        driver.add(make_request("r", [1] * 5))
        driver.run()

    driver.check_answers()


def test_a_refused_request_leaves_nothing_behind():
    driver = Driver.paged(5)

    with pytest.raises(RequestError):
        driver.scheduler.add(make_request("r", [1] * 20))

    assert not driver.scheduler.busy
    assert driver.scheduler.queue_lengths == (0, 0)


# ── abort ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("steps", range(6))
def test_an_abort_at_any_moment_gives_every_block_back(depth, steps):
    driver = Driver.paged(40, depth=depth, budget=8)
    driver.add(make_request("r", [1] * 20, n=3, max_tokens=9))
    for _ in range(steps):
        driver.step()

    driver.scheduler.abort("r")

    driver.cache.check()
    assert driver.cache.usage().blocks_used == 0
    driver.run()
    driver.cache.check()


def test_an_abort_of_a_waiting_request_lets_the_next_one_in():
    driver = Driver.paged(40, max_num_seqs=1)
    driver.add_all(load(3))
    driver.step()

    driver.scheduler.abort("r1")

    driver.run()
    assert driver.answers["r1", 0].tokens == []
    assert driver.answers["r2", 0].finish is FinishReason.LENGTH


def test_an_unknown_id_is_aborted_without_effect():
    driver = Driver.paged(40)

    driver.scheduler.abort("nobody")
    driver.scheduler.finish("nobody", 0)

    assert not driver.scheduler.busy


def test_finishing_one_choice_leaves_the_others():
    driver = Driver.paged(40)
    driver.add(make_request("r", [1] * 6, n=3))
    driver.step()

    driver.scheduler.finish("r", 1)

    driver.run()
    lengths = [len(driver.answers["r", index].tokens) for index in range(3)]
    assert lengths == [8, 1, 8]
