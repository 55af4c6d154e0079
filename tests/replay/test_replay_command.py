"""`octavo replay` as a user meets it."""

from __future__ import annotations

import io
import json
import os
import re
import threading

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


def test_engine_mode_prints_the_documented_keys(path, capsys):
    asked = ["--mode", "engine", "--rate", "0.5", "--capacity-share", "0.2", "--json"]

    assert replay(path, *asked) == 0

    got = json.loads(capsys.readouterr().out)
    assert list(got) == [*ENVELOPE, "trace", "rows", "optimum", "endless"]
    assert got["config"]["cost"] == "h200-llama-3.1-8b"
    assert got["trace"]["seconds"] == 2 * 29
    (row,) = got["rows"]
    for name in ("first_token_s", "queueing_s", "answer_s", "preemptions_each"):
        assert list(row[name]) == ["p50", "p90", "p99"]
    assert row["reused_bytes"] == row["hit_tokens"] * 131_072
    assert set(row) >= {"evictions", "preemptions", "refused", "hit_rate", "token_hit_rate"}


def test_engine_mode_gives_the_same_in_several_processes(path, capsys):
    asked = ["--mode", "engine", "--policy", "lru", "--policy", "lfu", "--json"]

    assert replay(path, *asked) == 0
    alone = json.loads(capsys.readouterr().out)["rows"]
    assert run(["replay", str(path), "--jobs", "2", *asked]) == 0
    assert json.loads(capsys.readouterr().out)["rows"] == alone


def test_engine_mode_has_a_table_for_people(path, capsys):
    assert replay(path, "--mode", "engine", "--capacity-blocks", "40,80") == 0

    out = capsys.readouterr().out
    for name in ("first token s", "queueing s", "preemptions", "reused GiB", "optimum", "endless"):
        assert name in out


def test_capacities_may_be_given_in_blocks(path, capsys):
    assert replay(path, "--capacity-blocks", "40", "--json") == 0

    got = json.loads(capsys.readouterr().out)
    assert got["config"]["capacity_blocks"] == [40]
    assert got["rows"][0]["capacity_blocks"] == 40
    assert got["rows"][0]["capacity_share"] == 40 / got["trace"]["working_set_blocks"]


@pytest.mark.parametrize("mode", ["index", "engine"])
@pytest.mark.parametrize("kind", ["png", "svg"])
def test_a_picture_is_written(path, tmp_path, capsys, kind, mode):
    pytest.importorskip("matplotlib")
    picture = tmp_path / f"rates.{kind}"

    assert replay(path, "--mode", mode, "--plot", str(picture), "--json") == 0
    assert picture.stat().st_size > 1000


