"""What a plan costs does not grow with the queue."""

from __future__ import annotations

import pytest

from octavo.sched.limits import Limits
from octavo.testing.calls import calls_of
from octavo.testing.driver import Driver, make_cache, make_request


class CountingCache:
    """Passes every call on and counts look-ups."""

    def __init__(self, cache):
        self._cache = cache
        self.lookups = 0

    def lookup(self, seq):
        self.lookups += 1
        return self._cache.lookup(seq)

    def __getattr__(self, name):
        return getattr(self._cache, name)


def queued(waiting, *, order="fcfs", blocks=40, max_num_seqs=4):
    driver = Driver.paged(blocks, order=order, max_num_seqs=max_num_seqs)
    driver.add_all(
        make_request(f"r{i}", [i % 50] * 20, max_tokens=30, priority=i % 3) for i in range(waiting)
    )
    driver.step()
    driver.step()
    return driver


@pytest.mark.parametrize("order", ["fcfs", "priority"])
@pytest.mark.parametrize("blocks", [40, 14], ids=["places are taken", "blocks are taken"])
def test_a_queue_of_ten_thousand_costs_a_plan_no_more_than_a_short_one(order, blocks):
    long = queued(10_000, order=order, blocks=blocks, max_num_seqs=4 if blocks == 40 else 99)
    short = queued(40, order=order, blocks=blocks, max_num_seqs=4 if blocks == 40 else 99)

    assert calls_of(long.scheduler.plan) <= calls_of(short.scheduler.plan) + 50


def counting(blocks, *, max_num_seqs, host_blocks=0):
    cache = CountingCache(make_cache(blocks, host_blocks=host_blocks))
    return cache, Driver(cache, limits=Limits(max_num_seqs, 64, 10_000, 4 * blocks))


def test_a_request_refused_once_is_not_looked_up_again_until_something_comes_back():
    cache, driver = counting(14, max_num_seqs=99)
    driver.add_all(make_request(f"r{i}", [i] * 20, max_tokens=30) for i in range(40))
    driver.step()
    driver.step()
    before = cache.lookups

    driver.step()

    assert cache.lookups == before


def test_followers_of_a_prefix_that_is_loading_are_not_all_looked_up():
    cache, driver = counting(14, max_num_seqs=4, host_blocks=20)
    for name, prompt in (("a", [1] * 20), ("b", [2] * 50)):
        driver.add(make_request(name, prompt, max_tokens=1))
        driver.run()
        while cache.open_moves:
            driver.step()
    driver.add_all(make_request(f"r{i}", [1] * 20 + [i]) for i in range(1000))
    before = cache.lookups

    driver.scheduler.plan()

    assert cache.open_moves
    assert cache.lookups - before <= 1 + 4
