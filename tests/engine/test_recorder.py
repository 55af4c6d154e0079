"""A recording holds hashes and lengths, can be replayed, and never gets in anybody's way."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from octavo.contract.namespace import Namespace
from octavo.contract.recording import pack_hashes, unpack_hashes
from octavo.contract.request import Request
from octavo.contract.sampling import SamplingParams
from octavo.engine.engine import Engine
from octavo.engine.recorder import Recorder
from octavo.errors import ConfigError
from octavo.memory.policies.lru import Lru
from octavo.replay.bounds import endless, optimum
from octavo.replay.cost import StepCost
from octavo.replay.engine import EngineSettings, replay_engine
from octavo.replay.files import open_trace
from octavo.replay.index import replay_index
from octavo.replay.recording import read_recording
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs
from octavo.sched.scheduler import Scheduler
from octavo.testing.driver import make_cache
from octavo.testing.fake_runner import FakeRunner

BLOCK = 4


class Recorded:
    """An engine over a fake runner that records what it answers."""

    def __init__(self, path):
        self.path = path
        self.warnings = []
        cache = make_cache(300)
        scheduler = Scheduler(cache, Fcfs(), Limits(8, 64, 1000, 1200))
        self.engine = Engine(scheduler, cache, FakeRunner((BLOCK,)), None)
        self.recorder = Recorder(path, BLOCK, self.warnings.append)
        self.engine.watch(self.recorder)
        self.answers = {}

    def ask(self, name, prompt, *, salt="", max_tokens=6, **sampling):
        params = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **sampling)
        namespace = Namespace(salt=salt)
        self.engine.add(
            Request(id=name, prompt=tuple(prompt), sampling=params, seed=0, namespace=namespace)
        )

    def run(self):
        while self.engine.busy:
            for news in self.engine.step():
                self.answers.setdefault((news.request_id, news.index), []).extend(news.token_ids)

    def lines(self):
        self.engine.close()
        return [json.loads(line) for line in self.path.read_text().split("\n") if line]


@pytest.fixture
def recorded(tmp_path):
    return Recorded(tmp_path / "traffic.jsonl")


def blocks_of(line):
    """Hashes as text: each has eight bytes."""
    return unpack_hashes(line["blocks"])


def test_a_line_tells_lengths_blocks_and_the_end(recorded):
    recorded.ask("a", range(10), max_tokens=7)
    recorded.run()

    header, line = recorded.lines()

    assert header["schema"] == "octavo.recording/1"
    assert header["block_size"] == BLOCK
    assert time.time() - 60 < header["started_s"] < time.time()
    assert set(line) == {"schema", "time_s", "prompt", "output", "blocks", "tenant", "finish"}
    assert (line["prompt"], line["output"], line["finish"]) == (10, 7, "length")
    assert len(blocks_of(line)) == (10 + 7 - 1) // BLOCK


def test_equal_beginnings_have_equal_hashes_up_to_where_they_part(recorded):
    recorded.ask("a", [1] * 8 + [2] * 8)
    recorded.ask("b", [1] * 8 + [3] * 8)
    recorded.run()

    _, one, two = recorded.lines()

    assert blocks_of(one)[:2] == blocks_of(two)[:2]
    assert not set(blocks_of(one)[2:]) & set(blocks_of(two)[2:])


def test_a_next_turn_goes_on_behind_the_answer(recorded):
    recorded.ask("a", range(10), max_tokens=7)
    recorded.run()
    recorded.ask("b", [*range(10), *recorded.answers["a", 0], 5, 6, 7], max_tokens=1)
    recorded.run()

    _, one, two = recorded.lines()

    assert blocks_of(two)[: len(blocks_of(one))] == blocks_of(one)
    assert two["cached"] == 16


def test_tenants_have_hashes_of_their_own(recorded):
    for name, salt in (("a", "red"), ("b", "blue"), ("c", "red")):
        recorded.ask(name, range(12), salt=salt)
        recorded.run()

    _, one, two, three = recorded.lines()

    assert one["tenant"] == three["tenant"] != two["tenant"]
    assert not set(blocks_of(one)) & set(blocks_of(two))
    assert blocks_of(one)[:3] == blocks_of(three)[:3]


def test_no_text_and_no_name_is_in_the_file(recorded):
    recorded.ask("a secret name", [4711] * 12, salt="a secret tenant")
    recorded.run()
    recorded.lines()

    text = recorded.path.read_text()
    assert "secret" not in text
    assert "4711" not in text


def test_the_same_traffic_has_other_hashes_in_another_recording(tmp_path):
    found = []
    for number in range(2):
        one = Recorded(tmp_path / f"{number}.jsonl")
        one.ask("a", range(12))
        one.run()
        found.append(blocks_of(one.lines()[1]))

    assert not set(found[0]) & set(found[1])


def test_of_several_choices_all_are_told(recorded):
    recorded.ask("a", range(9), n=3)
    recorded.run()

    _, line = recorded.lines()

    assert line["outputs"] == [6, 6, 6]
    assert line["output"] == 6
    # (9 + 6 - 1) // 4 blocks, of which two are the prompt's.
    assert len(blocks_of(line)) == 3
    others = [unpack_hashes(one) for one in line["others"]]
    assert [len(one) for one in others] == [1, 1]
    assert len({*blocks_of(line), *others[0], *others[1]}) == 5


def test_the_texts_of_a_beam_search_are_told(recorded):
    recorded.ask("a", range(9), use_beam_search=True, beam_width=3)
    recorded.run()

    _, line = recorded.lines()

    assert len(line["outputs"]) == 3
    assert len(line["others"]) == 2


def test_an_aborted_request_is_told_as_far_as_it_came(recorded):
    recorded.ask("a", range(8), max_tokens=100)
    recorded.engine.step()
    recorded.engine.step()
    recorded.engine.abort("a")
    recorded.engine.abort("a")

    _, line = recorded.lines()

    assert (line["finish"], line["output"]) == ("abort", 2)


# ── replayed ──────────────────────────────────────────────────────────────────────────────


def test_a_recording_is_replayed_with_the_whole_blocks_that_the_engine_found(recorded):
    prompt = list(range(14))
    for turn in range(5):
        recorded.ask(f"turn {turn}", prompt)
        recorded.run()
        prompt += [*recorded.answers[f"turn {turn}", 0], 40 + turn]
    lines = recorded.lines()

    trace = read_recording(open_trace(recorded.path))
    tally = replay_index(trace, Lru(), 1000)

    assert trace.block_size == BLOCK
    assert tally.requests == 5
    # Of parts of blocks, which an engine may find too, a recording tells nothing.
    parts = sum(line.get("cached", 0) for line in lines[1:]) - tally.hit_tokens
    assert tally.hit_tokens > 0
    assert 0 <= parts < 5 * BLOCK


@pytest.mark.parametrize("length", [8, 10])
@pytest.mark.parametrize("index", [0, 1, 2])
def test_what_goes_on_from_any_choice_is_found_in_a_replay(recorded, index, length):
    recorded.ask("a", range(length), n=3, max_tokens=11)
    recorded.run()
    recorded.ask("b", [*range(length), *recorded.answers["a", index], 5, 6, 7], max_tokens=1)
    recorded.run()
    *_, line = recorded.lines()
    whole = line["cached"] // BLOCK

    trace = read_recording(open_trace(recorded.path))
    first, again = trace.requests
    blocks = [(length + 10) // BLOCK, *[(length + 10) // BLOCK - length // BLOCK] * 2]

    assert [len(one.keys + one.answer_keys) for one in first.choices()] == [blocks[0]] * 3
    assert trace.working_set == sum(blocks) + len(again.keys) - blocks[0]
    assert replay_index(trace, Lru(), 1000).hits == whole == blocks[0]
    assert endless(trace).hits == optimum(trace, 1000).hits == whole
    slow = replace(trace, requests=(first, replace(again, time_s=1e6)))
    tally = replay_engine(slow, Lru(), 1000, EngineSettings(StepCost(((1, 0.01),), 0.0, 0.0)))
    assert tally.cache.hits == whole
    assert tally.output_tokens == 3 * 11 + 1


def test_a_small_cache_has_less_room_for_several_choices(recorded):
    for number in range(3):
        recorded.ask(f"{number}", range(8), n=4, max_tokens=9)
        recorded.run()
    recorded.lines()

    tally = replay_index(read_recording(open_trace(recorded.path)), Lru(), 6)

    # Two blocks of the prompt and two of each answer; the prompt is released last.
    assert tally.hits == 4
    assert tally.evictions > 0


def test_a_recording_of_before_tells_of_the_first_choice(tmp_path):
    path = tmp_path / "old.jsonl"
    line = json.loads(LINE % pack_hashes([ONE, OTHER])) | {"outputs": [1, 7]}
    path.write_text(HEADER + json.dumps(line) + "\n")

    (one,) = read_recording(open_trace(path)).requests

    assert (len(one.keys), one.more) == (2, ())


def test_recordings_of_one_file_follow_each_other_and_share_nothing(tmp_path):
    path = tmp_path / "traffic.jsonl"
    for _ in range(2):
        one = Recorded(path)
        one.ask("a", range(12))
        one.run()
        one.engine.close()

    trace = read_recording(open_trace(path))

    assert [len(request.keys) for request in trace.requests] == [3, 3]
    assert trace.requests[0].time_s == 0.0
    assert trace.working_set == 8


def test_a_line_that_was_cut_off_is_left_out(recorded):
    recorded.ask("a", range(12))
    recorded.run()
    recorded.lines()
    with recorded.path.open("a") as file:
        file.write('{"schema": "request", "time_s": 0.')

    assert len(read_recording(open_trace(recorded.path)).requests) == 1


def test_larger_blocks_are_made_of_recorded_ones(recorded):
    from octavo.replay.trace import in_blocks

    recorded.ask("a", range(11), max_tokens=8)
    recorded.run()
    recorded.lines()

    (one,) = in_blocks(read_recording(open_trace(recorded.path)), 2 * BLOCK).requests

    assert (len(one.keys), len(one.answer_keys)) == (1, 1)


def test_larger_blocks_are_made_of_those_of_every_choice(recorded):
    from octavo.replay.trace import in_blocks

    recorded.ask("a", range(11), max_tokens=14, n=2)
    recorded.run()
    recorded.lines()

    (one,) = in_blocks(read_recording(open_trace(recorded.path)), 2 * BLOCK).requests

    assert [len(choice.answer_keys) for choice in one.choices()] == [2, 2]
    assert not {*one.answer_keys} & {*one.more[0].keys}


HEADER = '{"schema": "octavo.recording/1", "block_size": 4, "started_s": 0}\n'
LINE = (
    '{"schema": "request", "time_s": 0, "prompt": 9, "output": 1, "tenant": "", "blocks": "%s"}\n'
)


CHOICES = LINE.replace('1, "ten', '3, "outputs": [3, 3], "others": ["%s"], "ten')
ONE, OTHER = b"one hash", b"the next"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HEADER, "holds no recorded request"),
        (LINE % "", "line 1: no header"),
        (HEADER + LINE % "AAAA", "line 2: its blocks cannot be read"),
        (HEADER + LINE % "AAAAAAAAAAA=", "line 2: 1 blocks for 9 [+] 1 tokens"),
        (HEADER + LINE % pack_hashes([ONE, ONE]), "line 2: two of its blocks have one hash"),
        (
            HEADER + CHOICES % (pack_hashes([OTHER]), pack_hashes([ONE, OTHER])),
            "line 2: two of its blocks have one hash",
        ),
        (HEADER + '{"schema": "other"}', "line 2 is no line of a recording"),
        (HEADER + HEADER.replace("4", "8") + LINE % "", "blocks of 8 tokens after one with 4"),
        (HEADER.replace("4", "0"), "line 1: block_size must be from 1 to 100000000, got 0"),
        (HEADER.replace("4", "1" + "0" * 400), "block_size must be from 1 to .*, got 1"),
        (HEADER + LINE.replace("9", "-9") % "", "line 2: prompt must be from 0 to .*, got -9"),
        (HEADER + LINE.replace("1,", f"{10**400},") % "", "line 2: output must be from 0 to"),
        (HEADER.replace(" 0", " 1e308") + LINE.replace(" 0", " 1e308") % "", "time_s must be"),
        (HEADER + LINE.replace("}", ', "outputs": [1, -2]}') % "", "outputs must be from 0 to"),
        (HEADER + LINE.replace("}", ', "others": [""]}') % "AAAAAAAAAAAAAAAAAAAAAA==", "0 lengths"),
        (HEADER + LINE.replace("9", "[" * 99_999) % "", "line 2 is no line of a recording"),
    ],
)
def test_a_file_that_is_no_recording_is_refused(tmp_path, text, message):
    path = tmp_path / "other.jsonl"
    path.write_text(text)

    with pytest.raises(ConfigError, match=message):
        read_recording(open_trace(path))


# ── when the file fails ───────────────────────────────────────────────────────────────────


@contextmanager
def largest_file(size):
    """Let writes beyond so many bytes of a file fail, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_costs_one_warning_and_no_answer(recorded):
    with largest_file(recorded.path.stat().st_size + 10):
        for name in "abc":
            recorded.ask(name, range(12))
            recorded.run()
        recorded.engine.close()

    assert [len(answer) for answer in recorded.answers.values()] == [6, 6, 6]
    (warning,) = recorded.warnings
    assert "cannot be written (File too large)" in warning
    assert "Answers are not affected" in warning


