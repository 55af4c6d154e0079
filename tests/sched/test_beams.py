"""Beam search through the scheduler: right texts, shared history, all beams together."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason, Phase
from octavo.errors import RequestError
from octavo.sched.limits import Limits
from octavo.testing.driver import EOS, Driver, make_regions, make_request

PROMPT = list(range(1, 20))


def beam_request(name="b", prompt=PROMPT, *, width=4, **options):
    return make_request(name, prompt, use_beam_search=True, beam_width=width, **options)


def outputs(driver, name="b"):
    return [a.tokens for (owner, _), a in sorted(driver.answers.items()) if owner == name]


# ── the texts ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("early", [True, False, "never"])
@pytest.mark.parametrize("penalty", [-1.0, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_a_search_finds_what_the_books_find(width, penalty, early):
    driver = Driver.paged(200)

    driver.add(
        beam_request(
            width=width, length_penalty=penalty, early_stopping=early, max_tokens=12, eos=True
        )
    )
    driver.run()

    driver.check_answers()
    assert len({tuple(tokens) for tokens in outputs(driver)}) == width


def test_a_search_of_width_one_is_greedy():
    driver = Driver.paged(200)

    driver.add(beam_request(width=1, max_tokens=6))
    driver.run()

    assert len(outputs(driver)) == 1
    driver.check_answers()


def test_stop_tokens_end_a_text_as_the_end_token_does():
    driver = Driver.paged(200)

    driver.add(beam_request(stop_token_ids=(3, 7, 11), max_tokens=40, eos=True))
    driver.run()

    driver.check_answers()
    ends = {EOS, 3, 7, 11}
    for answer in driver.answers.values():
        assert answer.finish in (FinishReason.STOP, FinishReason.LENGTH)
        assert (answer.tokens[-1] in ends) == (answer.finish is FinishReason.STOP)
        assert not ends & set(answer.tokens[:-1])


def test_nothing_is_heard_of_a_search_before_its_end():
    driver = Driver.paged(200)
    driver.add(beam_request(max_tokens=9))

    for _ in range(5):
        assert driver.step() == []

    driver.run()
    assert all(answer.finish for answer in driver.answers.values())


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("budget", [4, 5, 16])
def test_prompts_in_chunks_and_prefix_hits_change_nothing(budget, depth):
    driver = Driver.paged(200, budget=budget, depth=depth, max_num_seqs=20)

    driver.add_all(beam_request(f"b{i}", [*PROMPT, i], max_tokens=7) for i in range(4))
    driver.add(make_request("plain", PROMPT))
    driver.run()

    driver.check_answers()
    assert driver.scheduler.stats.prefix_hit_tokens > 0


# ── memory ────────────────────────────────────────────────────────────────────────────────


def test_beams_share_their_common_history():
    driver = Driver.paged(200)
    driver.add(beam_request(prompt=[5] * 100, max_tokens=8))

    for _ in range(8):
        driver.step()
        usage = driver.cache.usage()

    assert usage.blocks_logical >= 4 * 25
    assert usage.blocks_used <= 25 + 4 * 3


def test_losers_are_freed_in_the_step_that_decides_against_them():
    driver = Driver.paged(200)
    driver.add(beam_request(max_tokens=12))

    for _ in range(10):
        driver.step()
        running = driver.scheduler.queue_lengths[0]
        assert running == 4
        assert len(driver.cache._tables) <= 4


def test_a_diverging_beam_copies_the_partial_block_and_no_more():
    driver = Driver.paged(200)
    driver.add(beam_request(prompt=[5] * 101, max_tokens=2))

    driver.run()

    assert driver.scheduler.stats.copies == 3


def test_a_search_whose_beams_find_no_room_is_preempted_and_resumed_as_one():
    driver = Driver.paged(24, order="priority", max_num_seqs=8)
    driver.add(beam_request(priority=1, max_tokens=16))
    for _ in range(6):
        driver.step()

    driver.add(make_request("urgent", [9] * 80, priority=0, max_tokens=4))
    driver.step()
    search = next(iter(driver.scheduler._roster._searches.values()))
    assert [seq.phase for seq in search.members] == [Phase.WAITING] + [Phase.PARKED] * 3
    driver.run()

    assert driver.scheduler.stats.preemptions == 1
    driver.check_answers()


def test_a_search_takes_all_of_its_places_when_it_is_admitted():
    driver = Driver.paged(200, max_num_seqs=4)

    driver.add(make_request("plain", [1, 2, 3], max_tokens=5))
    driver.add(beam_request(max_tokens=3))
    driver.step()

    assert driver.scheduler.queue_lengths == (1, 1)
    driver.run()
    driver.check_answers()


def test_a_failed_step_costs_a_search_nothing_but_time():
    fails = iter([False, False, True, False, False, True] + [False] * 99)
    driver = Driver.paged(200, fate=lambda batch: "broken" if next(fails) else None)

    driver.add(beam_request(max_tokens=9))
    driver.run()

    assert driver.scheduler.stats.failed_steps == 2
    errors = [answer.finish for answer in driver.answers.values()]
    assert errors == [FinishReason.ERROR] * 4


def test_one_failed_step_is_tried_again():
    fails = iter([False, False, True] + [False] * 99)
    driver = Driver.paged(200, fate=lambda batch: "broken" if next(fails) else None)

    driver.add(beam_request(max_tokens=9))
    driver.run()

    driver.check_answers()
    assert all(answer.error is None for answer in driver.answers.values())


def test_an_aborted_search_gives_everything_back():
    driver = Driver.paged(200)
    driver.add(beam_request(max_tokens=9))
    for _ in range(4):
        driver.step()

    driver.scheduler.abort("b")

    assert driver.cache.usage().blocks_used == 0
    assert not driver.scheduler.busy


def test_a_pool_that_just_holds_the_beams_is_enough():
    driver = Driver.paged(5 + 4 * 2, budget=8)

    driver.add(beam_request(prompt=[5] * 20, max_tokens=8))
    driver.run()

    driver.check_answers()
    assert all(answer.error is None for answer in driver.answers.values())


# ── what cannot work ──────────────────────────────────────────────────────────────────────


def test_a_search_wider_than_a_step_is_refused():
    driver = Driver.paged(200, budget=3)

    with pytest.raises(RequestError, match="beam_width is 4, but max_num_batched_tokens is 3"):
        driver.add(beam_request())


def test_a_search_wider_than_the_engine_is_refused():
    driver = Driver.paged(200, max_num_seqs=2)

    with pytest.raises(RequestError, match="beam_width is 4, but max_num_seqs is 2"):
        driver.add(beam_request())


def test_a_search_that_can_never_fit_is_refused():
    driver = Driver.paged(6)

    with pytest.raises(RequestError, match="4 beams after a prompt of 19 tokens may need more"):
        driver.add(beam_request())


def test_beams_may_count_on_no_more_than_what_all_groups_of_layers_share():
    """A beam that comes back finds a prefix that ends at a block's end in every group: none."""
    driver = Driver.paged(10, (6, 4))
    with pytest.raises(RequestError, match="4 beams after a prompt of 4 tokens may need more"):
        driver.add(beam_request(prompt=[1, 2, 3, 4], max_tokens=2))

    wider = Driver.paged(12, (6, 4))
    wider.add(beam_request(prompt=[1, 2, 3, 4], max_tokens=2))
    wider.run()
    wider.check_answers()


def test_a_refusal_with_windows_says_that_nothing_shared_is_counted():
    driver = Driver.paged(12, windows=(8,), budget=64)

    with pytest.raises(RequestError, match="counted without what they share"):
        driver.add(beam_request())


def test_contiguous_regions_refuse_beams():
    cache = make_regions("max", 64)
    driver = Driver(cache, limits=Limits(8, 64, 1000, cache.longest))

    with pytest.raises(RequestError, match="use reservation on_demand"):
        driver.add(beam_request())
