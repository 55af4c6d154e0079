"""Choose a policy's parameters by the first half of traces alone, and look at the second once.

One set for all traces. The first half of the time is cut again: its first part, --warm of it,
fills the cache, the rest is judged. Starting from all weights at nothing, one parameter after the
other takes the best of a few values, in rounds, until a round changes nothing. Best is the largest
mean share of the gap between lru and the optimum that is closed at the capacities of --goal, less
what is lost at those of --guard beyond --slack, as a share of the mean gap: a hit is a hit. Then
the defaults and the set that was found are judged on the second half, with intervals.

    python benchmarks/fit_eviction.py mooncake_conversation_trace.jsonl.gz \
        mooncake_synthetic_trace.jsonl.gz --policy bonus
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import dataclass
from pathlib import Path

from octavo.build import eviction_policy
from octavo.memory.policies.lru import Lru
from octavo.replay.bounds import optimum
from octavo.replay.files import open_trace
from octavo.replay.index import replay_index
from octavo.replay.mooncake import read_mooncake
from octavo.replay.sweep import Candidate, Capacity, capacities, sweep
from octavo.replay.trace import Trace

GRIDS = {
    "bonus": {
        "uses": [0.0, 0.4, 0.8, 1.2],
        "turn": [0.0, 0.4, 0.8, 1.2],
        "once": [0.0, 0.2, 0.4, 0.8],
        "again": [0.0, 0.5, 1.0, 2.0],
        "horizon_tokens": [1e9, 1.4e7, 7.2e6, 3.6e6],
    },
    "gittins": {
        "prior": [8.0, 4.0, 16.0],
        "forget": [1000.0, 16.0, 8.0],
        "sample": [8, 4],
    },
}
"""Values to try for each parameter; the search begins at the first ones."""
DRAWS = 1000


@dataclass
class Half:
    """The first half of a trace's time, at the capacities of the whole."""

    trace: Trace
    judged_from_s: float
    sizes: list[Capacity]
    least: dict[int, float]
    """By capacity in blocks: hit rate of lru."""
    most: dict[int, float]
    """And of the optimum."""


