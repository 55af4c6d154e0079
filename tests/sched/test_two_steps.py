"""Two steps in flight: planning ahead changes no text."""

from __future__ import annotations

import pytest

from octavo.contract.batch import Sampled, StepResult
from octavo.contract.ids import PENDING
from octavo.contract.request import FinishReason
from octavo.testing.driver import EOS, Driver, make_request


def pending(batch):
    return [piece.seq for piece in batch.slices if piece.tokens[-1] == PENDING]


def test_a_step_names_the_token_that_the_step_before_is_sampling():
    driver = Driver.paged(40, depth=2)
    driver.add(make_request("r", [1] * 5, max_tokens=4))
    driver.step()
    driver.step()

    second = driver.batches[1]

    assert second.slices[0].tokens == (PENDING,)
    assert second.slices[0].start == 5


def test_one_step_at_a_time_needs_no_such_name():
    driver = Driver.paged(40, depth=1)
    driver.add(make_request("r", [1] * 5, max_tokens=4))

    driver.run()

    assert not any(pending(batch) for batch in driver.batches)


@pytest.mark.parametrize("vocab", [3, 5])
def test_the_token_after_a_stop_is_never_emitted(vocab):
    driver = Driver.paged(100, depth=2, vocab_size=vocab)
    driver.add_all([make_request(f"r{i}", [i], eos=True, seed=i, max_tokens=40) for i in range(6)])

    driver.run()

    driver.check_answers()
    for answer in driver.answers.values():
        assert answer.finish is FinishReason.STOP
        assert answer.tokens.index(EOS) == len(answer.tokens) - 1


def test_a_sequence_that_stopped_writes_once_more_at_most():
    driver = Driver.paged(100, depth=2, vocab_size=3)
    driver.add(make_request("r", [1], eos=True, max_tokens=40))

    driver.run()

    planned = sum(len(piece.samples) for batch in driver.batches for piece in batch.slices)
    assert planned - len(driver.answers["r", 0].tokens) in (0, 1)


def test_nothing_is_planned_beyond_the_last_token():
    driver = Driver.paged(100, depth=2)
    driver.add(make_request("r", [1] * 5, max_tokens=4))

    driver.run()

    samples = sum(len(piece.samples) for batch in driver.batches for piece in batch.slices)
    assert samples == 4


@pytest.mark.parametrize("n", [1, 3])
def test_depth_changes_no_text(n):
    answers = []
    for depth in (1, 2):
        driver = Driver.paged(30, depth=depth, budget=16)
        driver.add_all(
            [make_request(f"r{i}", [i] * 9, n=n, eos=True, max_tokens=30) for i in range(6)]
        )
        driver.run()
        driver.check_answers()
        answers.append(
            {key: (answer.tokens, answer.finish) for key, answer in driver.answers.items()}
        )

    assert answers[0] == answers[1]


def test_an_aborted_sequence_in_flight_brings_no_news():
    driver = Driver.paged(40, depth=2)
    driver.add(make_request("r", [1] * 5))
    driver.step()
    driver.step()

    driver.scheduler.abort("r")

    assert driver.step() == []


def test_a_result_is_applied_in_the_order_of_its_slices():
    driver = Driver.paged(40)
    driver.add_all(make_request(name, [1] * 5, max_tokens=1) for name in ("b", "a"))
    batch = driver.scheduler.plan()
    sampled = {seq: Sampled(7, -0.5) for seq in (1, 0)}

    news = driver.scheduler.apply(batch, StepResult(batch.step, sampled))

    assert [(update.request_id, update.tokens, update.logprob) for update in news] == [
        ("b", (7,), -0.5),
        ("a", (7,), -0.5),
    ]


def test_a_full_block_is_shared_as_soon_as_its_last_token_is_known():
    driver = Driver.paged(40, depth=2)
    driver.add(make_request("first", [1] * 4, max_tokens=8))
    for _ in range(6):
        driver.step()
    text = [1] * 4 + driver.answers["first", 0].tokens[:4]

    driver.add(make_request("second", [*text, 9], max_tokens=1))
    driver.run()

    assert driver.scheduler.stats.prefix_hit_tokens == 8
    driver.check_answers()


def test_the_runner_is_told_which_sequences_ended():
    driver = Driver.paged(40)
    driver.add(make_request("first", [1] * 4, max_tokens=1))
    driver.run()
    driver.add(make_request("second", [2] * 4, max_tokens=1))
    driver.run()

    assert [batch.ended for batch in driver.batches] == [(), (0,)]
