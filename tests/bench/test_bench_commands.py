"""`octavo bench memory` and `octavo bench curve` as a user meets them."""

from __future__ import annotations

import itertools
import json

import pytest

from octavo.bench.pool import PoolShape, StepLimits, deciding_plane, find_rule
from octavo.bench.real import run_real
from octavo.bench.runner import CountingRunner
from octavo.bench.workload import Workload
from octavo.build import open_tokenizer
from octavo.cli import run
from octavo.engine.engine import Engine
from octavo.models.checkpoint import open_checkpoint

SMALL = ["--memory", "64KiB", "--layers", "1", "--kv-heads", "1", "--head-dim", "16"]
SMALL += ["--dtype", "float32", "--max-length", "64", "--requests", "40"]
ENVELOPE = ["schema", "version", "commit", "machine", "config"]


def document(capsys, *arguments) -> dict:
    assert run(["bench", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_memory_prints_the_documented_keys(capsys):
    got = document(capsys, "memory", *SMALL, "--block-size", "4,8", "--n", "1,2")

    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "pool", "workload", "rows"}
    assert got["schema"] == "octavo.bench.memory/1"
    assert got["pool"] == {"bytes": 65536, "slots": 512, "bytes_per_token": 128, "max_length": 64}
    assert set(got["workload"]) == {
        "name", "requests", "mean_input", "mean_output", "distribution", "arrival", "seed",
    }  # fmt: skip
    assert set(got["rows"][0]) >= {
        "reservation", "block_size", "n", "token_share", "reserved_share", "internal_share",
        "external_share", "token_share_of_allocated", "mean_batch", "max_batch",
        "blocks_saved_share", "preemptions", "completed",
    }  # fmt: skip
    assert [(row["reservation"], row["block_size"], row["n"]) for row in got["rows"]] == [
        (rule, size, n)
        for n in (1, 2)
        for rule, sizes in (
            *((rule, [None]) for rule in ("max", "pow2", "oracle", "static")),
            ("on_demand", [4, 8]),
        )
        for size in sizes
    ]


def test_memory_without_options_is_the_setting_of_the_paper(capsys, monkeypatch):
    seen = {}

    def measure(rule, pool, work, **options):
        seen[rule.name, options["block_size"], options["n"]] = pool, work
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.bench.memory.measure", measure)

    assert run(["bench", "memory"]) == 130
    ((pool, work),) = seen.values()
    assert (pool.num_bytes, pool.slots, pool.max_length) == (12 << 30, 15_728, 2048)
    assert (work.name, work.seed, len(work.lengths)) == ("sharegpt-lognormal", 0, 2000)


def test_curve_prints_the_documented_keys(capsys):
    short = ["--duration", "2", "--bound", "0.05", "--reservation", "max,on_demand"]
    got = document(capsys, "curve", *SMALL, *short, "--rates", "7,9.5")

    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "pool", "workload", "cost_model", "rows", "sustained"}
    assert got["schema"] == "octavo.bench.curve/1"
    assert set(got["rows"][0]) >= {
        "reservation", "rate_per_s", "normalized_latency_s", "mean_batch", "completed",
    }  # fmt: skip
    assert {7.0, 9.5} <= {row["rate_per_s"] for row in got["rows"]}
    assert [set(row) for row in got["sustained"]] == [{"reservation", "rate_per_s"}] * 2
    assert got["cost_model"]["fixed_s"] == 0.017


def test_tables_are_for_people(capsys):
    assert run(["bench", "memory", *SMALL, "--block-size", "8"]) == 0
    assert "on_demand" in capsys.readouterr().out
    assert run(["bench", "curve", *SMALL, "--duration", "1", "--reservation", "max"]) == 0
    assert "load sustained at 0.1 s per token" in capsys.readouterr().out


def test_a_trace_gives_the_lengths(tmp_path, capsys):
    path = tmp_path / "t.csv"
    path.write_text("ContextTokens,GeneratedTokens\n" + "30,20\n" * 30)

    got = document(capsys, "memory", *SMALL[:-2], "--trace", str(path), "--block-size", "8")

    assert (got["workload"]["name"], got["workload"]["requests"]) == ("t.csv", 30)
    assert (got["workload"]["mean_input"], got["workload"]["seed"]) == (30.0, None)


@pytest.mark.parametrize("command", ["memory", "curve"])
def test_a_picture_is_written(tmp_path, capsys, command):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    short = ["--duration", "1"] if command == "curve" else ["--n", "1,2"]

    assert run(["bench", command, *SMALL, *short, "--reservation", "max", "--plot", str(path)]) == 0

    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_the_error_says_how_to_get_it(monkeypatch, capsys):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    assert run(["bench", "memory", *SMALL, "--plot", "x.png"]) == 2
    assert "pip install 'octavo[plot]'" in capsys.readouterr().err


