"""Why a prompt was computed reaches its caller once, and the counters of the operator."""

from __future__ import annotations

from random import Random

import pytest

from octavo.testing.driver import Driver, make_request

TEXT = list(range(20, 36))


def answer(driver, request_id, prompt, **options):
    """Run one request; returns the news of it that name a miss."""
    driver.add(make_request(request_id, prompt, **{"max_tokens": 3, **options}))
    updates = []
    while driver.scheduler.busy:
        updates += driver.step()
    return [update for update in updates if update.miss is not None]


def test_the_first_token_tells_why_the_prompt_was_computed():
    driver = Driver.paged(40)

    (update,) = answer(driver, "first", TEXT)

    assert update.tokens == tuple(driver.answers["first", 0].tokens[:1])
    assert (update.miss.reason, update.miss.position, update.miss.tokens) == ("first_seen", 0, 15)
    assert driver.scheduler.stats.misses == {"first_seen": 1}
    assert driver.scheduler.stats.missed_tokens == {"first_seen": 15}


def test_nothing_is_told_of_a_prompt_that_was_found():
    driver = Driver.paged(40)
    answer(driver, "first", TEXT)

    assert answer(driver, "second", TEXT) == []


def test_an_eviction_is_told_in_seconds_of_the_engines_clock():
    driver = Driver.paged(8)
    answer(driver, "first", TEXT)
    answer(driver, "second", [1] * 24)
    now_s = driver.now_s

    (update,) = answer(driver, "third", TEXT)

    assert (update.miss.reason, update.miss.policy) == ("evicted", "lru")
    assert 0 < update.miss.age_s <= now_s


def test_the_counters_name_another_namespace_and_the_caller_is_not_told():
    driver = Driver.paged(40)
    answer(driver, "first", TEXT, salt="one tenant")

    (update,) = answer(driver, "second", TEXT, salt="another")

    assert (update.miss.reason, update.miss.elsewhere) == ("first_seen", ())
    assert driver.scheduler.stats.misses == {"first_seen": 1, "namespace_salt": 1}


def test_each_choice_and_a_search_tell_it_with_their_first_news():
    driver = Driver.paged(80)
    assert [update.index for update in answer(driver, "samples", TEXT, n=3)] == [0, 1, 2]
    prompt = [1, *TEXT]

    (update,) = answer(driver, "beams", prompt, use_beam_search=True, beam_width=2)

    assert (update.index, update.miss.tokens) == (0, 16)


def test_a_prompt_that_has_to_be_scored_misses_nothing():
    driver = Driver.paged(40)
    answer(driver, "first", TEXT)

    assert answer(driver, "second", TEXT, prompt_logprobs=0) == []


def test_what_was_taken_over_later_is_not_missing():
    driver = Driver.paged(80, budget=16)
    driver.add(make_request("leader", [*TEXT, *TEXT, 1]))
    driver.step()
    driver.add(make_request("follower", [*TEXT[:12], 3, *TEXT]))
    driver.run()
    stats = driver.scheduler.stats

    found = stats.prefix_hit_tokens + sum(stats.missed_tokens.values())
    assert found == stats.prefix_query_tokens - 2


@pytest.mark.parametrize("move_failure", [0.0, 0.5])
@pytest.mark.parametrize("seed", range(6))
def test_every_token_was_found_or_is_missing_or_is_the_last(seed, move_failure):
    draw = Random(seed)
    driver = Driver.paged(
        30, depth=2, budget=9, host_blocks=20, random=draw, move_failure=move_failure
    )
    for number in range(40):
        prompt = TEXT[: draw.randint(1, 16)] + [
            draw.randrange(3) for _ in range(draw.randint(0, 9))
        ]
        driver.add(make_request(f"r{number}", prompt, max_tokens=3, salt=draw.choice(("", "x"))))
        for _ in range(draw.randint(0, 4)):
            driver.step()
    driver.run()
    stats = driver.scheduler.stats

    found = stats.prefix_hit_tokens + sum(stats.missed_tokens.values())
    assert found == stats.prefix_query_tokens - 40
    assert all(count >= 0 for count in stats.missed_tokens.values())


@pytest.mark.parametrize(
    "options", [{"use_beam_search": True, "beam_width": 3}, {"n": 3}, {}], ids=["beams", "n", "one"]
)
@pytest.mark.parametrize("failing", range(1, 6))
def test_what_comes_back_after_a_failed_step_is_not_counted_again(options, failing):
    broken = iter(step == failing for step in range(1, 1000))
    driver = Driver.paged(80, budget=8, fate=lambda batch: "broken" if next(broken) else None)
    driver.add(make_request("other", TEXT, max_tokens=12))
    driver.add(make_request("r", [*TEXT, 1, 2, 3], max_tokens=5, **options))

    driver.run()

    stats = driver.scheduler.stats
    found = stats.prefix_hit_tokens + sum(stats.missed_tokens.values())
    assert stats.prefix_query_tokens == len(TEXT) * 2 + 3
    assert found == stats.prefix_query_tokens - 2, "all but the last token of each prompt"