def test_a_file_that_cannot_be_written_is_told_at_once(tmp_path):
    with pytest.raises(ConfigError, match=r"record: cannot write to .*name another file"):
        Recorder(tmp_path / "none" / "x.jsonl", 16, print)


def test_nothing_is_added_to_a_file_that_is_no_recording(tmp_path):
    path = tmp_path / "prompts.txt"
    path.write_text("The sea\n")

    with pytest.raises(ConfigError, match="holds something else than a recording"):
        Recorder(path, 4, print)

    assert path.read_text() == "The sea\n"


def test_a_header_that_was_cut_off_may_be_gone_on_behind(tmp_path):
    path = tmp_path / "traffic.jsonl"
    path.write_text('\n{"schema":"octavo.rec')

    Recorder(path, 4, print).close()

    assert len(path.read_text().splitlines()) == 3


def test_a_file_is_for_one_process_at_a_time(recorded):
    code = f"""
from pathlib import Path
from octavo.engine.recorder import Recorder
Recorder(Path({str(recorded.path)!r}), 16, print).close()
"""

    def other():
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)

    assert "another engine is recording into" in other().stderr
    recorded.engine.close()
    assert other().returncode == 0


def test_a_forked_process_does_not_keep_others_out(recorded):
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.read(read, 1)
        os._exit(0)
    recorded.engine.close()

    Recorder(recorded.path, 16, print).close()

    os.write(write, b".")
    os.waitpid(child, 0)


@pytest.mark.parametrize("name", ["a\0b", "half \ud800"])
def test_a_name_that_no_file_can_have_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match=r"record: cannot write to .*name another file"):
        Recorder(tmp_path / name, 16, print)


def test_a_process_that_is_forked_records_nothing(recorded):
    recorded.ask("a", range(12))
    child = os.fork()
    if not child:
        recorded.run()
        recorded.engine.close()
        os._exit(0)
    os.waitpid(child, 0)
    recorded.run()

    assert len(recorded.lines()) == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_disk_that_is_full_already_is_told_at_once():
    from pathlib import Path

    with pytest.raises(ConfigError, match="No space left on device"):
        Recorder(Path("/dev/full"), 16, print)