BAD = [
    (["memory", "--reservation", "orca"], "reservation 'orca' is not one of on_demand, max"),
    (["memory", "--memory", "-12"], "--memory must be a size such as 12GiB"),
    (["memory", "--memory", "1MB"], "give --memory 1.57GiB, or lower --max-length"),
    (["memory", "--block-size", "0"], "--block-size must be at least 1, got 0"),
    (["memory", "--block-size", "8,x"], "--block-size must be whole numbers"),
    (["memory", "--n", "0"], "--n must be at least 1, got 0"),
    (["memory", "--n", "1,65"], "--n must be at most 64, got 65"),
    (["memory", "--requests", "0"], "--requests must be at least 1, got 0"),
    (["memory", "--requests", "2"], "all 2 requests run at once"),
    (["memory", "--dtype", "int4"], "KV dtype 'int4' is not one of"),
    (["memory", "--max-length", "1"], "--max-length must be at least 2"),
    (["memory", "--max-num-seqs", "0"], "--max-num-seqs must be at least 1"),
    (["memory", "--head-dim", "0"], "--head-dim must be from 1"),
    (["memory", "--distribution", "normal"], "distribution 'normal' is not one of"),
    (["memory", "--trace", "no/such/file"], "cannot read no/such/file"),
    (["memory", "--trace", "x", "--distribution", "y"], "not both"),
    (["memory", "--plot", "no/such/folder/x.png"], "there is no folder no/such/folder"),
    (["memory", "--plot", "x.gif"], "--plot must name a file that ends in .png"),
    (["curve", "--reservation", "orca"], "reservation 'orca' is not one of"),
    (["curve", "--block-size", "0"], "--block-size must be at least 1, got 0"),
    (["curve", "--bound", "0"], "--bound must be a positive number"),
    (["curve", "--duration", "-1"], "--duration must be a positive number"),
    (["curve", "--rates", "1,no"], "--rates must be positive numbers by commas, got 'no'"),
    (["curve", "--seconds", "3"], "--seconds is for --real"),
    (["curve", "--model", "x"], "--model is for --real"),
    (["curve", "--device", "cpu"], "--device is for --real"),
    (["curve", "--real", "--memory", "1GiB"], "--memory is for the simulation"),
    (["curve", "--real", "--max-num-seqs", "3"], "--max-num-seqs is for the simulation"),
    (["curve", "--real", "--model", ""], "the model is ''"),
    (["curve", "--real", "--model", "no/such/model"], "there is no model at no/such/model"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(arguments, message, capsys):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")

    assert run(["bench", *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_an_empty_trace_is_one_line_and_exit_status_2(tmp_path, capsys):
    path = tmp_path / "empty.csv"
    path.write_text("")

    assert run(["bench", "memory", "--trace", str(path)]) == 2
    assert "holds no request" in capsys.readouterr().err


def test_a_real_model_is_measured_with_texts_up_to_its_context(tiny_gguf, capsys):
    few = ["--model", str(tiny_gguf), "--seconds", "0.2", "--requests", "200"]
    assert run(["bench", "curve", "--real", *few, "--json"]) == 0

    captured = capsys.readouterr()
    got = json.loads(captured.out)
    assert captured.err.startswith("octavo: texts are up to 512 tokens, the context of tiny.gguf")
    assert got["pool"]["max_length"] == 512
    assert [row["reservation"] for row in got["rows"]] == ["max", "on_demand"]


def test_a_real_model_is_measured_with_texts_as_long_as_asked_for(tiny_gguf, capsys):
    few = ["--model", str(tiny_gguf), "--seconds", "0.2", "--requests", "200"]
    got = document(capsys, "curve", "--real", *few, "--max-length", "64")

    assert got["pool"]["max_length"] == 64
    assert got["config"]["device"] == "auto"


@pytest.mark.parametrize("length", ["1", "513"])
def test_a_length_beyond_the_context_of_a_real_model_is_refused(tiny_gguf, capsys, length):
    given = ["--model", str(tiny_gguf), "--max-length", length]

    assert run(["bench", "curve", "--real", *given]) == 2
    assert f"--max-length must be from 2 to 512, the context of tiny.gguf, got {length}" in (
        capsys.readouterr().err
    )


def test_a_real_model_with_windows_is_refused(tmp_path, capsys):
    from tiny_families import make_model

    make_model("gemma3", tmp_path)

    assert run(["bench", "curve", "--real", "--model", str(tmp_path)]) == 2
    assert "has layers with a window" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("rule", ["max", "on_demand"])
def test_an_engine_with_a_full_queue_is_measured_after_a_warm_up(tiny_gguf, rule):
    checkpoint = open_checkpoint(tiny_gguf)
    pool = PoolShape(64 << 10, layers=1, kv_heads=1, head_dim=16, dtype="float32", max_length=64)
    scheduler, cache = deciding_plane(find_rule(rule), pool, 4, StepLimits())
    vocab_size = checkpoint.spec.vocab_size
    engine = Engine(scheduler, cache, CountingRunner(vocab_size), open_tokenizer(checkpoint))
    work = Workload("small", "", ((5, 8), (9, 20), (3, 4)), None)
    clock = itertools.count()

    row = run_real(
        rule, engine, work, in_the_middle=4, vocab_size=vocab_size, seconds=100,
        clock=lambda: float(next(clock)),
    )  # fmt: skip

    assert row.seconds == 100
    assert row.completed > 0
    assert row.output_tokens_per_s == pytest.approx(row.mean_batch, rel=0.1)
    assert not engine.busy
    assert engine.usage().blocks_used == 0
