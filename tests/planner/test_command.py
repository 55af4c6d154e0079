"""`octavo plan` as a user meets it."""

from __future__ import annotations

import json

import pytest

from octavo.cli import run

SHAPE = ["--layers", "80", "--kv-heads", "8", "--head-dim", "128"]
KEYS = {
    "kv_bytes_per_token", "groups", "weights_bytes", "workspace_bytes", "graph_bytes",
    "kv_pool_bytes", "blocks", "tokens", "context_tokens", "requests", "kv_bytes_per_request",
    "kv_bytes_all_requests", "kv_bytes_peak_per_request", "memory_needed_bytes",
    "max_concurrent_requests", "fits", "advice", "prefill_rate_per_s",
    "egress_bits_per_s", "cost_per_million_tokens", "fleet",
}  # fmt: skip


def plan_json(capsys, *arguments) -> dict:
    assert run(["plan", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_json_is_one_document_with_the_documented_keys(capsys):
    document = plan_json(capsys, *SHAPE, "--context", "4096", "--memory", "40GB")

    assert list(document)[:5] == ["schema", "version", "commit", "machine", "config"]
    assert document["schema"] == "octavo.plan/1"
    assert set(document) >= KEYS
    assert document["groups"] == [
        {
            "name": "full", "layers": 80, "kv_heads": 8, "head_dim": 128, "window": None,
            "block_size": 16, "block_bytes": 5_242_880, "kv_bytes_per_token": 327_680,
            "kv_bytes_per_request": 1_342_177_280,
        }
    ]  # fmt: skip
    assert document["fits"] is True
    assert document["weights_bytes"] is None
    assert document["fleet"] is None


def test_the_fleet_has_the_documented_keys(capsys):
    money = ["--price-per-hour", "3", "--throughput", "2000", "--load", "30000"]
    document = plan_json(capsys, *SHAPE, "--memory", "40GB", *money)

    assert set(document["fleet"]) >= {"machines", "machines_without_paging", "price_per_hour"}
    assert document["fleet"]["machines"] == 15


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("12GiB", 12 << 30), ("40GB", 40 * 10**9), ("1.5GiB", 3 << 29), ("12884901888", 12 << 30),
        ("512 MiB", 512 << 20), ("7kb", 7000), ("2TiB", 2 << 40),
    ],
)  # fmt: skip
def test_memory_is_read_as_people_write_it(capsys, text, size):
    assert plan_json(capsys, *SHAPE, "--memory", text)["config"]["memory_bytes"] == size


def test_memory_is_what_this_machine_has_free_if_nobody_says(capsys, monkeypatch):
    monkeypatch.setattr("octavo.machine.free_memory_bytes", lambda: 123 << 20)

    assert plan_json(capsys, *SHAPE)["kv_pool_bytes"] == 123 << 20


def test_heads_without_grouping_are_kv_heads(capsys):
    shape = ["--layers", "40", "--heads", "40", "--head-dim", "128"]

    assert plan_json(capsys, *shape, "--memory", "12GiB")["kv_bytes_per_token"] == 819_200


def test_an_impossible_plan_ends_well_and_says_what_would_help(capsys):
    assert run(["plan", *SHAPE, "--context", "4096", "--memory", "1GB"]) == 0

    out = capsys.readouterr().out
    assert "it would fit with --memory 1.25GiB: room for 1 request" in out
    assert "it would fit with --context 3040:" in out


def test_a_plan_for_people_is_a_table_and_a_bar(capsys, tiny_gguf):
    assert run(["plan", str(tiny_gguf), "--memory", "1GiB"]) == 0

    out = capsys.readouterr().out
    assert "KV per token" in out
    assert "░ free" in out


def test_a_price_without_a_throughput_says_what_is_missing(capsys):
    assert run(["plan", *SHAPE, "--memory", "1GB", "--price-per-hour", "2"]) == 0

    assert "give --throughput" in capsys.readouterr().err


def test_advice_can_be_pasted(capsys):
    arguments = [*SHAPE, "--context", "5000", "--requests", "7"]
    advice = plan_json(capsys, *arguments, "--memory", "3GB")["advice"]

    for line in advice:
        flags = line.partition(":")[0].split()
        assert plan_json(capsys, *arguments, "--memory", "3GB", *flags)["fits"], line


BAD = [
    ([""], "the model is '': give a path, a known name or a hub id"),
    (["src"], "src is a folder without config.json"),
    ([*SHAPE, "--heads", "7"], "--heads is 7 and --kv-heads 8"),
    ([*SHAPE, "--heads", "12"], "--heads is 12 and --kv-heads 8"),
    ([*SHAPE, "--heads", "0"], "--heads must be from 1"),
    (["x", "--heads", "12"], "a model or a shape"),
    (["--layers", "80"], "a shape needs --layers, --kv-heads (or --heads) and --head-dim"),
    (["no/such/model"], "there is no model at no/such/model"),
    (["x", *SHAPE], "a model or a shape"),
    ([*SHAPE, "--memory", "-5"], "--memory must be a size such as 12GiB"),
    ([*SHAPE, "--memory", "0"], "--memory must be between 1 byte and 2^63"),
    ([*SHAPE, "--memory", "12 parsecs"], "--memory must be a size such as 12GiB"),
    ([*SHAPE, "--memory", "1e400GB"], "--memory must be"),
    ([*SHAPE, "--dtype", "int3"], "--dtype 'int3' is not one of"),
    ([*SHAPE, "--context", "1"], "--context must be at least 2 tokens"),
    ([*SHAPE, "--requests", "0"], "--requests must be at least 1"),
    ([*SHAPE, "--block-size", "0"], "--block-size must be at least 1"),
    ([*SHAPE, "--prefill-rate", "0"], "--prefill-rate must be positive"),
    ([*SHAPE, "--price-per-hour", "-1"], "--price-per-hour must be a positive number"),
    ([*SHAPE, "--throughput", "nan"], "--throughput must be a positive number"),
    ([*SHAPE, "--share-without-paging", "0"], "--share-without-paging must be above 0"),
    (["--layers", "0", "--kv-heads", "8", "--head-dim", "128"], "--layers must be from 1"),
    ([*SHAPE, "--context", str(2**62), "--requests", "99"], "need 2^63 bytes or more"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_input_is_one_line_and_exit_status_2(arguments, message, capsys):
    assert run(["plan", *arguments]) == 2

    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.strip().splitlines()) == 1
    assert captured.out == ""


def test_weights_and_kv_are_counted_as_the_engine_would_hold_them(capsys, tmp_path):
    from octavo import LLM
    from octavo.build import choose_executor
    from octavo.config import EngineConfig
    from tiny_model import write_tiny_gguf

    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrix_type="Q4_0")
    document = plan_json(capsys, str(path), "--memory", "1GiB")
    with LLM(str(path), kv_cache_memory_bytes=1 << 20) as llm:
        layout = llm.built.layout

    assert document["dtype"] == layout.dtype
    assert document["kv_bytes_per_token"] == layout.bytes_per_token
    assert document["weights_bytes"] == choose_executor(EngineConfig(model=str(path))).weight_bytes


def test_a_context_beyond_the_models_is_refused(capsys):
    arguments = ["--shape", "llama-3.1-8b", "--memory", "200GB", "--context", "200000"]

    assert run(["plan", *arguments]) == 2
    message = "--context is 200000, but the model's context is 131072: lower it"
    assert message in capsys.readouterr().err
