"""Orders that use what is in memory: siblings run together, and nobody is passed over for ever."""

from __future__ import annotations

from random import Random

import pytest

from octavo import ConfigError
from octavo.build import scheduling_policy
from octavo.config import EngineConfig
from octavo.contract.retention import TenantShare
from octavo.sched.depth_first import DepthFirst
from octavo.sched.limits import Limits
from octavo.sched.longest_prefix import LongestPrefix
from octavo.sched.order import ORDERS
from octavo.testing.calls import calls_of
from octavo.testing.driver import Driver, make_regions, make_request

BLOCK = 4
ORDERS_FOR_HITS = ["longest_prefix", "depth_first"]


def text(number, blocks):
    return [number] * (blocks * BLOCK)


def shuffled(families=6, members=8, *, seed=1, blocks=10):
    """Requests of families that share a prefix, in random order."""
    requests = [
        make_request(f"f{f}-{m}", [*text(f, blocks), 20 + m, f, m], max_tokens=1)
        for f in range(families)
        for m in range(members)
    ]
    Random(seed).shuffle(requests)
    return requests


def served(driver):
    """Run to the end; returns the ids of the requests, in the order in which they ended."""
    ended: list[str] = []
    while driver.scheduler.busy:
        ended += [news.request_id for news in driver.step() if news.finish]
        driver.cache.check()
    driver.check_answers()
    return ended


def driver_of(order, *, blocks=26, max_num_seqs=1, **options):
    return Driver.paged(blocks, order=order, max_num_seqs=max_num_seqs, **options)


def computed(driver):
    return driver.scheduler.stats.computed_prompt_tokens


# ── what they are for ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS_FOR_HITS)
def test_shuffled_families_compute_each_prefix_once(order):
    driver = driver_of(order)
    driver.add_all(shuffled())

    served(driver)

    assert computed(driver) == 6 * 10 * BLOCK + 48 * 3


def test_in_order_of_arrival_they_compute_it_again_and_again():
    driver = driver_of("fcfs")
    driver.add_all(shuffled())

    served(driver)

    assert computed(driver) > 3 * (6 * 10 * BLOCK + 48 * 3)


def test_longest_prefix_takes_the_one_with_most_in_memory():
    driver = driver_of("longest_prefix", blocks=60)
    driver.add(make_request("first", [*text(1, 6), 9], max_tokens=1))
    served(driver)
    driver.add(make_request("none", [*text(2, 3), 9], max_tokens=1))
    driver.add(make_request("short", [*text(1, 2), *text(3, 4)], max_tokens=1))
    driver.add(make_request("long", [*text(1, 5), 8], max_tokens=1))

    assert served(driver) == ["long", "short", "none"]


def test_depth_first_begins_with_the_branch_that_most_wait_on_and_ends_it():
    driver = driver_of("depth_first", blocks=60)
    driver.add(make_request("alone", [*text(1, 3), 9], max_tokens=1))
    for i in range(3):
        driver.add(make_request(f"b{i}", [*text(2, 3), i], max_tokens=1))
        driver.add(make_request(f"c{i}", [*text(2, 2), *text(3, 2), i], max_tokens=1))

    ended = served(driver)

    assert {name[0] for name in ended[:3]} == {"b"}
    assert {name[0] for name in ended[3:6]} == {"c"}
    assert ended[6] == "alone"


def test_a_sibling_that_arrives_late_still_runs_with_its_branch():
    driver = driver_of("depth_first", blocks=60)
    driver.add_all(make_request(f"a{i}", [*text(1, 3), i], max_tokens=1) for i in range(2))
    driver.add_all(make_request(f"b{i}", [*text(2, 3), i], max_tokens=1) for i in range(2))
    driver.step()
    driver.add(make_request("a2", [*text(1, 3), 5], max_tokens=1))

    assert [name[0] for name in served(driver)] == ["a", "a", "b", "b"]


@pytest.mark.parametrize("order", ORDERS_FOR_HITS)
def test_equals_are_served_in_order_of_arrival(order):
    driver = driver_of(order, blocks=60)
    driver.add_all(make_request(f"r{i}", text(i, 2), max_tokens=1) for i in range(9))

    assert served(driver) == [f"r{i}" for i in range(9)]


# ── what they may not do ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS_FOR_HITS)
def test_a_better_class_goes_first_whatever_is_in_memory(order):
    driver = driver_of(order, blocks=60)
    driver.add(make_request("warm", [*text(1, 6), 9], max_tokens=1))
    served(driver)
    driver.add(make_request("known", [*text(1, 6), 8], max_tokens=1, priority=1))
    driver.add(make_request("urgent", text(2, 3), max_tokens=1, priority=0))

    assert served(driver) == ["urgent", "known"]


