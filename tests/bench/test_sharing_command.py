"""`octavo bench sharing` as a user meets it."""

from __future__ import annotations

import gzip
import json

import pytest

from octavo.cli import run

ENVELOPE = ["schema", "version", "commit", "machine", "config"]
SMALL = ["--requests", "2", "--n", "2", "--width", "2,3", "--distribution", "alpaca-lognormal"]


def sharing(model, *arguments) -> int:
    return run(["bench", "sharing", "--model", str(model), *arguments])


def test_sharing_prints_the_documented_keys(tiny_gguf, capsys):
    assert sharing(tiny_gguf, "--part", "time,lengths", *SMALL, "--json") == 0

    got = json.loads(capsys.readouterr().out)
    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "rows", "curves", "runs", "timing", "read_bytes_per_s"}
    assert got["schema"] == "octavo.bench.sharing/1"
    assert set(got["rows"][0]) >= {
        "workload", "method", "n_or_width", "logical_blocks", "physical_blocks",
        "blocks_saved_share", "step_s", "resubmit_step_s",
    }  # fmt: skip
    assert [(row["workload"], row["method"], row["n_or_width"]) for row in got["rows"]] == [
        ("alpaca-lognormal", "samples", 2),
        ("alpaca-lognormal", "beams", 2),
        ("alpaca-lognormal", "beams", 3),
        ("time", "beams", 4),
    ]
    assert got["config"]["part"] == ["lengths", "time"]
    assert got["config"]["requests"] == {"alpaca-lognormal": 2}
    last = got["rows"][-1]
    assert last["step_s"] > 0
    assert last["resubmit_step_s"] > 0
    assert got["timing"]["same_beams"] is True
    assert [way["way"] for way in got["timing"]["ways"]] == [
        "native", "resubmit", "resubmit with prefix cache",
    ]  # fmt: skip


def test_tables_and_a_picture_are_for_people(tiny_gguf, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.png"

    assert sharing(tiny_gguf, "--part", "lengths", *SMALL, "--plot", str(path)) == 0

    captured = capsys.readouterr()
    assert "KV blocks held, averaged over steps" in captured.out
    assert "GB/s before" in captured.out
    assert "texts are up to 512 tokens, the context of tiny.gguf" in captured.err
    assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("name", ["text.txt", "text.txt.gz"])
def test_prompts_are_cut_from_a_text_of_ones_own(tiny_gguf, tmp_path, capsys, name):
    path = tmp_path / name
    data = ("In the beginning there was a text. " * 20).encode()
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)

    assert sharing(tiny_gguf, "--part", "lengths", *SMALL, "--texts", str(path), "--json") == 0
    assert json.loads(capsys.readouterr().out)["config"]["text"] == str(path)


BAD = [
    (["--part", "lengths,prices"], "--part 'prices' is not one of lengths, prompt, time"),
    (["--part", ""], "--part '' is not one of"),
    (["--width", "0"], "--width must be at least 1, got 0"),
    (["--width", "2,33"], "--width must be at most 32, got 33"),
    (["--n", "x"], "--n must be whole numbers"),
    (["--requests", "0"], "--requests must be from 1 to 1000, got 0"),
    (["--part", "lengths", "--distribution", "normal"], "distribution 'normal' is not one of"),
    (["--part", "prompt"], "but the context of tiny.gguf is 512: give --part lengths,time"),
    (
        ["--part", "time", "--requests", "3"],
        "--requests is for the part lengths, but --part is time",
    ),
    (["--part", "time", "--n", "2"], "--n is for the part lengths"),
    (["--texts", "no/such/file"], "cannot read no/such/file"),
    (["--plot", "x.gif"], "--plot must name a file that ends in .png"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(tiny_gguf, arguments, message, capsys):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")

    assert sharing(tiny_gguf, *arguments) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_a_text_that_is_too_short_says_how_many_tokens_it_needs(tiny_gguf, tmp_path, capsys):
    path = tmp_path / "short.txt"
    path.write_text("hello")

    assert sharing(tiny_gguf, "--part", "time", "--texts", str(path)) == 2
    assert "tokens, but 1 prompts of up to 64 need 64: give a longer --texts" in (
        capsys.readouterr().err
    )


def test_a_text_that_is_no_utf8_says_where(tiny_gguf, tmp_path, capsys):
    path = tmp_path / "latin.txt"
    path.write_bytes("früh".encode("latin-1"))

    assert sharing(tiny_gguf, "--texts", str(path)) == 2
    assert "is not UTF-8 at byte 2" in capsys.readouterr().err


def test_a_model_with_windows_is_refused(tmp_path, capsys):
    from tiny_families import make_model

    make_model("gemma3", tmp_path)

    assert sharing(tmp_path, "--part", "time") == 2
    assert "has layers with a window" in capsys.readouterr().err.splitlines()[-1]
