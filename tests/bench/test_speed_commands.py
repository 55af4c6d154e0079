"""`octavo bench throughput`, `latency` and `peers` as a user meets them."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from octavo.cli import run

ENVELOPE = ["schema", "version", "commit", "machine", "config"]
FAKE = Path(__file__).resolve().parents[1] / "fake_engine.py"


def document(capsys, *arguments) -> dict:
    assert run(["bench", *map(str, arguments), "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def environments(folder: Path, **modes: str) -> Path:
    """Make environments whose interpreter is a fake engine."""
    for name, mode in modes.items():
        python = folder / name / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f"#!/bin/sh\nexec {sys.executable} {FAKE} {mode}\n")
        python.chmod(0o755)
    return folder


# ── throughput ────────────────────────────────────────────────────────────────────────────


def test_throughput_prints_the_documented_keys(tiny_gguf, capsys):
    pytest.importorskip("octavo._cpu")
    few = ["--model", tiny_gguf, "--work", "batch8,single", "--rounds", "2"]

    got = document(capsys, "throughput", *few, "--backend", "cpu", "--cpu-arithmetic", "float32")

    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "engine", "start_goal", "rows"}
    assert got["schema"] == "octavo.bench.throughput/1"
    assert got["engine"]["backend"] == "cpu"
    assert (got["config"]["backend"], got["config"]["cpu_arithmetic"]) == ("cpu", "float32")
    assert (got["config"]["model"], got["config"]["rounds"]) == ("tiny.gguf", 2)
    single, batch8 = got["rows"]
    assert (single["work"], batch8["work"]) == ("single", "batch8")
    assert set(single) == {
        "work", "counts", "tokens_per_s", "slowest", "fastest", "output_tokens_per_s",
        "total_tokens_per_s", "prompt_tokens", "output_tokens", "median_s", "seconds",
        "read_bytes_per_s", "peer", "goal", "met",
    }  # fmt: skip
    assert (single["counts"], single["output_tokens"]) == ("output tokens", 128)
    assert single["slowest"] <= single["tokens_per_s"] <= single["fastest"]
    assert len(single["seconds"]) == 2
    assert len(single["read_bytes_per_s"]) == 3


def test_throughput_runs_on_another_backend(tiny_gguf, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    few = ["--model", str(tiny_gguf), "--work", "single", "--rounds", "1"]

    assert run(["bench", "throughput", *few, "--backend", "reference", "--plot", str(path)]) == 0

    assert "one engine, the works" in capsys.readouterr().out
    assert path.read_bytes().startswith(b"\x89PNG")


# ── latency ───────────────────────────────────────────────────────────────────────────────

SMALL = ["--batch", "1,2", "--prompt", "8", "--max-tokens", "4", "--rows", "1,2"]
SMALL += ["--rounds", "1", "--memory", "4MiB"]


def test_latency_prints_the_documented_keys(tiny_gguf, capsys):
    pytest.importorskip("octavo._cpu")
    few = ["--model", tiny_gguf, *SMALL, "--context", "16,32,64", "--backend", "cpu"]

    got = document(capsys, "latency", *few)

    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "requests", "steps", "lines", "read_bytes_per_s"}
    assert got["schema"] == "octavo.bench.latency/1"
    assert [(row["batch"], row["context"]) for row in got["requests"]] == [(1, 8), (2, 8)]
    first, gaps = got["requests"][1]["first_token_s"], got["requests"][1]["token_s"]
    assert (first["count"], gaps["count"]) == (2, 2 * 3)
    assert 0 < gaps["median"] <= gaps["p90"] <= gaps["p99"]
    assert [(row["rows"], row["context"]) for row in got["steps"]] == [
        (rows, context) for rows in (1, 2) for context in (16, 32, 64)
    ]
    assert all(row["step_s"] > row["floor_s"] > 0 for row in got["steps"])
    assert [line["rows"] for line in got["lines"]] == [1, 2]


def test_latency_draws_and_shows_what_the_model_has_room_for(tiny_gguf, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"
    few = ["--model", str(tiny_gguf), *SMALL, "--backend", "reference", "--plot", str(path)]

    assert run(["bench", "latency", *few]) == 0

    out = capsys.readouterr().out
    assert "milliseconds of requests" in out
    assert "511" in out  # the context of the tiny model, less the token that a step writes
    assert path.read_bytes().startswith(b"\x89PNG")


# ── peers ─────────────────────────────────────────────────────────────────────────────────


def test_a_comparison_prints_the_documented_keys(tiny_gguf, tiny_folder, tmp_path, capsys):
    pytest.importorskip("octavo._cpu")
    folder = environments(tmp_path, llamacpp="answer 90", vllm="answer 60", openvino="die")
    (folder / "bf16").mkdir()
    (folder / "bf16" / "tiny").symlink_to(tiny_folder)
    few = ["--model", tiny_gguf, "--work", "single,batch32-bf16", "--rounds", "2"]

    got = document(capsys, "peers", *few, "--environments", folder)

    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "versions", "rows", "left_out"}
    assert got["schema"] == "octavo.bench.peers/1"
    assert set(got["versions"]) == {"octavo", "llamacpp", "openvino", "vllm", "octavo on bf16"}
    single, bf16 = got["rows"]
    assert (single["match"], single["best_peer"], single["met"]) == ("single", "vllm", True)
    assert [speed["engine"] for speed in single["speeds"]] == ["octavo", "llamacpp", "vllm"]
    assert [speed["engine"] for speed in bf16["speeds"]] == ["octavo", "vllm"]
    assert set(single["speeds"][0]["rounds"][0]) == {"seconds", "read_bytes_per_s"}
    assert "out of luck" in got["left_out"]["openvino"]


def test_an_engine_that_is_not_set_up_is_left_out(tiny_gguf, tmp_path, capsys):
    pytest.importorskip("octavo._cpu")
    pytest.importorskip("matplotlib")
    folder, picture = environments(tmp_path, openvino="answer 60"), tmp_path / "picture.png"
    few = ["--model", str(tiny_gguf), "--work", "single", "--rounds", "1"]

    status = run(
        ["bench", "peers", *few, "--environments", str(folder), "--plot", str(picture)]
    )  # fmt: skip

    captured = capsys.readouterr()
    assert status == 0, captured.err
    assert f"there is no {folder}/vllm/bin/python" in captured.err
    assert "openvino" in captured.out
    assert "÷ best peer" in captured.out
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_comparison_with_nobody_is_refused(tiny_gguf, tmp_path, capsys):
    pytest.importorskip("octavo._cpu")
    few = ["--model", str(tiny_gguf), "--work", "batch8", "--environments", str(tmp_path)]

    assert run(["bench", "peers", *few]) == 2
    assert "make bench-peers" in capsys.readouterr().err.splitlines()[-1]


BAD = [
    (["throughput", "--work", "single8"], "--work 'single8' is not one of single"),
    (["throughput", "--work", "prefill512"], "has a text of 513 tokens"),
    (["throughput", "--rounds", "0"], "--rounds must be from 1 to 1000, got 0"),
    (["throughput", "--work", "single", "--backend", "abacus"], "abacus"),
    (["throughput", "--plot", "x.gif"], "--plot must name a file that ends in .png"),
    (["latency", "--batch", "0"], "--batch must be at least 1, got 0"),
    (["latency", "--prompt", "500"], "texts of 564 tokens, but the model's context is 512"),
    (["latency", "--max-tokens", "1"], "--max-tokens must be from 2 to 4096, got 1"),
    (["latency", "--prompt", "8", "--context", "512"], "--context must be at most 511, got 512"),
    (["latency", "--prompt", "8", "--memory", "10"], "KV memory of 10 bytes"),
    (["peers", "--peers", "orca"], "--peers 'orca' is not one of llamacpp, openvino, vllm"),
    (["peers", "--threads", "0"], "--threads must be from 1 to 1024, got 0"),
    (["peers", "--limit", "-1"], "--limit must be a positive number of seconds"),
    (["peers", "--work", "batch9"], "--work 'batch9' is not one of"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(tiny_gguf, arguments, message, capsys):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")

    assert run(["bench", *arguments, "--model", str(tiny_gguf)]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_a_folder_is_no_file_that_all_engines_read(tiny_folder, capsys):
    assert run(["bench", "peers", "--model", str(tiny_folder)]) == 2
    assert "the other engines read a GGUF file" in capsys.readouterr().err


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="processes have no groups here")
def test_our_own_engine_that_cannot_be_loaded_ends_the_comparison(tiny_gguf, tmp_path, capsys):
    folder = environments(tmp_path, openvino="answer")
    few = ["--model", str(tiny_gguf), "--work", "single", "--environments", str(folder)]

    assert run(["bench", "peers", *few, "--cpu-arithmetic", "int9"]) == 2
    assert "octavo itself could not be loaded" in capsys.readouterr().err
