"""Prompts of which a vector is wanted: cut, reused, begun again, and beside texts being written."""

from __future__ import annotations

import pytest

from octavo.contract.pooling import Pooling
from octavo.contract.request import FinishReason
from octavo.sched.limits import Limits
from octavo.testing.driver import Driver, make_cache, make_request
from octavo.testing.fake_runner import FakeRunner, text_digest

TEXT = list(range(1, 15))


def driver(blocks=50, **options):
    limits = Limits(8, options.pop("step", 64), 1000, options.pop("tokens", blocks * 4))
    return Driver(make_cache(blocks), limits=limits, **options)


def ask(name, prompt=TEXT, how="mean", **options):
    return make_request(name, prompt, max_tokens=1, pooling=Pooling(how), **options)


@pytest.mark.parametrize("how", ["mean", "last"])
@pytest.mark.parametrize("step", [64, 5, 1])
@pytest.mark.parametrize("depth", [1, 2])
def test_a_prompt_ends_with_its_vector_and_no_token(how, step, depth):
    made = driver(step=step, depth=depth)
    made.add(ask("a", how=how))
    made.run()

    answer = made.answers["a", 0]
    assert (answer.finish, answer.tokens) == (FinishReason.STOP, [])
    assert answer.embedding == text_digest(TEXT)


def test_of_a_mean_nothing_comes_from_memory_and_of_the_last_token_all_but_one():
    made = driver()
    made.add(make_request("text", TEXT, max_tokens=2))
    made.run()
    before = made.scheduler.stats.computed_prompt_tokens

    made.add(ask("mean"))
    made.run()
    after_mean = made.scheduler.stats.computed_prompt_tokens
    made.add(ask("last", how="last"))
    made.run()

    assert after_mean - before == len(TEXT)
    assert 0 < made.scheduler.stats.computed_prompt_tokens - after_mean < len(TEXT)
    made.check_answers()


def test_what_an_embedded_prompt_has_computed_is_found_by_a_text():
    made = driver()
    made.add(ask("mean"))
    made.run()
    before = made.scheduler.stats.computed_prompt_tokens

    made.add(make_request("text", [*TEXT, 3], max_tokens=2))
    made.run()

    assert made.scheduler.stats.computed_prompt_tokens - before < len(TEXT)


@pytest.mark.parametrize("depth", [1, 2])
def test_vectors_and_texts_come_out_of_the_same_steps_with_little_memory(depth):
    made = driver(blocks=12, step=9, depth=depth)
    for number in range(12):
        prompt = [number % 3, *TEXT[: 5 + number]]
        kind = ask if number % 2 else make_request
        made.add(kind(f"r{number}", prompt))
    made.run()

    made.check_answers()
    assert all(answer.finish is not None for answer in made.answers.values())


def test_a_failed_step_begins_a_mean_again():
    limits, fates = Limits(8, 5, 1000, 200), iter([None, "broken"])
    runner = FakeRunner((4,), fate=lambda batch: next(fates, None))
    made = Driver(make_cache(50), limits=limits, runner=runner)
    made.add(ask("a"))
    made.run()

    assert made.answers["a", 0].embedding == text_digest(TEXT)
