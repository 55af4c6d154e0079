"""Choose a policy's parameters by the first half of traces alone, and look at the second once.

One set for all traces. The first half of the time is cut again: a quarter fills the cache, and
the rest is judged, in 16 windows. Sets that fill a box of parameters evenly are replayed at the
capacities of --goal and --guard. What is looked for is the largest mean share of the gap between
lru and the optimum that is closed at the first, less what is lost at the others beyond --slack.
Several rules choose from what was counted (`eviction_surface.py`), and one of them is taken by how
well they choose by three quarters of the windows for the fourth. All this sees first halves only.
With --judge, the set that was found is then judged on the second half, beside the defaults.

    python benchmarks/fit_eviction.py mooncake_conversation_trace.jsonl.gz \
        mooncake_synthetic_trace.jsonl.gz --policy bonus --judge
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from eviction_surface import RULES, Surface, choose_rule, cross_validated, everything
from eviction_trials import BOXES, Box, Half, Trials, spread
from octavo.memory.policies.lru import Lru
from octavo.replay.files import open_trace
from octavo.replay.mooncake import read_mooncake
from octavo.replay.sweep import Candidate, capacities, sweep
from octavo.replay.trace import Trace

JUDGED = [0.05, 0.1, 0.2, 0.5]
"""Capacities at which the second half is looked at."""
DRAWS = 1000


def main() -> None:
    """Fit, and print a table or one JSON document."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="+", type=Path)
    parser.add_argument("--policy", choices=sorted(BOXES), default="bonus")
    parser.add_argument("--sets", type=int, help="how many to try")
    parser.add_argument("--goal", type=float, nargs="+", default=[0.04, 0.06, 0.09, 0.13])
    parser.add_argument("--guard", type=float, nargs="+", default=[0.2])
    parser.add_argument("--slack", type=float, default=0.002)
    parser.add_argument("--warm", type=float, default=0.25, help="share of the first half")
    parser.add_argument("--replays", type=Path, help="keep replays here, and do none twice")
    parser.add_argument("--judge", action="store_true", help="look at the second half")
    parser.add_argument("--json", type=Path, help="write a record here")
    options = parser.parse_args()

    traces = [read_mooncake(open_trace(path)) for path in options.traces]
    box = BOXES[options.policy]
    if options.sets is not None:
        box = replace(box, sets=options.sets)
    fitted = fit(box, traces, options)
    record = {
        "schema": "octavo.fit-eviction/2",
        "policy": options.policy,
        "goal": options.goal,
        "guard": options.guard,
        "slack": options.slack,
        "warm": options.warm,
        **fitted,
        "second_half": [],
    }
    for rule in fitted["rules"]:
        say(
            f"{rule['rule']:<10} {rule['set']}: {rule['score']:.4f}, "
            f"cross-validated {rule['cross_validated']:.4f}"
        )
    say(f"found on the first halves: {fitted['found']}")
    if options.judge:
        record["second_half"] = [row for one in traces for row in judged(one, box, fitted["found"])]
        show(record["second_half"])
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")


def say(line: str) -> None:
    """Print at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def fit(box: Box, traces: list[Trace], options: argparse.Namespace) -> dict[str, Any]:
    """Return what was tried, what each rule chooses, and what was found."""
    halves = [Half(trace, options.warm) for trace in traces]
    tried = spread(len(box.axes), box.sets)
    settings = [box.setting(places) for places in tried]
    cells = Trials(halves, options.replays).cells(box, settings, options.goal + options.guard)
    # Where the surface is looked at are the values that were replayed, after rounding.
    tried = np.array([box.places(setting) for setting in settings])
    surface = Surface(tried, cells, options.goal, options.slack)
    every = everything(len(traces))
    rules: list[dict[str, Any]] = []
    for rule, choose in RULES.items():
        point = choose(surface, every, box.calm)
        folds = cross_validated(surface, rule, len(traces), box.calm)
        value = surface.at(point[None], every)
        rules.append(
            {
                "rule": rule,
                "set": box.setting(point),
                "gap_closed": float(value.closed[0]),
                "lost": float(value.lost[0]),
                "score": float(value.score[0]),
                "folds": folds,
                "cross_validated": sum(folds) / len(folds),
            }
        )
    counted = surface.raw(every)
    taken = choose_rule({rule["rule"]: rule["folds"] for rule in rules})
    found = next(rule["set"] for rule in rules if rule["rule"] == taken)
    return {
        "box": [[axis.name, axis.low, axis.high] for axis in box.axes],
        "tried": [
            {"set": setting, "gap_closed": float(closed), "lost": float(lost)}
            for setting, closed, lost in zip(settings, counted.closed, counted.lost, strict=True)
        ],
        "variance_explained": surface.fit(every),
        "rules": rules,
        "rule": taken,
        "found": found,
    }


def judged(trace: Trace, box: Box, found: dict[str, float | str]) -> list[dict[str, Any]]:
    """Judge the defaults and the set that was found on the second half of a trace."""
    candidates = [
        Candidate("lru", Lru),
        Candidate("defaults", partial(box.make, box.given)),
        Candidate("found", partial(box.make, found)),
    ]
    sizes = capacities(trace, JUDGED)
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


def show(rows: list[dict[str, Any]]) -> None:
    """Print what the second half gives."""
    for row in rows:
        gap, gain = row["gap_closed_interval"], row["gain_interval"]
        closed = "no gap" if row["gap_closed"] is None else f"gap closed {row['gap_closed']:+.3f}"
        limits = f" ({gap[0]:+.3f} to {gap[1]:+.3f})" if gap else ""
        say(
            f"{row['trace']:<40} {row['set']:<9} {100 * row['share']:3.0f} %: "
            f"{row['hit_rate']:.4f}, {row['gain']:+.4f} on lru ({gain[0]:+.4f} to {gain[1]:+.4f}); "
            f"{closed}{limits}"
        )


if __name__ == "__main__":
    main()
