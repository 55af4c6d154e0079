"""How sure a gain is, drawn from windows of the same requests."""

from __future__ import annotations

from replay_traces import random_prompts, trace_of

from octavo.memory.policies.bonus import Bonus
from octavo.memory.policies.lru import Lru
from octavo.replay.bootstrap import Bootstrap
from octavo.replay.sweep import Candidate, capacities, sweep
from octavo.replay.tally import Tally
from octavo.replay.trace import RecordedRequest


def tally(*hits):
    """Of requests of ten blocks."""
    counted = Tally()
    for count in hits:
        counted.count(RecordedRequest(0.0, 40, 1, (b"",) * 10), count, 4)
    return counted


def test_a_gain_that_is_everywhere_the_same_is_certain():
    found = Bootstrap(100, 200).compare(tally(*[3] * 100), tally(*[2] * 100), tally(*[4] * 100))

    assert found.gain == (0.1, 0.1)
    assert found.gap_closed == (0.5, 0.5)


def test_what_all_policies_lose_alike_makes_a_gain_no_less_certain():
    hits = [number % 7 for number in range(100)]

    found = Bootstrap(100, 200).compare(
        tally(*[one + 1 for one in hits]), tally(*hits), tally(*[one + 2 for one in hits])
    )

    assert found.gain == (0.1, 0.1)


def test_a_gain_in_a_few_windows_alone_is_not_certain():
    own = [10] * 6 + [0] * 94

    low, high = Bootstrap(100, 500).compare(tally(*own), tally(*[0] * 100), tally(*own)).gain

    assert low == 0.0 < 0.06 < high


def test_without_a_gap_no_share_of_it_is_told():
    found = Bootstrap(10, 50).compare(tally(*[1] * 10), tally(*[1] * 10), tally(*[1] * 10))

    assert found.gap_closed is None


def test_no_requests_tell_nothing():
    assert Bootstrap(0, 50).compare(tally(), tally(), tally()) is None


def test_a_sweep_has_intervals_beside_the_gains():
    trace = trace_of(*random_prompts(2, 400, letters="abcd", longest=5))
    candidates = [Candidate("lru", Lru), Candidate("bonus", Bonus)]

    found = sweep(trace, candidates, capacities(trace, [0.05, 0.1]), bootstrap=100)

    for row in found.rows:
        if row.policy == "lru":
            assert row.gain_interval is row.gap_closed_interval is None
        else:
            low, high = row.gap_closed_interval
            assert low <= row.gap_closed <= high


def test_the_same_windows_are_drawn_for_every_policy():
    trace = trace_of(*random_prompts(2, 200))
    sizes = capacities(trace, [0.1])
    lru, bonus = Candidate("lru", Lru), Candidate("bonus", Bonus)

    alone = sweep(trace, [lru, bonus], sizes, bootstrap=50).rows[-1]
    beside = sweep(trace, [lru, Candidate("again", Bonus), bonus], sizes, bootstrap=50).rows[-1]

    assert alone == beside
