"""Engines in processes of their own, and matches between them."""

from __future__ import annotations

import importlib.util
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest

from octavo.bench.peers import Comparison, Match
from octavo.bench.process import EngineLost, EngineProcess
from octavo.bench.works import draw_work

FAKE = Path(__file__).resolve().parents[1] / "fake_engine.py"
SINGLE = draw_work("single")


@pytest.fixture
def engines():
    """Start fake engines by name and mode; they end with the test."""
    started = []

    def start(name, *mode, limit_s=30.0):
        command = [sys.executable, str(FAKE), *map(str, mode)]
        started.append(EngineProcess(name, command, {"model": "m"}, limit_s=limit_s))
        return started[-1]

    yield start
    for engine in started:
        engine.close()


def pid(engine) -> int:
    return int(engine.label.removeprefix("fake "))


def cpu_ticks(number: int) -> int:
    fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def compare(rounds=3):
    seen = []
    return Comparison(rounds, lambda: 5e10, seen.append), seen


def test_an_engine_says_how_long_it_took(engines):
    engine = engines("octavo", "answer", 6)

    assert engine.run(SINGLE) == 6
    assert engine.run(SINGLE) == 3


ENDED = """
import contextlib, sys, time
from octavo.bench.process import EngineProcess, leaving_on_signals

with leaving_on_signals(), contextlib.ExitStack() as stack:
    engine = EngineProcess("other", [sys.executable, *sys.argv[1:]], {"model": "m"}, limit_s=30.0)
    stack.enter_context(contextlib.closing(engine))
    print(engine.label.removeprefix("fake "), flush=True)
    time.sleep(30)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nothing_is_left_behind_by_a_process_that_is_told_to_end(number):
    command = [sys.executable, "-c", ENDED, str(FAKE), "busy"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        other = int(process.stdout.readline())
        process.send_signal(number)

        assert process.wait(20) == 128 + number
    assert not Path(f"/proc/{other}").exists()


def test_an_engine_that_polls_takes_no_time_while_others_run(engines):
    engine = engines("octavo", "busy")
    engine.run(SINGLE)

    before = cpu_ticks(pid(engine))
    time.sleep(0.3)

    assert cpu_ticks(pid(engine)) == before


def test_a_process_that_hangs_is_ended_at_its_limit(engines):
    engine = engines("vllm", "hang", limit_s=3.0)

    with pytest.raises(EngineLost, match=r"single: no answer within 3 s"):
        engine.run(SINGLE)


def test_a_process_that_ends_leaves_its_last_words(engines):
    engine = engines("vllm", "die")

    with pytest.raises(EngineLost, match="its process ended with status 3: out of luck"):
        engine.run(SINGLE)


def test_an_engine_that_cannot_be_loaded_says_why(engines):
    with pytest.raises(EngineLost, match="loading: it has no m"):
        engines("vllm", "refuse")


def test_an_interpreter_that_is_not_there_is_reported():
    with pytest.raises(EngineLost, match="no/such/python cannot be started"):
        EngineProcess("vllm", ["no/such/python"], {}, limit_s=1)


def test_a_closed_engine_leaves_no_process(engines):
    engine = engines("octavo", "busy")
    engine.close()

    assert not Path(f"/proc/{pid(engine)}").exists()


def test_the_ratio_is_to_the_fastest_of_the_others(engines):
    comparison, seen = compare()
    match = Match(
        "single",
        SINGLE,
        [
            engines("octavo", "answer", 1),
            engines("llamacpp", "answer", 4),
            engines("openvino", "answer", 2),
        ],
    )

    row = comparison.run(match)

    assert (row.best_peer, row.ratio, row.ratio_range) == ("openvino", 2.0, (2.0, 2.0))
    assert (row.goal, row.met) == (2.6, False)
    # The first of the four runs does not count; run number i takes 1 / i seconds.
    ours = row.speeds[0]
    assert [run.seconds for run in ours.rounds] == [1 / 2, 1 / 3, 1 / 4]
    assert (ours.slowest, ours.tokens_per_s, ours.fastest) == (256, 384, 512)
    assert ours.rounds[0].read_bytes_per_s == (5e10, 5e10)
    assert sum(seen) == 3 * 4
    assert comparison.lost == {}


def test_a_goal_is_met_from_the_ratio_on(engines):
    comparison, _ = compare()
    match = Match("single", SINGLE, [engines("octavo", "answer", 1), engines("vllm", "answer", 3)])

    assert comparison.run(match).met is True


def test_an_engine_that_dies_is_left_out_from_then_on(engines):
    comparison, _ = compare()
    ours, steady = engines("octavo", "answer", 1), engines("openvino", "answer", 5)
    dying = engines("llamacpp", "late", 2)

    first = comparison.run(Match("single", SINGLE, [ours, dying, steady]))
    second = comparison.run(Match("prefill512", draw_work("prefill512"), [ours, dying, steady]))

    assert [speed.engine for speed in first.speeds] == ["octavo", "openvino"]
    assert second.best_peer == "openvino"
    assert "out of luck" in comparison.lost["llamacpp"]


def test_without_another_engine_there_is_no_ratio(engines):
    comparison, _ = compare()

    row = comparison.run(
        Match("single", SINGLE, [engines("octavo", "answer"), engines("vllm", "die")])
    )

    assert (row.best_peer, row.ratio, row.met) == (None, None, None)


def test_a_comparison_ends_with_our_own_engine(engines):
    comparison, _ = compare()

    with pytest.raises(EngineLost, match="out of luck"):
        comparison.run(Match("single", SINGLE, [engines("octavo", "die"), engines("vllm", "die")]))


def test_a_record_becomes_a_table_of_the_documentation(engines):
    comparison, _ = compare()
    row = comparison.run(
        Match("single", SINGLE, [engines("octavo", "answer", 1), engines("vllm", "answer", 3)])
    )
    record = {
        "rows": [msgspec.to_builtins(row)],
        "versions": {"octavo": "octavo 1", "vllm": "vllm 2"},
        "machine": {"cpu": "a processor", "cores": 2},
        "config": {"model": "m.gguf", "threads": 2, "rounds": 3},
        "commit": "0123456789abcdef",
    }

    head, _, line, _, caption = load_table().table(record).split("\n")

    assert head == "| work | octavo | vllm | octavo ÷ best other | goal | met |"
    assert "| **3.00** (3.00 to 3.00, vllm) | 2.6 | yes |" in line
    assert caption.startswith("octavo 1, vllm 2; m.gguf; 2 threads; 3 rounds; 2 cores of a proc")
    assert caption.endswith("memory read at 50 to 50 GB/s; commit 0123456789.")


def load_table():
    path = Path(__file__).resolve().parents[2] / "benchmarks" / "peers" / "table.py"
    spec = importlib.util.spec_from_file_location("peers_table", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