def main() -> None:
    """Fit, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--policy", choices=sorted(GRIDS), default="bonus")
    parser.add_argument("--goal", type=float, nargs="+", default=[0.05, 0.07, 0.1])
    parser.add_argument("--guard", type=float, nargs="+", default=[0.2, 0.5])
    parser.add_argument("--slack", type=float, default=0.002)
    parser.add_argument("--warm", type=float, default=0.25, help="share of the first half")
    parser.add_argument("--json", type=Path, help="write a record here")
    options = parser.parse_args()

    traces = [read_mooncake(open_trace(path)) for path in options.traces]
    shares = [*options.goal, *options.guard]
    halves = [first_half(trace, shares, options.warm) for trace in traces]
    fit = Fit(options.policy, halves, len(options.goal), options.slack)
    found = fit.search()
    rows = [row for trace in traces for row in judged(trace, options.policy, found, shares)]
    record = {
        "schema": "octavo.fit-eviction/1",
        "policy": options.policy,
        "grid": GRIDS[options.policy],
        "goal": options.goal,
        "guard": options.guard,
        "slack": options.slack,
        "warm": options.warm,
        "tried": fit.tried,
        "found": found,
        "second_half": rows,
    }
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    say(f"found on the first halves: {found}")
    for row in rows:
        gap, gain = row["gap_closed_interval"], row["gain_interval"]
        say(
            f"{row['trace']:<40} {row['set']:<9} {100 * row['share']:3.0f} %: "
            f"{row['hit_rate']:.4f}, {row['gain']:+.4f} on lru ({gain[0]:+.4f} to {gain[1]:+.4f}); "
            + (
                f"gap closed {row['gap_closed']:+.3f}"
                if row["gap_closed"] is not None
                else "no gap"
            )
            + (f" ({gap[0]:+.3f} to {gap[1]:+.3f})" if gap else "")
        )


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def first_half(trace: Trace, shares: list[float], warm: float) -> Half:
    """Cut a trace in the middle of its time, and work out what there is to be gained."""
    requests = tuple(one for one in trace.requests if one.time_s < trace.middle_s)
    half = Trace(trace.name, trace.block_size, requests)
    # Where nothing is evicted, nothing can be chosen.
    sizes = [size for size in capacities(trace, shares) if size.blocks < half.working_set]
    start = requests[0].time_s
    begin = start + warm * (trace.middle_s - start)
    least = {
        size.blocks: replay_index(half, Lru(), size.blocks, judged_from_s=begin).hit_rate
        for size in sizes
    }
    most = {size.blocks: optimum(half, size.blocks, judged_from_s=begin).hit_rate for size in sizes}
    return Half(half, begin, sizes, least, most)


class Fit:
    """A search along one parameter after the other."""

    def __init__(self, policy: str, halves: list[Half], goals: int, slack: float) -> None:
        self.policy = policy
        self.halves = halves
        self.goals = goals
        self.slack = slack
        self.tried: list[dict[str, object]] = []
        self._scores: dict[tuple[float, ...], float] = {}

    def search(self) -> dict[str, float]:
        """Return the best set."""
        grid = GRIDS[self.policy]
        best = {name: values[0] for name, values in grid.items()}
        score = self.score(best)
        while True:
            before = dict(best)
            for name, values in grid.items():
                for value in values:
                    other = {**best, name: value}
                    if self.score(other) > score:
                        best, score = other, self.score(other)
            if best == before:
                return best

    def score(self, parameters: dict[str, float]) -> float:
        """Return the mean share of the gap that is closed, less what is lost."""
        key = tuple(parameters.values())
        if key not in self._scores:
            closed: list[float] = []
            gaps: list[float] = []
            lost = 0.0
            make = eviction_policy({"name": self.policy, **parameters})
            for half in self.halves:
                for number, size in enumerate(half.sizes):
                    low, high = half.least[size.blocks], half.most[size.blocks]
                    begin = half.judged_from_s
                    found = replay_index(half.trace, make(), size.blocks, judged_from_s=begin)
                    if number < self.goals and high > low:
                        gaps.append(high - low)
                        closed.append((found.hit_rate - low) / (high - low))
                    elif number >= self.goals:
                        lost = max(lost, low - found.hit_rate)
            beyond = max(0.0, lost - self.slack) * len(gaps)
            score = sum(closed) / len(closed) - beyond / sum(gaps) if gaps else 0.0
            self._scores[key] = score
            self.tried.append(
                {"set": parameters, "gap_closed": closed, "lost": lost, "score": score}
            )
            shown = " ".join(f"{share:+.3f}" for share in closed)
            say(f"{parameters}: {shown}, lost {lost:.4f}: {score:.4f}")
        return self._scores[key]


def judged(
    trace: Trace, policy: str, found: dict[str, float], shares: list[float]
) -> list[dict[str, object]]:
    """Judge the defaults and the set that was found on the second half of a trace."""
    sets = {"lru": "lru", "defaults": policy, "found": {"name": policy, **found}}
    candidates = [Candidate(name, eviction_policy(setting)) for name, setting in sets.items()]
    candidates[0] = Candidate("lru", Lru)
    sizes = capacities(trace, shares)
    result = sweep(trace, candidates, sizes, judged_from_s=trace.middle_s, bootstrap=DRAWS)
    base = {row.capacity_share: row.hit_rate for row in result.rows if row.policy == "lru"}
    return [
        {
            "trace": trace.name,
            "set": row.policy,
            "share": row.capacity_share,
            "hit_rate": row.hit_rate,
            "gain": row.hit_rate - base[row.capacity_share],
            "gain_interval": row.gain_interval,
            "gap_closed": row.gap_closed,
            "gap_closed_interval": row.gap_closed_interval,
        }
        for row in result.rows
        if row.policy != "lru"
    ]


if __name__ == "__main__":
    main()
