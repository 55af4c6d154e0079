"""Several policies and capacities at once."""

from __future__ import annotations

import pytest
from replay_traces import random_prompts, trace_of

from octavo.errors import ConfigError
from octavo.memory.policies.fifo import Fifo
from octavo.memory.policies.lru import Lru
from octavo.replay.sweep import Candidate, capacities, capacities_in_blocks, sweep, work
from octavo.replay.trace import RecordedRequest, Trace

CANDIDATES = [Candidate("lru", Lru), Candidate("fifo", Fifo)]


@pytest.fixture
def trace():
    return trace_of(*random_prompts(3, 120, letters="abcd", longest=5))


def test_rows_come_by_policy_and_then_by_capacity(trace):
    found = sweep(trace, CANDIDATES, capacities(trace, [0.1, 0.3]))

    assert [(row.policy, row.capacity_share) for row in found.rows] == [
        ("lru", 0.1), ("lru", 0.3), ("fifo", 0.1), ("fifo", 0.3),
    ]  # fmt: skip
    assert [row.capacity_share for row in found.optimum] == [0.1, 0.3]


def test_the_result_does_not_depend_on_the_number_of_processes(trace):
    sizes = capacities(trace, [0.1, 0.3])

    alone = sweep(trace, CANDIDATES[:1], sizes, jobs=1)
    beside = sweep(trace, CANDIDATES[:1], sizes, jobs=2)

    assert beside == alone


@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_adds_up_to_the_whole_work(trace, jobs):
    told = []
    sizes = capacities(trace, [0.2])

    sweep(trace, CANDIDATES[:1], sizes, jobs=jobs, advance=told.append)

    assert sum(told) == work(trace, 1, 1) == 240


def test_the_gap_is_measured_from_lru_to_the_optimum(trace):
    found = sweep(trace, CANDIDATES, capacities(trace, [0.1]))

    lru, other = found.rows
    (best,) = found.optimum
    assert lru.gap_closed == 0.0
    assert other.gap_closed == pytest.approx((other.hits - lru.hits) / (best.hits - lru.hits))


def test_without_lru_there_is_no_gap(trace):
    found = sweep(trace, CANDIDATES[1:], capacities(trace, [0.1]))

    assert found.rows[0].gap_closed is None


def test_a_capacity_is_a_share_of_all_distinct_blocks(trace):
    (size,) = capacities(trace, [0.29])

    assert size.blocks == trace.working_set * 29 // 100


def test_a_trace_without_a_block_has_no_capacities():
    short = Trace("short", 16, (RecordedRequest(0.0, 5, 1, ()),), partial=False)

    with pytest.raises(ConfigError, match="no text of short fills a block of 16 tokens"):
        capacities(short, [0.5])
    with pytest.raises(ConfigError, match="no text of short fills"):
        capacities_in_blocks(short, [4])


def test_a_share_of_less_than_one_block_is_refused(trace):
    with pytest.raises(ConfigError, match=r"a capacity share of 0\.0001 is less than one of the"):
        capacities(trace, [0.5, 0.0001])
