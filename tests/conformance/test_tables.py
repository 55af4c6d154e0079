"""Every row of every table keeps the promises of its protocol."""

from __future__ import annotations

from random import Random

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.memory.reservation import RESERVATIONS
from octavo.sched.limits import Limits
from octavo.sched.order import ORDERS
from octavo.testing.conformance import (
    check_cache,
    check_eviction_policy,
    check_order,
    check_reservation,
    check_runner,
)
from octavo.testing.driver import Driver, make_regions
from octavo.testing.fake_runner import FakeRunner


@pytest.mark.parametrize("name", EVICTION_POLICIES)
def test_eviction_policy(name):
    check_eviction_policy(EVICTION_POLICIES[name])


@pytest.mark.parametrize("name", ORDERS)
def test_order(name):
    check_order(ORDERS[name])


@pytest.mark.parametrize("name", RESERVATIONS)
def test_reservation(name):
    check_reservation(RESERVATIONS[name])


@pytest.mark.parametrize("name", RESERVATIONS)
def test_cache_of_reservation(name):
    def make_driver(depth):
        if RESERVATIONS[name].tokens is None:
            return Driver.paged(24, depth=depth)
        return Driver(make_regions(name, 24, longest=32), limits=Limits(8, 64, 64, 32), depth=depth)

    check_cache(make_driver)


@pytest.mark.parametrize("block_sizes", [(4, 8), (6, 4), (3, 3, 3)], ids=str)
def test_cache_of_several_groups(block_sizes):
    check_cache(lambda depth: Driver.paged(60, block_sizes, depth=depth, host_blocks=20))


def test_runner_fake():
    def make_failing(step):
        return FakeRunner((4,), fate=lambda batch: "broken" if batch.step == step else None)

    check_runner(lambda: FakeRunner((4,)), make_failing=make_failing)


def test_runner_fake_with_failing_moves():
    check_runner(lambda: FakeRunner((4,), random=Random(1), move_failure=0.5))
