"""Latency against load: the cost of a step, and who sustains more."""

from __future__ import annotations

import msgspec
import pytest

from octavo.bench.curve import CostModel, Setting, find_sustained, simulate
from octavo.bench.pool import PAPER_POOL, find_rule
from octavo.bench.workload import draw
from octavo.contract.batch import Batch, Slice


def setting(duration_s: float) -> Setting:
    work = draw("sharegpt-lognormal", requests=2000, max_length=2048, seed=0)
    return Setting(pool=PAPER_POOL, workload=work, duration_s=duration_s)


def piece(start: int, count: int) -> Slice:
    return Slice(0, start, (1,) * count, (0,), ((),), ())


def test_a_step_costs_fixed_time_reading_and_the_arithmetic_of_prompts():
    batch = Batch(1, (piece(0, 100), piece(400, 1), piece(0, 1)))

    seconds = CostModel().step_s(batch, 819_200)

    read = (100 + 401 + 1) * 819_200 / 1.5e12
    assert seconds == pytest.approx(0.017 + read + 101 * 26e9 / 200e12)


def test_an_idle_machine_takes_one_step_per_token():
    row = simulate(find_rule("on_demand"), 0.01, setting(400))

    assert 0.017 < row.normalized_latency_s < 0.02
    assert row.mean_batch == pytest.approx(1, abs=0.2)


def test_the_same_seed_gives_the_same_curve():
    rows = [simulate(find_rule("oracle"), 1.0, setting(60)) for _ in range(2)]

    assert msgspec.json.encode(rows[0]) == msgspec.json.encode(rows[1])


def test_latency_grows_with_load():
    rows = [simulate(find_rule("max"), rate, setting(60)) for rate in (0.5, 1.0, 2.0)]

    latencies = [row.normalized_latency_s for row in rows]
    assert latencies == sorted(latencies)


def test_the_sustained_rate_is_the_highest_point_within_the_bound():
    shown = []
    best, rows = find_sustained(
        find_rule("max"), setting(40), bound_s=0.03, tolerance=0.2, show=shown.append
    )

    within = [row.rate_per_s for row in rows if row.normalized_latency_s <= 0.03]
    assert best.rate_per_s == max(within)
    assert min(r.rate_per_s for r in rows if r.normalized_latency_s > 0.03) <= 1.2 * max(within)
    assert len(shown) == len(rows)


def test_nothing_is_sustained_below_the_latency_of_an_idle_machine():
    best, rows = find_sustained(find_rule("max"), setting(20), bound_s=0.001)

    assert best.rate_per_s == 0
    assert len(rows) == 1


def test_at_the_same_load_paging_waits_less():
    paged, oracle, worst = (
        simulate(find_rule(rule), 2.5, setting(60)) for rule in ("on_demand", "oracle", "max")
    )

    assert paged.normalized_latency_s < oracle.normalized_latency_s < worst.normalized_latency_s


@pytest.mark.slow
def test_paging_sustains_what_the_paper_says():
    sustained = {
        rule: find_sustained(find_rule(rule), setting(1200), bound_s=0.1)[0].rate_per_s
        for rule in ("max", "oracle", "on_demand")
    }

    assert sustained["on_demand"] >= 1.7 * sustained["oracle"]
    assert sustained["on_demand"] >= 2.7 * sustained["max"]
