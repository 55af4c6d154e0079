"""The measurements of a server run to their end, and what they assert holds for a tiny model too.

Speed is not tested: a machine that runs tests is not idle. `docs/performance/serving.md` has it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SERVING = Path(__file__).resolve().parents[2] / "benchmarks" / "serving"
FAMILIAR = "schema", "version", "commit", "machine", "config", "load", "rows", "goals"

pytestmark = pytest.mark.slow


@pytest.fixture
def measure(tiny_gguf, tmp_path):
    """Run one of the measurements with a tiny model; returns its record and exit status."""

    def run(name, *options):
        record = tmp_path / "record.json"
        words = [sys.executable, str(SERVING / f"{name}.py"), "--model", str(tiny_gguf)]
        words += ["--memory", "4MiB", "--json", str(record), *options]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
        assert record.exists(), done.stdout + done.stderr
        document = json.loads(record.read_text())
        assert [key for key in FAMILIAR if key not in document] == []
        assert len(document["rows"][0]) == len(done.stdout.splitlines()[0].split())
        return document, done.returncode

    return run


def test_many_streams_are_served_or_queued_and_none_fails(measure):
    document, status = measure("streams", "--streams", "300", "--prompt", "4", "--output", "6")

    assert status == 0
    assert document["rows"][0]["completed"] == 300
    assert all(goal["met"] for goal in document["goals"])


def test_every_piece_of_a_stream_says_when_its_step_was_applied(measure):
    document, _ = measure(
        "latency", "--streams", "1,4", "--requests", "2", "--prompt", "4", "--output", "12"
    )

    assert [row["streams"] for row in document["rows"]] == [1, 4]
    assert all(row["pieces"] > 0 for row in document["rows"])
    assert all(0 < row["p50_ms"] <= row["p99_ms"] for row in document["rows"])


def test_throughput_is_that_of_the_same_requests_both_ways(measure):
    document, _ = measure(
        "throughput", "--streams", "4", "--requests", "8", "--prompt", "4", "--output", "12",
        "--rounds", "1",
    )  # fmt: skip

    assert document["rows"][0]["share"] > 0


def test_first_tokens_are_measured_alone_and_beside_long_conversations(measure):
    document, _ = measure(
        "flat_ttft", "--conversations", "2", "--longest", "60", "--turn", "20", "--rate", "10",
        "--seconds", "2", "--warm", "0.2", "--prompt", "4", "--output", "2",
    )  # fmt: skip

    assert [row["requests"] for row in document["rows"]] == [10, 20]
    assert document["rows"][1]["long_prompts"] > 0