@pytest.mark.parametrize("bound", [1, 3, 10])
@pytest.mark.parametrize("order", [LongestPrefix, DepthFirst])
def test_nobody_is_passed_over_more_often_than_the_bound(order, bound):
    driver = driver_of(order(max_passed=bound), blocks=60)
    driver.add(make_request("warm", [*text(1, 3), 0], max_tokens=1))
    served(driver)
    driver.add(make_request("cold", text(9, 3), max_tokens=1))
    ended: list[str] = []
    for i in range(40):  # a hot stream that never ends
        driver.add_all(
            make_request(f"hot{i}-{j}", [*text(1, 3), i, j], max_tokens=1) for j in range(2)
        )
        ended += [news.request_id for news in driver.step() if news.finish]

    assert ended.index("cold") == bound


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("order", [LongestPrefix, DepthFirst])
def test_in_any_queue_nobody_is_passed_over_more_often_than_the_bound(order, seed):
    bound, arrivals = 5, shuffled(families=4, members=8, seed=seed, blocks=4)
    driver = driver_of(order(max_passed=bound, window=9), blocks=40)
    place = {request.id: number for number, request in enumerate(arrivals)}
    driver.add_all(arrivals)

    ended = [place[name] for name in served(driver)]

    for number, mine in enumerate(ended):
        assert sum(other > mine for other in ended[:number]) <= bound


def test_a_tenants_hot_prefix_does_not_pass_over_another_tenant():
    driver = driver_of("longest_prefix", blocks=60, tenants=[TenantShare("a"), TenantShare("b")])
    driver.add(make_request("warm", [*text(1, 3), 0], max_tokens=1, tenant="a"))
    served(driver)
    driver.add(make_request("b0", text(2, 3), max_tokens=1, tenant="b"))
    driver.add(make_request("a0", [*text(1, 3), 1], max_tokens=1, tenant="a"))

    assert served(driver) == ["b0", "a0"]


def test_a_preempted_sequence_goes_on_before_others_begin():
    driver = driver_of("longest_prefix", blocks=16, max_num_seqs=4, storm_guard_tokens=1)
    driver.add(make_request("old", text(1, 3), max_tokens=30))
    driver.add(make_request("new", text(2, 3), max_tokens=30))
    driver.add_all(make_request(f"hot{i}", [*text(1, 3), i], max_tokens=9) for i in range(8))

    ended = served(driver)

    assert driver.scheduler.stats.preemptions
    assert set(ended) == {"old", "new", *(f"hot{i}" for i in range(8))}


# ── what they cost ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ORDERS_FOR_HITS)
@pytest.mark.parametrize("places", [4, 99], ids=["places are taken", "blocks are taken"])
def test_a_queue_of_thousands_costs_a_plan_no_more_than_two_hundred(order, places):
    def queued(waiting):
        driver = Driver.paged(40 if places == 4 else 14, order=order, max_num_seqs=places)
        driver.add_all(make_request(f"r{i}", [i % 50] * 20, max_tokens=30) for i in range(waiting))
        driver.step()
        driver.step()
        return driver

    assert calls_of(queued(4_000).scheduler.plan) <= calls_of(queued(200).scheduler.plan) + 50


@pytest.mark.parametrize("order", ORDERS_FOR_HITS)
def test_choosing_again_looks_only_at_the_window(order):
    def turn(waiting):
        driver = driver_of(order, blocks=60)
        driver.add_all(make_request(f"r{i}", [i % 50] * 20, max_tokens=1) for i in range(waiting))
        driver.step()
        driver.step()
        return calls_of(driver.scheduler.plan)

    assert turn(3000) <= turn(200) + 50


# ── how they are chosen ───────────────────────────────────────────────────────────────────


def test_an_order_takes_parameters_as_an_eviction_policy_does():
    config = EngineConfig(scheduling_policy={"name": "depth_first", "max_passed": 50})

    made = scheduling_policy(config.scheduling_policy)()

    assert isinstance(made, DepthFirst)
    assert isinstance(scheduling_policy("{name: longest_prefix, window: 9}")(), LongestPrefix)


@pytest.mark.parametrize(
    ("setting", "told"),
    [
        ("{name: longest_prefix, window: 0}", "longest_prefix: window must be at least 1, got 0"),
        ("{name: depth_first, max_passed: 0}", "max_passed must be at least 1, got 0"),
        ("{name: depth_first, seconds: 3}", r"no parameter 'seconds'; it has: window \(int\)"),
        ("{name: fcfs, window: 3}", "no parameter 'window'; it has: none"),
        ("lpm", "'lpm' is not one of fcfs, priority, longest_prefix, depth_first"),
    ],
)
def test_a_wrong_order_is_told(setting, told):
    with pytest.raises(ConfigError, match=told):
        scheduling_policy(setting)


@pytest.mark.parametrize("name", ORDERS)
def test_every_order_serves_the_contiguous_baselines(name):
    driver = Driver(
        make_regions("oracle", 24, longest=32), limits=Limits(4, 64, 64, 32), order=name
    )
    driver.add_all(make_request(f"r{i}", text(i, 2), max_tokens=3) for i in range(9))

    assert len(served(driver)) == 9
