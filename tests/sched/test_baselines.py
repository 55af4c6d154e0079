"""The contiguous baselines run the same requests to the same answers, and find no prefix."""

from __future__ import annotations

import pytest

from octavo.contract.request import FinishReason
from octavo.memory.reservation import RESERVATIONS
from octavo.sched.limits import Limits
from octavo.testing.driver import Driver, make_regions, make_request

RULES = [name for name, rule in RESERVATIONS.items() if rule.tokens is not None]
PREFIX = list(range(12))


def contiguous(rule, *, blocks=64, depth=1, longest=64, max_num_seqs=8, budget=32):
    cache = make_regions(rule, blocks, longest=longest)
    limits = Limits(max_num_seqs, budget, 10_000, cache.longest)
    return Driver(cache, limits=limits, depth=depth)


def workload():
    return [
        make_request(f"r{i}", [*PREFIX, i], n=1 + i % 3, max_tokens=9, eos=i % 2 == 0, seed=i)
        for i in range(10)
    ]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_the_answers_of_the_paged_engine(rule, depth):
    paged, regions = Driver.paged(64, depth=depth), contiguous(rule, depth=depth)
    for driver in (paged, regions):
        driver.add_all(workload())
        driver.run()

    assert regions.answers == paged.answers
    regions.check_answers()


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_finds_a_prefix(rule):
    driver = contiguous(rule)
    driver.add_all(workload())

    driver.run()

    stats = driver.scheduler.stats
    assert stats.prefix_hit_tokens == 0
    assert stats.copies == 0
    assert stats.computed_prompt_tokens == sum(
        len(request.prompt) * request.sampling.n for request in driver.requests.values()
    )


@pytest.mark.parametrize("rule", RULES)
def test_no_rule_ever_preempts(rule):
    driver = contiguous(rule, blocks=16)
    driver.add_all(workload())

    driver.run()

    assert driver.scheduler.stats.preemptions == 0


@pytest.mark.parametrize("rule", RULES)
def test_the_pool_is_empty_at_the_end(rule):
    driver = contiguous(rule)
    driver.add_all(workload())

    driver.run()

    driver.cache.check()
    assert driver.cache.usage().blocks_used == 0


@pytest.mark.parametrize("rule", RULES)
def test_a_prompt_longer_than_any_region_is_refused(rule):
    driver = contiguous(rule, blocks=12)  # the largest run has eight blocks

    with pytest.raises(ValueError, match="the KV memory holds 32"):
        driver.add(make_request("r", [1] * 32))


@pytest.mark.parametrize("rule", RULES)
def test_an_answer_ends_where_its_region_ends(rule):
    driver = contiguous(rule, blocks=8, longest=32)
    driver.add(make_request("r", [1] * 20, max_tokens=None))

    driver.run()

    assert driver.answers["r", 0].finish is FinishReason.LENGTH
    assert len(driver.answers["r", 0].tokens) == 12


def test_a_static_batch_runs_to_its_end_before_the_next_begins():
    driver = contiguous("static", blocks=32)  # two worst cases
    driver.add_all(make_request(f"r{i}", [i] * 4, max_tokens=2 + 4 * i) for i in range(4))

    driver.run()

    together = [{piece.seq for piece in batch.slices} for batch in driver.batches]
    assert not any(batch & {0, 1} and batch & {2, 3} for batch in together)


def test_the_other_rules_fill_a_place_as_soon_as_it_is_free():
    driver = contiguous("max", blocks=32)
    driver.add_all(make_request(f"r{i}", [i] * 4, max_tokens=2 + 4 * i) for i in range(4))

    driver.run()

    together = [{piece.seq for piece in batch.slices} for batch in driver.batches]
    assert {1, 2} in together
