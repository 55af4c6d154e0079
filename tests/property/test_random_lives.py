"""Dense random lives: one seed, one life. `Life(seed, rule=rule).live()` lives it again.

With another policy: `Life(seed, policy=EVICTION_POLICIES[name]).live()`.
"""

from __future__ import annotations

import pytest

from octavo.build import EVICTION_POLICIES
from octavo.memory.reservation import RESERVATIONS
from octavo.sched.order import ORDERS
from octavo.testing.lives import Life

BATCH = 25
ON_DEMAND, CONTIGUOUS = 250, 50
"""Seeds per rule."""
POLICY_SEEDS = (5000, 5010)
RULES = {
    name: ON_DEMAND if rule.tokens is None else CONTIGUOUS for name, rule in RESERVATIONS.items()
}


def live(rule, seeds):
    """Live every seed; a failure names its seed."""
    for seed in seeds:
        try:
            Life(seed, rule=rule).live()
        except Exception as error:
            raise AssertionError(f"Life({seed}, rule={rule!r}).live(): {error!r}") from error


@pytest.mark.parametrize(
    ("rule", "first"),
    [(rule, first) for rule, seeds in RULES.items() for first in range(0, seeds, BATCH)],
)
def test_every_life_ends_with_right_answers_and_an_empty_pool(rule, first):
    live(rule, range(first, first + BATCH))


@pytest.mark.parametrize("name", sorted(set(EVICTION_POLICIES) - {"lru"}))
def test_every_life_ends_well_with_every_eviction_policy(name):
    for seed in range(*POLICY_SEEDS):
        try:
            Life(seed, policy=EVICTION_POLICIES[name]).live()
        except Exception as error:
            life = f"Life({seed}, policy=EVICTION_POLICIES[{name!r}]).live()"
            raise AssertionError(f"{life}: {error!r}") from error


@pytest.mark.parametrize("order", sorted(set(ORDERS) - {"fcfs", "priority"}))
def test_every_life_ends_well_with_every_order(order):
    for seed in range(8000, 8025):
        try:
            Life(seed, tenants=seed % 2 == 0, order=order).live()
        except Exception as error:
            life = f"Life({seed}, tenants={seed % 2 == 0}, order={order!r}).live()"
            raise AssertionError(f"{life}: {error!r}") from error


TENANT_SEEDS = [range(first, first + BATCH) for first in range(6000, 6150, BATCH)]
FOUND = (2192, 2477, 30470, 42269)
"""Lives with tenants that have ended badly once."""


@pytest.mark.parametrize("seeds", [*TENANT_SEEDS, FOUND], ids=lambda seeds: f"from {seeds[0]}")
def test_every_life_ends_well_with_tenants_pins_and_times(seeds):
    for seed in seeds:
        policy = sorted(EVICTION_POLICIES)[seed % len(EVICTION_POLICIES)]
        try:
            Life(seed, policy=EVICTION_POLICIES[policy], tenants=True).live()
        except Exception as error:
            life = f"Life({seed}, policy=EVICTION_POLICIES[{policy!r}], tenants=True).live()"
            raise AssertionError(f"{life}: {error!r}") from error


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 4000, 500))
def test_thousands_of_lives_end_with_right_answers_and_an_empty_pool(first):
    live("on_demand", range(first, first + 500))
