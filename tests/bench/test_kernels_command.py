"""`octavo bench kernels` as a user meets it, with a model of two small layers."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from octavo import cpu
from octavo.bench import kernels
from octavo.bench.kernels import LAYOUTS, KernelPlan
from octavo.cli import run

_cpu = cpu.native()
if _cpu is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

SMALL = KernelPlan(
    formats=("q4", "f16"),
    layer=((96, 64), (64, 96)),
    layers=2,
    head=(500, 64),
    rows=(1, 3),
    decode=((1, 32), (3, 160)),
    prefill=(48,),
    prefill_layers=1,
    prefix=(4, 512, 16),
    least_bytes=1 << 20,
    most_bytes=1 << 20,
)
FAST = ["--threads", "2", "--seconds", "0.001"]
ENVELOPE = ["schema", "version", "commit", "machine", "config"]


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(kernels, "KernelPlan", lambda: SMALL)


def document(capsys, *arguments) -> dict:
    assert run(["bench", "kernels", *FAST, *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_record_has_the_documented_keys(small, capsys):
    got = document(capsys)

    assert list(got)[:5] == ENVELOPE
    assert set(got) == {
        *ENVELOPE, "isa", "read_bytes_per_s", "operations_per_s", "linear", "attention",
    }  # fmt: skip
    assert got["schema"] == "octavo.bench.kernels/1"
    assert (got["config"]["threads"], got["config"]["seconds"]) == (2, 0.001)
    assert got["isa"] == _cpu.isa()
    assert len(got["read_bytes_per_s"]) == 2  # before and after
    assert set(got["operations_per_s"]) == {"integers", "bf16", "float32"}
    assert all(peak > 1e8 for peak in got["operations_per_s"].values())


def test_every_format_has_its_layers_and_its_head_with_each_number_of_rows(small, capsys):
    rows = document(capsys)["linear"]

    assert [(row["format"], row["part"], row["rows"]) for row in rows] == [
        (name, part, count)
        for name in ("q4", "f16")
        for part in ("layers", "head")
        for count in (1, 3)
    ]
    for row in rows:
        floor = max(row["byte_floor_s"], row["arithmetic_floor_s"])
        assert 0 < row["fastest_s"] <= row["seconds"]
        assert row["reached"] > 0
        assert floor > 0
    halves = next(row for row in rows if row["format"] == "f16" and row["rows"] == 3)
    assert halves["weight_bytes"] == 2 * 2 * (96 * 64 + 64 * 96)
    assert halves["operations"] == 2 * 3 * 2 * (96 * 64 + 64 * 96)


def test_attention_is_timed_in_blocks_and_without_them(small, capsys):
    rows = document(capsys)["attention"]

    assert [(row["kind"], row["sequences"], row["context"], row["layout"]) for row in rows] == [
        *(("decode", 1, 32, layout) for layout in LAYOUTS),
        *(("decode", 3, 160, layout) for layout in LAYOUTS),
        *(("prefill", 1, 48, layout) for layout in LAYOUTS),
        ("prefix", 4, 528, "unshared"),
        ("prefix", 4, 528, "shared"),
    ]
    for row in rows:
        is_baseline = row["layout"] in ("contiguous", "unshared")
        assert (row["times_baseline"] == 1) == is_baseline
        held_to_a_goal = row["kind"] == "decode" and not is_baseline
        assert (row["goal"] in (0.55, 0.70)) == held_to_a_goal
        assert (row["met"] is not None) == held_to_a_goal


def test_bytes_and_operations_of_attention_are_counted_by_hand(small, capsys):
    rows = {(row["kind"], row["layout"]): row for row in document(capsys)["attention"]}
    token = 3 * 64 * 2 * 2  # KV heads, numbers, keys and values, bf16

    decode = rows["decode", "shuffled"]
    assert decode["kv_bytes"] == 3 * 160 * token
    assert decode["operations_per_s"] * decode["seconds"] == pytest.approx(4 * 9 * 64 * 160 * 3)
    prompt = rows["prefill", "contiguous"]
    assert prompt["operations_per_s"] * prompt["seconds"] == pytest.approx(
        4 * 9 * 64 * sum(range(1, 49))
    )
    assert rows["prefix", "unshared"]["kv_bytes"] == 4 * 528 * token
    assert rows["prefix", "shared"]["kv_bytes"] == (512 + 4 * 16) * token


def test_tables_are_for_people(small, capsys):
    assert run(["bench", "kernels", *FAST]) == 0

    shown = capsys.readouterr().out
    for title in (
        "what memory and arithmetic allow",
        "linear layers of one step",
        "decode attention, one layer",
        "attention of a prompt",
        "of sequences with one prefix",
    ):
        assert title in shown


def test_a_picture_is_written(small, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"

    assert run(["bench", "kernels", *FAST, "--plot", str(path)]) == 0
    assert "<svg" in path.read_text()


def test_all_formats_of_the_extension_are_timed_by_default(small, monkeypatch, capsys):
    plan = replace(SMALL, formats=(), rows=(1,), decode=(), prefill=())
    monkeypatch.setattr(kernels, "KernelPlan", lambda: plan)

    rows = document(capsys)["linear"]

    assert {row["format"] for row in rows} == set(_cpu.formats())


def test_a_machine_with_too_little_memory_is_told_so_before_anything_runs(monkeypatch, capsys):
    monkeypatch.setattr("octavo.machine.free_memory_bytes", lambda: 1 << 20)

    assert run(["bench", "kernels"]) == 2
    message = capsys.readouterr().err
    assert "of memory, but only 1.00 MiB are free: end other programs first" in message


BAD = [
    (["--threads", "0"], "--threads must be from 1 to 1024, got 0"),
    (["--threads", "1025"], "--threads must be from 1 to 1024, got 1025"),
    (["--seconds", "0"], "--seconds must be above 0 and at most 60, got 0"),
    (["--seconds", "61"], "--seconds must be above 0 and at most 60, got 61"),
    (["--seconds", "nan"], "--seconds must be above 0 and at most 60, got nan"),
    (["--rows", "3"], "unrecognized arguments: --rows"),
    (["--plot", "x.gif"], "--plot must name a file that ends in .png"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_options_are_one_line_and_exit_status_2(arguments, message, capsys):
    if "--plot" in arguments:
        pytest.importorskip("matplotlib")

    assert run(["bench", "kernels", *arguments]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
