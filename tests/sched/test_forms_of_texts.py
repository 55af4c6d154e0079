"""A text that a grammar binds has one step in flight, since the next token needs the last one."""

from __future__ import annotations

import pytest

from octavo.contract.ids import PENDING
from octavo.contract.request import FinishReason
from octavo.testing.driver import Driver, make_request
from octavo.testing.fake_grammars import fake_form

PROMPT = [1, 2, 3, 4, 5, 6, 7, 8, 9]
BOUND = {"structured_outputs": fake_form(1)}


def slices_of(driver, seq):
    return [piece for batch in driver.batches for piece in batch.slices if piece.seq == seq]


def test_it_goes_on_every_other_step_and_all_others_in_each():
    driver = Driver.paged(32, depth=2)
    driver.add(make_request("bound", PROMPT, max_tokens=6, **BOUND))
    driver.add(make_request("free", PROMPT[::-1], max_tokens=6))
    driver.run()

    steps = {
        seq: [b.step for b in driver.batches if any(piece.seq == seq for piece in b.slices)]
        for seq in (0, 1)
    }
    # Once the others have ended, it is alone.
    assert steps == {0: [1, 3, 5, 7, 8, 9], 1: [1, 2, 3, 4, 5, 6]}
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_it_never_names_a_token_that_a_step_in_flight_samples(depth):
    driver = Driver.paged(32, depth=depth)
    driver.add(make_request("bound", PROMPT, n=3, max_tokens=6, **BOUND))
    driver.run()

    assert all(PENDING not in piece.tokens for seq in range(3) for piece in slices_of(driver, seq))
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_after_preemption_it_is_what_it_would_have_been(depth):
    driver = Driver.paged(9, depth=depth, storm_guard_tokens=0)
    driver.add_all(make_request(f"r{i}", [i, *PROMPT], max_tokens=14, **BOUND) for i in range(3))
    driver.run()

    assert driver.scheduler.stats.preemptions > 0
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_one_that_is_preempted_while_its_token_is_sampled_waits_for_it(depth):
    driver = Driver.paged(6, depth=depth, order="priority", max_num_seqs=1)
    driver.add(make_request("bound", PROMPT, max_tokens=6, priority=1, **BOUND))
    driver.step()
    driver.add(make_request("urgent", [30, 31], max_tokens=2, priority=0))
    driver.run()

    assert driver.scheduler.stats.preemptions == 1
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_after_a_failed_step_it_is_what_it_would_have_been(depth):
    driver = Driver.paged(32, depth=depth, fate=lambda batch: "lost" if batch.step == 4 else None)
    driver.add(make_request("bound", PROMPT, max_tokens=9, **BOUND))
    driver.add(make_request("free", PROMPT, max_tokens=9))
    driver.run()

    assert driver.scheduler.stats.failed_steps == 1
    assert driver.answers["bound", 0].finish is FinishReason.LENGTH
    driver.check_answers()


@pytest.mark.parametrize("depth", [1, 2])
def test_beams_are_those_of_a_search_among_what_is_allowed(depth):
    driver = Driver.paged(64, depth=depth)
    driver.add(make_request("b", PROMPT, max_tokens=6, use_beam_search=True, beam_width=3, **BOUND))
    driver.add(make_request("free", PROMPT, max_tokens=6))
    driver.run()

    driver.check_answers()
