"""`octavo bench serve` against our own server: both count the same."""

from __future__ import annotations

import json
import re
import urllib.request

import pytest
from sockets import in_a_thread
from tiny_served import worded

from octavo.cli.app import run_command
from octavo.server.metrics.requests import RequestMeters
from octavo.testing.near_core import fake_loop
from octavo.testing.near_server import near_server


@pytest.fixture
def address(tiny_tokenizer):
    options = worded(tiny_tokenizer, num_blocks=2000, max_model_len=400)
    with in_a_thread(near_server(**options, meters=RequestMeters())) as url:
        yield url


def metric(address, name):
    text = urllib.request.urlopen(f"{address}/metrics", timeout=5).read().decode()
    return sum(float(value) for value in re.findall(rf"^{name}(?:{{.*}})? (\S+)$", text, re.M))


@pytest.mark.parametrize("backend", ["openai", "openai-chat"])
def test_what_the_client_counts_is_what_the_metrics_say(address, backend, capfd):
    status = run_command([
        "bench", "serve", "--base-url", address, "--backend", backend, "--num-prompts", "12",
        "--dataset-name", "prefix-repetition", "--prefix-repetition-prefix-len", "20",
        "--prefix-repetition-suffix-len", "4", "--prefix-repetition-num-prefixes", "2",
        "--prefix-repetition-output-len", "5", "--max-concurrency", "3", "--ignore-eos",
        "--save-detailed", "--json",
    ])  # fmt: skip

    assert status == 0
    found = json.loads(capfd.readouterr().out)
    assert (found["completed"], found["failed"]) == (12, 0)
    assert found["total_output_tokens"] == 60 == metric(address, "vllm:generation_tokens_total")
    assert found["total_input_tokens"] == metric(address, "vllm:prompt_tokens_total")
    hits = metric(address, "vllm:prefix_cache_hits_total")
    assert sum(found["cached_lens"]) == hits > 0
    assert found["cached_prompt_share"] == pytest.approx(hits / found["total_input_tokens"])
    assert metric(address, "vllm:time_to_first_token_seconds_count") == 12
    assert metric(address, "vllm:request_success_total") == 12


def test_preemptions_of_requests_add_up_to_those_of_the_engine(tiny_tokenizer, capfd):
    options = worded(tiny_tokenizer, num_blocks=30, max_model_len=100)
    with in_a_thread(near_server(**options, meters=RequestMeters())) as url:
        status = run_command([
            "bench", "serve", "--base-url", url, "--num-prompts", "10", "--random-input-len", "12",
            "--random-output-len", "40", "--ignore-eos", "--json",
        ])  # fmt: skip

        assert (status, json.loads(capfd.readouterr().out)["completed"]) == (0, 10)
        told = metric(url, "vllm:request_num_preemptions_sum")
        assert told == metric(url, "vllm:num_preemptions_total") > 0


def test_a_server_without_a_tokenizer_is_asked_and_measured_by_token_ids(tmp_path, capfd):
    trace = tmp_path / "trace.jsonl"
    recorded = {"timestamp": 0, "input_length": 40, "output_length": 5, "hash_ids": [1]}
    trace.write_text(json.dumps(recorded) + "\n")
    options = {"build": lambda: fake_loop(2000, max_model_len=400)}
    with in_a_thread(near_server(**options, meters=RequestMeters())) as url:
        line = ["bench", "serve", "--base-url", url, "--num-prompts", "5", "--num-warmups", "1"]
        heads = "--dataset-name prefix-repetition --prefix-repetition-prefix-len 20"
        tails = "--prefix-repetition-suffix-len 4 --prefix-repetition-output-len 5"
        for load, asked in (
            (["--random-input-len", "12", "--random-output-len", "5"], 5 * 12),
            (f"{heads} {tails}".split(), 5 * 24),
            (["--dataset-name", "trace", "--dataset-path", str(trace)], 40),
        ):
            assert run_command([*line, *load, "--json"]) == 0
            told = capfd.readouterr()
            found = json.loads(told.out)
            assert found["failed"] == 0
            assert found["total_input_tokens"] == asked
            assert found["total_output_tokens"] == 5 * found["completed"]
            assert found["mean_ttft_ms"] > 0
            assert found["prompts"] == "token ids"
            assert "the server has no tokenizer" in told.err

        for wrong in (["--backend", "openai-chat"], ["--dataset-name", "custom"]):
            assert run_command([*line, *wrong]) == 2
            assert "no" in capfd.readouterr().err
