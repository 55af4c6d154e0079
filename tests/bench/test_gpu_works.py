"""The works of a GPU: what the goals were set on, run by `octavo bench throughput` on any shape."""

from __future__ import annotations

import importlib.util
import json
import os
from hashlib import blake2b
from pathlib import Path
from unittest import mock

import msgspec
import pytest

from octavo.bench.engine_facts import engine_facts, process_age_s
from octavo.bench.gpu_goals import COMPARISONS, StartGoal, comparable
from octavo.bench.show_gpu import gpu_table, start_line
from octavo.bench.throughput import measure_throughput
from octavo.bench.works import CPU_WORKS, GPU_WORKS, draw_work, find_works
from octavo.cli import run
from octavo.errors import ConfigError
from octavo.models.shapes import SHAPES
from octavo.testing.tiny import tiny_spec

SHARED = Path(__file__).resolve().parents[3] / "shared" / "peers" / "vllm_gpu.py"
ENVELOPE = ["schema", "version", "commit", "machine", "config"]
SMALL = ["--backend", "reference", "--device", "cpu", "--kv-cache-memory-bytes", str(1 << 21)]

# (requests, prompt tokens, output tokens, longest text, digest of all ids and lengths)
EXPECTED = {
    "decode_b1": (1, 1024, 256, 1280, "55e6a02472845eb6"),
    "decode_b64": (64, 65_536, 16_384, 1280, "805b6c3c9c5939d3"),
    "decode_b256": (256, 262_144, 65_536, 1280, "f37d8feb1d605c79"),
    "prefill_32x4k": (32, 131_072, 32, 4097, "27f3dafac6c50e23"),
    "prefix_64x8k": (64, 528_384, 4096, 8320, "98218ecaacc9138b"),
    "chat_1000": (1000, 163_399, 310_403, 2367, "4952e4acd8bd3ece"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_a_work_never_changes(name):
    work = draw_work(name, table=GPU_WORKS)

    digest = blake2b(json.dumps(work.requests).encode(), digest_size=8).hexdigest()
    counts = (len(work.requests), work.prompt_tokens, work.output_tokens, work.longest)
    assert (*counts, digest) == EXPECTED[name]


@pytest.mark.skipif(not SHARED.is_file(), reason=f"there is no {SHARED}")
def test_the_works_are_those_that_the_other_engine_ran():
    spec = importlib.util.spec_from_file_location("vllm_gpu", SHARED)
    theirs = importlib.util.module_from_spec(spec)
    with mock.patch.dict(os.environ):
        spec.loader.exec_module(theirs)

    for name in GPU_WORKS.names:
        ours = draw_work(name, table=GPU_WORKS).requests
        assert [tuple(request) for request in ours] == theirs.workload(name)


def test_prompts_of_the_prefix_work_begin_alike_and_end_apart():
    prompts = [request.prompt for request in draw_work("prefix_64x8k", table=GPU_WORKS).requests]

    assert len({tuple(prompt[:8192]) for prompt in prompts}) == 1
    assert len({tuple(prompt[8192:]) for prompt in prompts}) == 64


def test_all_works_fit_what_the_engines_are_given():
    works = find_works(None, vocab_size=128_256, context=16_384, table=GPU_WORKS)

    assert [work.name for work in works] == list(GPU_WORKS.names) == list(COMPARISONS)


@pytest.mark.parametrize(
    ("name", "table", "message"),
    [
        ("decode_b1", CPU_WORKS, "not one of single,.*: it belongs to --load-format dummy"),
        ("single", GPU_WORKS, "not one of decode_b1,.*: it belongs to --load-format auto"),
        ("decode_b2", GPU_WORKS, "'decode_b2' is not one of decode_b1,.*chat_1000$"),
    ],
)
def test_a_work_of_the_other_table_is_refused_with_the_way_to_it(name, table, message):
    with pytest.raises(ConfigError, match=message):
        draw_work(name, table=table)


# ── goals ─────────────────────────────────────────────────────────────────────────────────


def judged(name, *seconds):
    given = iter((100.0, *seconds))
    row = measure_throughput(
        draw_work(name, table=GPU_WORKS),
        lambda work: next(given),
        rounds=len(seconds),
        bandwidth=None,
        advance=lambda amount: None,
    )
    return row.judged(COMPARISONS[name])


@pytest.mark.parametrize(
    ("name", "enough", "too_long"),
    [
        ("decode_b1", 256 / 218.1, 256 / 217.9),
        ("prefill_32x4k", 131_104 / 42_010, 131_104 / 41_990),
        ("prefix_64x8k", 0.90, 0.91),
        ("chat_1000", 310_403 / 14_510, 310_403 / 14_490),
    ],
)
def test_a_goal_is_met_by_the_median_of_the_rounds(name, enough, too_long):
    assert judged(name, enough, 50.0, enough).met is True
    assert judged(name, too_long, too_long, enough).met is False


def test_a_row_has_both_speeds_their_spread_and_the_other_engine():
    row = judged("decode_b1", 2.0, 1.0, 4.0)

    assert (row.median_s, row.seconds) == (2.0, [2.0, 1.0, 4.0])
    assert (row.output_tokens_per_s, row.total_tokens_per_s) == (128.0, 640.0)
    assert (row.slowest, row.fastest, row.read_bytes_per_s) == (64.0, 256.0, [])
    assert (row.peer.engine, row.peer.output_tokens_per_s) == ("vLLM 0.26.0", 191)
    assert "NVIDIA H200" in row.peer.source


@pytest.mark.parametrize(
    ("shape", "dtype", "card", "same"),
    [
        ("llama-3.1-8b", "auto", "NVIDIA H200", True),
        ("llama-3.1-8b", "bfloat16", "NVIDIA H200", True),
        ("llama-3.1-8b", "float16", "NVIDIA H200", False),
        ("llama-3.1-8b", "auto", "NVIDIA A100", False),
        ("llama-3.1-8b", "auto", None, False),
        ("qwen3-8b", "auto", "NVIDIA H200", False),
        (None, "auto", "NVIDIA H200", False),
    ],
)
def test_only_what_the_goals_were_set_on_is_compared(shape, dtype, card, same):
    assert comparable(shape, dtype, card) is same


@pytest.mark.parametrize(
    ("seconds", "met"), [(19.0, "yes"), (40.0, "yes, if kernels had"), (61.0, "no")]
)
def test_a_start_is_judged_by_what_had_to_be_compiled(seconds, met):
    assert f"met: {met}" in start_line(seconds, StartGoal())


def test_the_table_says_goal_and_outcome():
    table = gpu_table([judged("prefix_64x8k", 0.8), judged("decode_b1", 2.0)])

    last = [list(column.cells) for column in table.columns][-3:]
    assert last == [
        ["1.520 s", "191 output tokens/s"],
        ["≤ 0.900 s", "≥ 218 output tokens/s"],
        ["yes", "no"],
    ]


# ── the command ───────────────────────────────────────────────────────────────────────────


@pytest.fixture
def tiny_shape(monkeypatch):
    spec = tiny_spec(vocab_size=1200, num_layers=1)
    monkeypatch.setitem(SHAPES, "tiny", msgspec.structs.replace(spec, context=2048))
    return ["--load-format", "dummy", "--shape", "tiny", *SMALL]


def test_a_shape_is_run_and_recorded(tiny_shape, capsys):
    few = ["--work", "decode_b1", "--rounds", "1", "--json"]

    assert run(["bench", "throughput", *tiny_shape, *few]) == 0, capsys.readouterr().err

    got = json.loads(capsys.readouterr().out)
    assert list(got)[:5] == ENVELOPE
    assert set(got) == {*ENVELOPE, "engine", "start_goal", "rows"}
    assert (got["config"]["shape"], got["config"]["load_format"]) == ("tiny", "dummy")
    assert (got["config"]["max_num_batched_tokens"], got["config"]["max_num_seqs"]) == (8192, 256)
    assert got["config"]["model"] == "tiny"
    assert set(got["engine"]) == {"backend", "device", "card", "start_s", "versions"}
    assert (got["engine"]["backend"], got["engine"]["card"]) == ("reference", None)
    assert set(got["engine"]["versions"]) == {"torch", "triton", "flashinfer"}
    (row,) = got["rows"]
    assert (row["work"], row["prompt_tokens"], row["output_tokens"]) == ("decode_b1", 1024, 256)
    assert (row["peer"], row["goal"], row["met"], got["start_goal"]) == (None,) * 4


def test_a_config_alone_is_run_and_shown(tmp_path, capsys):
    config = {
        "model_type": "llama", "vocab_size": 1200, "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 2048,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    dummy = ["--load-format", "dummy", "--model", str(tmp_path), *SMALL]

    assert run(["bench", "throughput", *dummy, "--work", "decode_b1", "--rounds", "1"]) == 0

    out = capsys.readouterr().out
    assert "decode_b1" in out
    assert "engine started:" in out
    assert "vLLM" not in out


DUMMY = ["--load-format", "dummy", "--shape", "tiny"]
BAD = [
    (["--shape", "tiny"], "has no weights, but load_format is 'auto'"),
    (["--shape", "tiny", "--model", "x"], "give one of them"),
    (["--shape", "big", "--load-format", "dummy"], "shape 'big' is not one of llama-2-7b"),
    ([*DUMMY, "--work", "single"], "it belongs to --load-format auto"),
    ([*DUMMY, "--work", "prefill_32x4k"], "a text of 4097 tokens, but the model's context is 2048"),
    (["--load-format", "dumb"], "load_format 'dumb' is not one of auto, dummy"),
    (
        [*DUMMY, "--work", "decode_b1", "--max-num-batched-tokens", "0"],
        "max_num_batched_tokens must be at least 1, got 0",
    ),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(
    tiny_shape, tiny_gguf, monkeypatch, arguments, message, capsys
):
    monkeypatch.setattr("octavo.cli.throughput.model_path", lambda model: tiny_gguf)

    assert run(["bench", "throughput", *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


# ── what a record says of the engine ──────────────────────────────────────────────────────


def test_the_age_of_a_process_grows():
    before = process_age_s()
    if before is None:
        pytest.skip("this system does not say when a process began")

    assert 0 < before <= process_age_s() < 1e6


def test_an_engine_on_the_cpu_has_no_card_and_versions_of_what_is_there():
    torch = pytest.importorskip("torch")

    facts = engine_facts("reference", "cpu")

    assert facts.card is None
    assert facts.versions["torch"] == torch.__version__