BAD = [
    (["--policy", "x"], "--policy 'x' is not one of lru, "),
    (["--policy", "{name: lfu, colour: 4}"], "--policy lfu has no parameter 'colour'"),
    (["--mode", "z"], "--mode 'z' is not one of index, engine"),
    (["--rate", "2"], "--rate belongs to --mode engine"),
    (["--cost", "h200-llama-3.1-8b"], "--cost belongs to --mode engine"),
    (["--mode", "engine", "--rate", "0"], "--rate must be from 0.000001 to 1000000, 1 being as"),
    (["--mode", "engine", "--rate", "1e-320"], "--rate must be from 0.000001"),
    (["--mode", "engine", "--rate", "inf"], "as recorded, got inf"),
    (["--mode", "engine", "--scheduling-policy", "{name: fcfs, x: 1}"], "fcfs has no parameter"),
    (["--seed", "3"], "--seed is about hints, but there are none: give --hint-error too"),
    (["--hint-about", "block"], "--hint-about is about hints, but there are none"),
    (["--policy", '{"name": "lfu", "remember": 1, "remember": 2}'], "gives remember twice"),
    (["--policy", '{"name": ' + "[" * 99_999 + "}"], "[[[ is not one of lru, "),
    (["--policy", "{name: lfu, remember: " + "[" * 99_999 + "}"], "must be of type float"),
    (["--policy", "{name: lfu, remember: 1" + "0" * 5000 + "}"], "must be of type float"),
    (["--capacity-blocks", "5000001"], "--capacity-blocks must be at most 5000000, got 5000001"),
    (["--bootstrap", "9"], "--bootstrap compares with lru: give another --policy too"),
    (["--mode", "engine", "--cost", "h300"], "'h300' cannot be read"),
    (["--mode", "engine", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1"),
    (["--mode", "engine", "--scheduling-policy", "x"], "--scheduling-policy 'x' is not one of"),
    (["--capacity-blocks", "0"], "--capacity-blocks"),
    (["--capacity-blocks", "9", "--capacity-share", "0.1"], "say the same: give one"),
    (["--capacity-share", "0"], "--capacity-share must be numbers above 0 and up to 1"),
    (["--capacity-share", "0.1,1.5"], "got '1.5'"),
    (["--capacity-share", "nan"], "got 'nan'"),
    (["--capacity-share", "0.1,"], "got ''"),
    (["--capacity-share", "0.00001"], "is less than one of the"),
    (["--block-size", "700"], "block size 700 is no multiple of 512"),
    (["--hint-error", "0.1"], "--hint-error changes nothing, for no policy here heeds hints (lru)"),
    (["--policy", "{name: bonus, hints: 0}", "--hint-error", "0.1"], "no policy here heeds hints"),
    (["--hint-error", "2"], "a hint is wrong with a probability from 0 to 1, got 2.0"),
    (["--hint-error", "0", "--hint-about", "word"], "'word' is not one of request, prefix, block"),
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
    assert len(captured.err) < 400
    assert captured.out == ""


def test_an_order_of_service_takes_parameters(path, capsys):
    order = "{name: depth_first, max_passed: 9}"

    assert replay(path, "--mode", "engine", "--scheduling-policy", order, "--json") == 0
    assert json.loads(capsys.readouterr().out)["config"]["scheduling_policy"] == order
    asked = ["--mode", "engine", "--policy", "lru", "--policy", "lfu", "--jobs", "2"]
    assert run(["replay", str(path), *asked, "--scheduling-policy", order]) == 0


def test_requests_that_are_refused_stand_in_the_table(path, capsys):
    assert replay(path, "--mode", "engine", "--capacity-blocks", "5") == 0
    captured = capsys.readouterr()
    assert "refused" in captured.out
    assert re.search(r"octavo: \d+ requests are refused at 5 blocks", captured.err)

    assert replay(path, "--mode", "engine", "--capacity-share", "0.5") == 0
    captured = capsys.readouterr()
    assert "refused" not in captured.out + captured.err


@pytest.mark.parametrize(("blocks", "shares"), [(1, [1.0]), (2, [0.5]), (12, [0.1, 0.2, 0.5])])
def test_default_shares_of_less_than_a_block_are_left_out_with_a_word(
    tmp_path, blocks, shares, capsys
):
    row = {"timestamp": 0, "input_length": 512 * blocks, "output_length": 1}
    path = write_trace(tmp_path / "few.jsonl", [row | {"hash_ids": [*range(blocks)]}])

    assert replay(path, "--json") == 0

    captured = capsys.readouterr()
    assert json.loads(captured.out)["config"]["capacity_share"] == shares
    assert f"few.jsonl has {blocks} distinct blocks: capacity shares" in captured.err


def test_a_trace_that_is_not_there_is_bad_input(tmp_path, capsys):
    assert replay(tmp_path / "none.jsonl") == 2
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
def test_a_name_that_no_file_can_have_is_bad_input(tmp_path, capsys, name):
    assert replay(tmp_path / name) == 2

    assert "cannot read" in capsys.readouterr().err


# ── from a pipe ───────────────────────────────────────────────────────────────────────────


def test_a_pipe_is_read_once(path, tmp_path, capsys):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(path.read_bytes()))
    writer.start()

    assert replay(pipe, "--json") == 0

    writer.join()
    assert json.loads(capsys.readouterr().out)["trace"]["requests"] == 60


def test_a_minus_is_stdin(path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(path.read_bytes())))

    assert replay("-", "--json") == 0

    assert json.loads(capsys.readouterr().out)["trace"]["name"] == "stdin"


def test_stdin_that_is_closed_is_told(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", None)

    assert replay("-") == 2

    assert "cannot read 'stdin': stdin is closed, name a file" in capsys.readouterr().err


# ── other files than Mooncake's ───────────────────────────────────────────────────────────


@pytest.fixture
def transcript(tmp_path):
    rows = [
        {"timestamp": 1e6 * turn, "input": "hello you " * (5 * turn + 3), "output": "hello you"}
        for turn in range(6)
    ]
    return write_trace(tmp_path / "agent.jsonl", rows)


def test_a_transcript_is_read_with_the_tokenizer_of_a_model(transcript, tiny_gguf, capsys):
    asked = ["--tokenizer", str(tiny_gguf), "--capacity-share", "1", "--block-size", "4", "--json"]

    assert replay(transcript, *asked) == 0

    got = json.loads(capsys.readouterr().out)
    assert got["config"]["format"] == "transcript"
    assert got["trace"]["block_size"] == 4
    assert got["rows"][0]["hits"] > 0


def test_mode_blocks_tells_what_block_sizes_lose(transcript, tiny_gguf, capsys):
    asked = ["--mode", "blocks", "--tokenizer", str(tiny_gguf), "--block-size", "1,4,16"]

    assert run(["replay", str(transcript), *asked, "--json"]) == 0

    got = json.loads(capsys.readouterr().out)
    assert got["schema"] == "octavo.replay.blocks/1"
    assert [row["block_size"] for row in got["rows"]] == [1, 4, 16]
    lost = [row["lost"] for row in got["rows"]]
    assert lost == sorted(lost)
    assert lost[0] == 0.0 < lost[-1]
    assert run(["replay", str(transcript), *asked]) == 0
    assert "with partial blocks" in capsys.readouterr().out


def test_lengths_alone_are_replayed_with_a_word_about_them(tmp_path, capsys):
    path = tmp_path / "lengths.csv"
    path.write_text("num_prefill_tokens,num_decode_tokens\n300,5\n400,7\n")

    assert replay(path, "--capacity-share", "1", "--json") == 0

    captured = capsys.readouterr()
    assert "has lengths alone" in captured.err
    assert json.loads(captured.out)["endless"]["hits"] == 0


def test_what_a_format_has_not_is_refused(path, capsys):
    for arguments, message in (
        (["--mode", "blocks"], "--mode blocks needs the text of prompts"),
        (["--tokenizer", "x"], "--tokenizer is for transcripts"),
        (["--format", "azure"], "has no column TIMESTAMP, ContextTokens, GeneratedTokens"),
        (["--mode", "blocks", "--policy", "lru"], "--policy belongs to --mode index or"),
        (["--block-size", "512,1024"], "several sizes are for --mode blocks"),
        (["--block-size", "0"], "--block-size"),
    ):
        assert run(["replay", str(path), *arguments]) == 2
        assert message in capsys.readouterr().err
