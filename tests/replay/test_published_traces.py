"""The figures of the published Mooncake traces: known from other programs, found again by ours."""

from __future__ import annotations

import pytest
from replay_traces import public_trace

from octavo.memory.policies.lru import Lru
from octavo.replay.bounds import endless, optimum
from octavo.replay.files import open_trace
from octavo.replay.index import replay_index
from octavo.replay.mooncake import read_mooncake
from octavo.replay.sweep import capacities

SHARES = [0.05, 0.1, 0.2, 0.5]
LRU = {
    "conversation": [0.196, 0.279, 0.345, 0.363],
    "synthetic": [0.157, 0.262, 0.393, 0.589],
}
BELADY = {
    "conversation": [0.366, 0.366, 0.366, 0.366],
    "synthetic": [0.386, 0.501, 0.606, 0.640],
}
"""Of a Belady that does not think of prefixes."""
OPTIMUM = {
    "conversation": [0.366, 0.366, 0.366, 0.366],
    "synthetic": [0.396, 0.506, 0.608, 0.640],
}


@pytest.fixture(scope="module", params=["conversation", "synthetic"])
def name(request):
    return request.param


@pytest.fixture(scope="module")
def trace(name):
    return read_mooncake(open_trace(public_trace(name)))


def test_the_endless_cache_and_the_working_set(name, trace):
    tally = endless(trace)

    expected = {"conversation": (182_790, 288_500, 0.366), "synthetic": (43_924, 121_877, 0.640)}
    assert (trace.working_set, tally.references, round(tally.hit_rate, 3)) == expected[name]


def test_the_count_over_full_blocks_leaves_out_partial_ones(name, trace):
    tally = endless(trace)

    expected = {"conversation": (276_491, 0.382), "synthetic": (117_888, 0.659)}
    assert (tally.full_references, round(tally.full_hit_rate, 3)) == expected[name]


def test_lru_tail_first(name, trace):
    rates = [replay_index(trace, Lru(), size.blocks).hit_rate for size in capacities(trace, SHARES)]

    assert rates == pytest.approx(LRU[name], abs=0.0006)


def test_belady_as_others_count_it(name, trace):
    rates = [
        optimum(trace, size.blocks, tail_first=False).hit_rate for size in capacities(trace, SHARES)
    ]

    assert rates == pytest.approx(BELADY[name], abs=0.0006)


def test_the_optimum_that_goes_tail_first(name, trace):
    rates = [optimum(trace, size.blocks).hit_rate for size in capacities(trace, SHARES)]

    assert rates == pytest.approx(OPTIMUM[name], abs=0.0006)


def test_the_second_half_of_the_time_with_a_warm_cache(name, trace):
    found = [
        (
            replay_index(trace, Lru(), size.blocks, judged_from_s=trace.middle_s).hit_rate,
            optimum(trace, size.blocks, judged_from_s=trace.middle_s).hit_rate,
        )
        for size in capacities(trace, [0.05, 0.1])
    ]

    expected = {
        "conversation": [(0.202, 0.393), (0.290, 0.393)],
        "synthetic": [(0.231, 0.506), (0.380, 0.649)],
    }
    assert found == [pytest.approx(pair, abs=0.0006) for pair in expected[name]]
