"""`octavo bench serve`: what it prints and saves, and what it refuses."""

from __future__ import annotations

import asyncio
import json
import threading
from contextlib import contextmanager

import pytest
from stub_server import Stub, listening

from octavo.cli.app import run_command


@contextmanager
def served(stub):
    """Run a stub in a thread of its own: a command has its own event loop."""
    ready, stop, addresses = threading.Event(), [], []

    async def serve():
        async with listening(stub) as address:
            addresses.append(address)
            stop.append((asyncio.get_running_loop(), asyncio.Event()))
            ready.set()
            await stop[0][1].wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    assert ready.wait(5)
    try:
        yield addresses[0]
    finally:
        loop, event = stop[0]
        loop.call_soon_threadsafe(event.set)
        thread.join(5)


def bench(address, *more, count=6):
    return run_command([
        "bench", "serve", "--base-url", address, "--num-prompts", str(count),
        "--random-input-len", "20", "--random-output-len", "4", *more,
    ])  # fmt: skip


def test_the_console_block_has_the_usual_lines_and_the_share_that_was_cached(capfd):
    with served(Stub()) as address:
        assert bench(address, "--max-concurrency", "2") == 0

    text = capfd.readouterr().out
    for line in (
        "Serving Benchmark Result", "Successful requests:                     6",
        "Maximum request concurrency:             2", "Benchmark duration (s):",
        "Total input tokens:", "Output token throughput (tok/s):", "Mean TTFT (ms):",
        "Median TPOT (ms):", "P99 ITL (ms):", "Prompt tokens found in cache (%):        ",
    ):  # fmt: skip
        assert line in text


def test_goodput_takes_its_bounds_as_several_words(capfd):
    with served(Stub()) as address:
        bench(address, "--goodput", "ttft:5000", "e2el:9000", "--json")
        found = json.loads(capfd.readouterr().out)
        bench(address, "--goodput", "e2el:0.001")

    assert found["request_goodput"] == found["request_throughput"]
    assert "Request goodput (req/s):                 0.00" in capfd.readouterr().out


def test_two_runs_of_one_seed_find_nothing_of_each_other():
    with served(stub := Stub()) as address:
        bench(address, "--random-range-ratio", "0.5", "--json")
        bench(address, "--random-range-ratio", "0.5", "--json")

    prompts = [body["prompt"] for body in stub.bodies]
    lengths = [len(prompt.split()) for prompt in prompts]
    assert len({tuple(prompt.split()[:3]) for prompt in prompts}) == 12
    assert sorted(lengths[:6]) == sorted(lengths[6:]), "the seed says how long they are"
    assert len(set(lengths)) > 2


def test_prompts_of_a_file_begin_with_a_line_of_the_run(tmp_path):
    path = tmp_path / "custom.jsonl"
    path.write_text('{"prompt": "same old", "output_tokens": 2}\n' * 3)
    with served(stub := Stub()) as address:
        for _ in range(2):
            bench(address, "--dataset-name", "custom", "--dataset-path", str(path), "--json")

    prompts = [body["prompt"].split("\n") for body in stub.bodies]
    assert {prompt[1] for prompt in prompts} == {"same old"}
    assert len({prompt[0] for prompt in prompts}) == 2


def test_a_warm_cache_is_told_when_it_is_asked_for(capfd):
    with served(Stub()) as address:
        bench(address, "--cache", "keep", "--json")
        capfd.readouterr()
        bench(address, "--cache", "keep", "--json")

    document = json.loads(capfd.readouterr().out)
    assert document["cached_prompt_share"] == 0.5
    assert document["config"]["seed"] == 0


def test_a_share_that_replies_do_not_tell_is_read_from_the_metrics(capfd):
    with served(Stub(tells_cache=False)) as address:
        bench(address, "--cache", "keep")
        capfd.readouterr()
        bench(address, "--cache", "keep", "--json")

    assert json.loads(capfd.readouterr().out)["cached_prompt_share"] == 0.5


def test_with_an_admin_key_the_cache_is_emptied_and_prompts_are_as_they_are(capfd):
    with served(stub := Stub()) as address:
        bench(address, "--admin-api-key", "admin", "--api-key", "mine", "--json")

    assert stub.resets == 1
    assert all("\n" not in body["prompt"] for body in stub.bodies)
    assert any("authorization: Bearer mine" in head for head in stub.headers)
    assert "mine" not in capfd.readouterr().out


def test_an_admin_key_that_is_wrong_is_refused_with_what_to_do(capfd):
    with served(Stub()) as address:
        assert bench(address, "--admin-api-key", "wrong") == 2

    assert "403: no key; check --admin-api-key, or give --cache vary" in capfd.readouterr().err


def test_a_curve_has_a_row_for_each_number_of_users(capfd, tmp_path):
    pytest.importorskip("matplotlib")
    picture = tmp_path / "curve.png"
    with served(stub := Stub(gap_s=0.001)) as address:
        bench(address, "--curve", "1,3", "--plot", str(picture), "--json")

    rows = json.loads(capfd.readouterr().out)["curve"]
    assert [row["max_concurrency"] for row in rows] == [1, 3]
    assert rows[1]["output_throughput"] > rows[0]["output_throughput"]
    assert stub.most_running == 3
    assert picture.stat().st_size > 1000


def test_the_result_is_saved_under_the_usual_keys(tmp_path):
    pytest.importorskip("matplotlib")
    with served(Stub()) as address:
        bench(
            address, "--save-result", "--save-detailed", "--result-dir", str(tmp_path),
            "--result-filename", "r.json", "--plot", str(tmp_path / "run.png"),
        )  # fmt: skip

    document = json.loads((tmp_path / "r.json").read_text())
    assert document["schema"] == "octavo.bench.serve/1"
    for key in (
        "date", "backend", "model_id", "num_prompts", "request_rate", "burstiness", "duration",
        "completed", "total_input_tokens", "total_output_tokens", "request_throughput",
        "output_throughput", "total_token_throughput", "mean_ttft_ms", "p99_itl_ms",
        "std_e2el_ms", "input_lens", "ttfts", "itls", "generated_texts", "errors",
    ):  # fmt: skip
        assert key in document
    assert len(document["itls"]) == 6


def test_failures_are_counted_told_and_the_exit_status(capfd):
    stub = Stub()
    stub.status = 503
    with served(stub) as address:
        assert bench(address) == 1

    assert "6 failed: status 503: not today" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--dataset-name", "mystery"], "is not one of random"),
        (["--dataset-name", "agents"], "needs --dataset-path"),
        (["--backend", "grpc"], "is not one of openai"),
        (["--cache", "empty"], "needs --admin-api-key"),
        (["--percentile-metrics", "ttft,xyz"], "'xyz' is not one of"),
        (["--curve", "1,2", "--max-concurrency", "3"], "give one of them"),
        (["--curve", "1,7"], "--num-prompts is 6: raise it"),
        (["--extra-body", "[1]"], "no JSON object"),
        (["--header", "novalue"], "must be name=value"),
        (["--request-rate", "0"], "--request-rate must be above 0"),
        (["--random-range-ratio", "1"], "--random-range-ratio"),
    ],
)
def test_an_option_that_cannot_be_is_refused_by_its_name(capfd, options, words):
    with served(Stub()) as address:
        assert bench(address, *options) == 2

    assert words in capfd.readouterr().err
