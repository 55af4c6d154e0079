"""The scripts that chose the defaults and that sweep Zipf's law, on a handful of requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from replay_traces import mooncake_rows, write_trace

SCRIPTS = Path(__file__).resolve().parents[2] / "benchmarks"


def run(script, *arguments):
    command = [sys.executable, str(SCRIPTS / script), *map(str, arguments)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def test_hot_prefixes_outlive_what_never_returns(tmp_path):
    record = tmp_path / "zipf.json"

    run(
        "zipf_prefixes.py",
        "--requests",
        800,
        "--prefixes",
        80,
        "--exponents",
        0.8,
        "--json",
        record,
    )

    rows = json.loads(record.read_text())["rows"]
    assert [row["share"] for row in rows] == [0.05, 0.1, 0.2, 0.5]
    assert all(row["lru"] < row["hotprefix"] <= row["optimum"] <= row["endless"] for row in rows)


def test_a_fit_sees_first_halves_only_until_it_is_asked_to_judge(tmp_path):
    trace, record = write_trace(tmp_path / "chats.jsonl", mooncake_rows(80)), tmp_path / "fit.json"
    shares = ["--goal", 0.1, "--guard", 0.4, "--sets", 8, "--replays", tmp_path / "replays.jsonl"]

    run("fit_eviction.py", trace, "--policy", "gittins", *shares, "--json", record)
    fitted = json.loads(record.read_text())
    said = run(
        "fit_eviction.py", trace, "--policy", "gittins", *shares, "--judge", "--json", record
    )

    got = json.loads(record.read_text())
    assert fitted["second_half"] == []
    assert {**got, "second_half": []} == fitted
    assert {row["set"] for row in got["second_half"]} == {"defaults", "found"}
    assert all(len(row["gain_interval"]) == 2 for row in got["second_half"])
    assert "found on the first halves" in said


def test_a_fit_takes_the_rule_that_chooses_best_for_windows_it_has_not_seen(tmp_path):
    trace, record = write_trace(tmp_path / "chats.jsonl", mooncake_rows(80)), tmp_path / "fit.json"

    run(
        "fit_eviction.py", trace, "--policy", "bonus", "--goal", 0.1, "--sets", 24, "--json", record
    )

    got = json.loads(record.read_text())
    by_rule = {rule["rule"]: rule for rule in got["rules"]}
    best = max(rule["cross_validated"] for rule in got["rules"])
    taken = by_rule[got["rule"]]
    assert got["found"] == taken["set"]
    assert got["rule"] == "mean peak" or taken["cross_validated"] == best
    low_high = {name: (low, high) for name, low, high in got["box"]}
    assert all(low_high[name][0] <= got["found"][name] <= low_high[name][1] for name in low_high)


def test_kept_ends_take_room_and_bring_nothing_where_no_end_is_known(tmp_path):
    trace = write_trace(tmp_path / "chats.jsonl", mooncake_rows(60))

    said = run("kept_ends.py", trace, "--shares", 0.3, 3, "--json")

    scarce, ample = json.loads(said)["rows"]
    assert scarce["partial"]["ends"] > 0 == scarce["whole"]["ends"]
    assert ample["partial"]["hit"] == ample["whole"]["hit"]
