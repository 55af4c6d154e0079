"""`octavo replay` as a user meets it."""

from __future__ import annotations

import json

import pytest
from replay_traces import mooncake_rows, write_trace

from octavo.cli import run

ENVELOPE = ["schema", "version", "commit", "machine", "config"]


@pytest.fixture
def path(tmp_path):
    return write_trace(tmp_path / "chats.jsonl.gz", mooncake_rows())


def replay(path, *arguments):
    return run(["replay", str(path), "--jobs", "1", *arguments])


def test_replay_prints_the_documented_keys(path, capsys):
    asked = ["--policy", "lru", "--policy", "{name: lfu, remember: 4}", "--capacity-share", ".1,.5"]

    assert replay(path, *asked, "--json") == 0

    got = json.loads(capsys.readouterr().out)
    assert list(got) == [*ENVELOPE, "trace", "rows", "optimum", "endless"]
    assert got["schema"] == "octavo.replay/1"
    assert got["config"]["policy"] == ["lru", "{name: lfu, remember: 4}"]
    assert got["trace"]["requests"] == 60
    assert [(row["policy"], row["capacity_share"]) for row in got["rows"]] == [
        ("lru", 0.1), ("lru", 0.5),
        ("{name: lfu, remember: 4}", 0.1), ("{name: lfu, remember: 4}", 0.5),
    ]  # fmt: skip
    assert set(got["rows"][0]) >= {"hit_rate", "full_hit_rate", "token_hit_rate", "evictions"}


def test_processes_resolve_the_names_of_policies_themselves(path, capsys):
    asked = ["--policy", "bonus", "--capacity-share", "0.2", "--json"]

    assert replay(path, *asked) == 0
    alone = json.loads(capsys.readouterr().out)["rows"]
    assert run(["replay", str(path), "--jobs", "2", *asked]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == alone


def test_with_warm_the_second_half_of_the_time_counts(path, capsys):
    assert replay(path, "--warm", "--json") == 0

    got = json.loads(capsys.readouterr().out)
    assert got["rows"][0]["requests"] == got["endless"]["requests"] == 30
    assert got["config"]["warm"] is True


def test_larger_blocks_are_fewer(path, capsys):
    assert replay(path, "--block-size", "1024", "--json") == 0
    large = json.loads(capsys.readouterr().out)
    assert replay(path, "--json") == 0
    small = json.loads(capsys.readouterr().out)

    assert large["config"]["block_size"] == large["trace"]["block_size"] == 1024
    assert large["trace"]["references"] < small["trace"]["references"]
    assert large["endless"]["hit_tokens"] <= small["endless"]["hit_tokens"]


def test_hints_from_the_future_are_told_in_the_record(path, capsys):
    asked = ["--policy", "bonus", "--capacity-share", "0.2", "--hint-error", "0.1", "--json"]

    assert replay(path, *asked, "--hint-about", "block", "--seed", "3") == 0

    config = json.loads(capsys.readouterr().out)["config"]
    assert (config["hint_error"], config["hint_about"], config["seed"]) == (0.1, "block", 3)


def test_intervals_stand_in_the_record_the_table_and_the_picture(path, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    asked = ["--policy", "lru", "--policy", "bonus", "--bootstrap", "20"]

    assert replay(path, *asked, "--json") == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["gain_interval"] is None for row in rows] == [True] * 4 + [False] * 4

    assert replay(path, *asked, "--plot", str(tmp_path / "rates.svg")) == 0
    assert "from" in capsys.readouterr().out


def test_a_table_is_for_people(path, capsys):
    assert replay(path) == 0

    out = capsys.readouterr().out
    assert "chats.jsonl.gz: 60 requests" in out
    for name in ("lru", "optimum", "endless", "blocks hit %", "tokens hit %", "evictions"):
        assert name in out


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_picture_is_written(path, tmp_path, capsys, kind):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"rates.{kind}"

    assert replay(path, "--plot", str(picture), "--json") == 0
    assert picture.stat().st_size > 1000


BAD = [
    (["--policy", "x"], "--policy 'x' is not one of lru, "),
    (["--policy", "{name: lfu, colour: 4}"], "--policy lfu has no parameter 'colour'"),
    (["--mode", "engine"], "--mode engine does not exist yet"),
    (["--mode", "z"], "--mode 'z' is not one of index"),
    (["--capacity-share", "0"], "--capacity-share must be numbers above 0 and up to 1"),
    (["--capacity-share", "0.1,1.5"], "got '1.5'"),
    (["--capacity-share", "nan"], "got 'nan'"),
    (["--capacity-share", "0.1,"], "got ''"),
    (["--capacity-share", "0.00001"], "is less than one of the"),
    (["--block-size", "700"], "block size 700 is no multiple of 512"),
    (["--hint-error", "2"], "a hint is wrong with a probability from 0 to 1, got 2.0"),
    (["--hint-about", "word"], "'word' is not one of request, prefix, block"),
    (["--bootstrap", "-1"], "--bootstrap must be from 0 to 100000, got -1"),
    (["--bootstrap", "9", "--policy", "fifo"], "--bootstrap compares with lru"),
    (["--jobs", "0"], "--jobs must be from 1 to 1024, got 0"),
    (["--plot", "x.gif"], "--plot must name a file that ends in .png"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(path, arguments, message, capsys):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")

    assert replay(path, *arguments) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_a_trace_that_is_not_there_is_bad_input(tmp_path, capsys):
    assert replay(tmp_path / "none.jsonl") == 2
    assert "cannot read" in capsys.readouterr().err
