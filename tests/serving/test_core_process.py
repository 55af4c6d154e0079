"""The engine in a process of its own: it answers, it ends, and another one takes its place."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import subprocess
import sys
import threading
import time

import msgspec
import pytest
import zmq

from octavo.cli.core import build_core, core_spec
from octavo.config import EngineConfig
from octavo.contract.memory_view import CellState
from octavo.contract.request import FinishReason, Request, choice_seed
from octavo.contract.sampling import SamplingParams
from octavo.engine.messages import CoreSpec, TakeSnapshot, read_report
from octavo.errors import ConfigError, EngineGone, ModelError, RequestError
from octavo.server.core import CoreClient, CoreState
from octavo.server.remote import process
from octavo.server.remote.backoff import Backoff
from octavo.server.remote.client import ProcessCore
from octavo.server.remote.process import CoreProcess
from octavo.server.watch.mirror import Mirror
from octavo.testing.fake_runner import expected_output
from octavo.testing.fake_server import children_of
from octavo.testing.near_core import Heard
from octavo.testing.served import FakeCore

PROMPT = (1, 2, 3, 4, 5)


def request(name="r", *, prompt=PROMPT, seed=3, **sampling):
    params = SamplingParams(**{"max_tokens": 8, **sampling})
    return Request(id=name, prompt=prompt, sampling=params, seed=seed)


def ask(core: CoreClient, name="r", **options) -> Heard:
    one = request(name, **options)
    heard = Heard(one.sampling.choices)
    core.submit(one, heard)
    return heard


def with_core(test, fake=None, *, spec=None, **options):
    """Run a test against an engine that is ready, and stop it. Returns what it said."""
    said: list[str] = []

    async def run():
        core = ProcessCore(
            spec or (fake or FakeCore()).spec(),
            report=said.append,
            **{"backoff": Backoff(first_s=0.05, most_s=0.1), **options},
        )
        await core.start()
        try:
            await asyncio.wait_for(test(core), 30)
        finally:
            await core.stop()
        assert core.state is CoreState.STOPPED

    asyncio.run(run())
    return said


@pytest.fixture(scope="module")
def healthy():
    """Run tests against one engine, to which nothing happens."""
    with asyncio.Runner() as runner:
        core = ProcessCore(FakeCore(step_s=0.002).spec(), report=print)
        runner.run(core.start())
        yield lambda test: runner.run(asyncio.wait_for(test(core), 30))
        runner.run(core.stop())


async def until(condition):
    """Wait until something is true."""
    while not condition():
        await asyncio.sleep(0.01)


def test_it_answers_as_the_engine_in_this_process_does():
    async def test(core):
        first, second = ask(core), ask(core, "s", seed=4)
        await asyncio.gather(first.ended.wait(), second.ended.wait())
        assert first.tokens() == expected_output(list(PROMPT), choice_seed(3, 0), 8, 50)
        assert second.tokens() == expected_output(list(PROMPT), choice_seed(4, 0), 8, 50)
        assert first.max_tokens == 8
        assert first.begun_s is not None
        assert first.updates[-1].finish is FinishReason.LENGTH
        assert core.facts.num_blocks == 200
        snapshot = await core.snapshot()
        assert snapshot.usage.blocks_used == 0
        assert (await core.check()).error == ""
        assert await core.reset_prefix_cache() > 0
        assert await core.unpin() == 0

    assert "a fake engine is built" in with_core(test)


def test_the_memory_is_shown_as_it_is_counted_in_the_middle_of_the_work(healthy):
    async def test(core):
        mirror = Mirror((4,), 0)
        heard = [ask(core, f"m{i}", prompt=PROMPT * (1 + i % 4), n=2) for i in range(12)]
        while not all(one.ended.is_set() for one in heard):
            shown = await core.look(mirror.number)
            mirror.take_in(shown)
            counts, usage = mirror.counts(), shown.usage
            held = sum(
                counts[one] for one in (CellState.IN_USE, CellState.SHARED, CellState.TENTATIVE)
            )
            assert (held, int(mirror.refs.sum())) == (usage.blocks_used, usage.blocks_logical)
            assert counts[CellState.CACHED] == usage.blocks_cached
            assert int((mirror.refs > 1).sum()) == usage.blocks_shared
            assert len(mirror.holders) == held
            assert (await core.check()).error == ""
            await asyncio.sleep(0.003)
        assert mirror.number > 3
        assert (await core.show_block(0)).state is not None
        assert await core.show_block(200) is None

    healthy(test)


def test_what_is_refused_reaches_its_listener_alone(healthy):
    async def test(core):
        bad, good = ask(core, "bad", prompt=tuple(range(600))), ask(core)
        await asyncio.gather(bad.ended.wait(), good.ended.wait())
        assert isinstance(bad.error, RequestError)
        assert len(good.tokens()) == 8

    healthy(test)


def test_options_that_contradict_each_other_in_the_engine_are_refused_not_deadly(healthy):
    async def test(core):
        bad = request()
        msgspec.structs.force_setattr(bad.sampling, "temperature", -1.0)
        heard = Heard()
        core.submit(bad, heard)
        await heard.ended.wait()
        assert isinstance(heard.error, RequestError)
        assert "temperature" in str(heard.error)
        await ask(core, "s").ended.wait()

    healthy(test)


def test_a_request_that_is_aborted_is_heard_of_no_more(healthy):
    async def test(core):
        heard = ask(core, max_tokens=300)
        await until(lambda: heard.updates)
        core.abort("r")
        told = len(heard.updates)
        await until_idle(core)
        assert len(heard.updates) == told
        core.abort("r")
        core.abort("nobody")

    async def until_idle(core):
        while (await core.snapshot()).running:
            pass

    healthy(test)


def test_one_of_two_choices_that_has_ended_by_its_text_does_not_end_the_other(healthy):
    async def test(core):
        heard = ask(core, n=2, temperature=1.0, max_tokens=30)
        await until(lambda: heard.updates)
        core.finish("r", 0)
        await until(lambda: any(update.finish for update in heard.updates))
        assert len(heard.tokens(1)) == 30

    healthy(test)


def test_a_paused_engine_takes_requests_and_answers_them_later(healthy):
    async def test(core):
        await core.pause()
        assert core.state is CoreState.PAUSED
        heard = ask(core)
        await core.snapshot()
        assert not heard.updates
        await core.resume()
        await heard.ended.wait()
        assert len(heard.tokens()) == 8

    healthy(test)


def test_a_killed_engine_loses_its_requests_with_a_reason_and_another_one_answers():
    async def test(core):
        heard = [ask(core, f"r{number}", max_tokens=300) for number in range(5)]
        await until(lambda: heard[0].updates)
        waits = asyncio.create_task(core.snapshot())
        first = core.pid
        os.kill(first, signal.SIGKILL)
        for one in heard:
            await one.ended.wait()
            assert isinstance(one.error, EngineGone)
            assert "signal 9" in str(one.error)
        await asyncio.gather(waits, return_exceptions=True)
        assert core.state is CoreState.RESTARTING
        with pytest.raises(EngineGone, match="signal 9"):
            core.submit(request(), Heard())
        assert core.facts.num_blocks == 200, "facts are kept meanwhile"
        await until(lambda: core.state is CoreState.READY)
        assert core.restarts == 1
        assert core.pid != first
        assert "signal 9" in core.last_words
        again = ask(core)
        await again.ended.wait()
        assert len(again.tokens()) == 8

    said = with_core(test, FakeCore(step_s=0.01))
    assert any("started again in 0.05 s" in line for line in said)


def test_a_runner_that_fails_ends_the_engine_with_its_own_words():
    async def test(core):
        heard = ask(core)
        await heard.ended.wait()
        assert "RuntimeError: the fake runner is out of order" in str(heard.error)
        await until(lambda: core.restarts == 1)

    said = with_core(test, FakeCore(raises_at=3))
    assert any("Traceback" in line for line in said), "its stderr is forwarded"


def test_an_engine_whose_stderr_cannot_be_read_goes_on_and_that_is_told(monkeypatch):
    class Unreadable:
        def __init__(self, stream):
            self._stream = stream

        def __iter__(self):
            raise OSError(errno.EIO, "Input/output error")

        def __enter__(self):
            return self._stream.__enter__() and self

        def __exit__(self, *error):
            self._stream.__exit__(*error)

    def start(*arguments, real=subprocess.Popen, **options):
        process = real(*arguments, **options)
        process.stderr = Unreadable(process.stderr)
        return process

    async def test(core):
        heard = ask(core)
        await heard.ended.wait()
        assert len(heard.tokens()) == 8
        assert core.restarts == 0

    monkeypatch.setattr(subprocess, "Popen", start)
    said = with_core(test, FakeCore())
    assert any("stderr is read no more: OSError: [Errno 5]" in line for line in said)


def test_an_engine_that_dies_again_and_again_is_given_up_where_that_is_asked_for():
    async def test(core):
        for number in range(3):
            await until(lambda: core.state in (CoreState.READY, CoreState.FAILED))
            if core.state is CoreState.READY:
                await ask(core, f"r{number}").ended.wait()
            await until(lambda: core.state is not CoreState.READY)
        assert "SIGABRT" in await core.failed()
        assert core.state is CoreState.FAILED
        assert core.restarts == 1
        with pytest.raises(EngineGone, match="SIGABRT"):
            core.submit(request(), Heard())

    said = with_core(test, FakeCore(dies_at=2), restart_limit=1)
    assert any("not started again" in line for line in said)


def test_an_engine_that_answers_nothing_is_ended_and_started_again():
    async def test(core):
        heard = ask(core)
        await heard.ended.wait()
        assert "answered nothing for 0.6 s" in str(heard.error)

    with_core(test, FakeCore(hangs_at=2), timeout_s=0.6)


def test_a_pause_holds_in_the_process_that_follows():
    async def test(core):
        await core.pause()
        os.kill(core.pid, signal.SIGKILL)
        await until(lambda: core.restarts == 1 and core.state is CoreState.PAUSED)
        heard = ask(core)
        await core.snapshot()
        assert not heard.updates
        await core.resume()
        await heard.ended.wait()

    with_core(test)


def test_a_pause_that_ends_while_there_is_no_engine_does_not_hold_in_the_next():
    async def test(core):
        await core.pause()
        os.kill(core.pid, signal.SIGKILL)
        await until(lambda: core.state is CoreState.RESTARTING)
        with pytest.raises(EngineGone):
            await core.resume()
        await until(lambda: core.state is CoreState.READY)
        await ask(core).ended.wait()

    with_core(test)


@pytest.mark.parametrize(
    "error", [RuntimeError("can't start new thread"), zmq.ZMQError(errno.EMFILE)], ids=type
)
def test_a_process_that_cannot_be_started_is_tried_again(monkeypatch, error):
    async def test(core):
        start, tried = threading.Thread.start, []

        def fail(thread):
            if thread.name.startswith("octavo-core") and len(tried) < 2:
                tried.append(thread)
                raise error
            start(thread)

        before = set(children_of(os.getpid()))
        monkeypatch.setattr(threading.Thread, "start", fail)
        os.kill(core.pid, signal.SIGKILL)
        await until(lambda: core.state is CoreState.READY and core.restarts == 3)
        assert len(children_of(os.getpid())) <= len(before), "what was begun is gone"
        await ask(core).ended.wait()

    said = with_core(test)
    assert sum(str(error) in line for line in said) == 2


def test_a_start_that_fails_leaves_nothing_behind(monkeypatch):
    def fail(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fail)
    before = set(children_of(os.getpid()))
    with pytest.raises(RuntimeError, match="can't start"):
        with_core(None)
    assert set(children_of(os.getpid())) == before


@pytest.mark.parametrize(
    ("refuses", "error", "words"),
    [
        ("ConfigError:threads must be at least 1", ConfigError, "^threads must be"),
        ("ModelError:no such file", ModelError, "^no such file"),
        ("Surprise:out of luck", EngineGone, "ValueError: out of luck"),
    ],
)
def test_what_cannot_be_built_says_why_and_is_not_tried_again(refuses, error, words):
    said = []

    async def run():
        core = ProcessCore(FakeCore(refuses=refuses).spec(), report=said.append)
        await core.start()

    with pytest.raises(error, match=words) as failed:
        asyncio.run(run())

    assert said == ["a fake engine is built"], "a trace is no line of the log"
    notes = getattr(failed.value, "__notes__", [])
    assert [note.count("Traceback") for note in notes] == ([1] if error is EngineGone else [])


def test_an_engine_that_is_being_built_can_be_stopped():
    async def run():
        core = ProcessCore(FakeCore(build_s=60).spec(), report=print)
        start = asyncio.create_task(core.start())
        await until(lambda: core.pid)
        began = time.monotonic()
        start.cancel()
        await asyncio.gather(start, return_exceptions=True)
        assert time.monotonic() - began < 5
        assert core.state is CoreState.STOPPED

    asyncio.run(run())


def test_stopping_at_once_loses_what_is_left():
    async def run():
        core = ProcessCore(FakeCore(step_s=0.01).spec(), report=print)
        await core.start()
        heard = ask(core, max_tokens=300)
        await until(lambda: heard.updates)
        await core.stop(at_once=True)
        assert isinstance(heard.error, EngineGone)
        with pytest.raises(EngineGone, match="stopped"):
            core.submit(request(), Heard())
        await core.stop()

    asyncio.run(run())


def test_who_is_interrupted_while_it_waits_for_the_end_can_insist_on_it():
    async def run():
        core = ProcessCore(FakeCore(hangs_at=1).spec(), report=print)
        await core.start()
        heard = ask(core)
        patient = asyncio.create_task(core.stop())
        await asyncio.sleep(0.1)
        patient.cancel()
        await asyncio.gather(patient, return_exceptions=True)
        began = time.monotonic()
        await core.stop(at_once=True)
        assert time.monotonic() - began < 2
        assert core.pid is None
        assert isinstance(heard.error, EngineGone)

    asyncio.run(run())


def test_an_engine_whose_server_is_killed_ends_too(tmp_path):
    code = f"""
import asyncio, time
from octavo.server.remote.client import ProcessCore
from octavo.testing.served import FakeCore
async def run():
    core = ProcessCore(FakeCore().spec(), report=lambda text: None)
    await core.start()
    open({str(tmp_path / "pid")!r}, "w").write(str(core.pid))
    print("ready", flush=True)
    await asyncio.sleep(60)
asyncio.run(run())
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as server:
        assert server.stdout.readline() == b"ready\n"
        pid = int((tmp_path / "pid").read_text())
        server.kill()
    deadline = time.monotonic() + 10
    while _alive(pid):
        assert time.monotonic() < deadline, "the engine outlives its server"
        time.sleep(0.05)


def test_an_engine_whose_server_ended_before_it_looked_ends_too(tmp_path):
    endpoint, nobody = f"ipc://{tmp_path}/0", "0"
    line = [sys.executable, "-m", "octavo.engine.worker", endpoint, "normal", nobody]
    assert subprocess.run(line, timeout=10, check=False).returncode == 0


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_model_is_built_without_its_text(tiny_gguf):
    spec = core_spec(EngineConfig(model=str(tiny_gguf), kv_cache_memory_bytes=1 << 20))

    loop, facts = build_core(spec.settings, lambda text: None)
    try:
        assert facts.vocab_size > 0
        assert facts.longest_text <= facts.max_model_len
        assert facts.settings["model"] == str(tiny_gguf)
        loop.add(request())
        tokens = [t for _ in range(20) for update in loop.step() for t in update.tokens]
        assert len(tokens) == 8
    finally:
        loop.close()


def test_a_factory_that_is_not_there_says_so():
    with pytest.raises(EngineGone, match=r"octavo\.nowhere"):
        with_core(None, spec=CoreSpec("octavo.nowhere:make", b""))


def test_waits_double_up_to_a_limit_and_a_long_life_makes_them_short_again():
    waits = Backoff(first_s=0.5, most_s=3.0, healthy_s=60.0)

    assert [waits.after(1.0) for _ in range(5)] == [0.5, 1.0, 2.0, 3.0, 3.0]
    assert [waits.after(61.0), waits.after(1.0)] == [0.5, 1.0]


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="another system's scheduler")
@pytest.mark.parametrize("scheduling", ["batch", "normal"])
def test_what_computes_yields_to_what_serves_unless_it_is_told_otherwise(scheduling):
    async def test(core):
        policy = {"batch": os.SCHED_BATCH, "normal": os.SCHED_OTHER}[scheduling]
        assert os.sched_getscheduler(core.pid) == policy

    with_core(test, scheduling=scheduling)


def test_another_scheduling_is_refused():
    with pytest.raises(ConfigError, match="'idle' is not one of batch, normal"):
        ProcessCore(FakeCore().spec(), report=print, scheduling="idle")


def test_a_watch_that_cannot_ask_ends_the_engine_and_says_so(monkeypatch):
    def send(process, command, real=CoreProcess.send):
        if isinstance(command, TakeSnapshot):
            raise zmq.ZMQError(errno.ENOTSOCK)
        real(process, command)

    async def test(core):
        heard = ask(core, max_tokens=300)
        await heard.ended.wait()
        assert "cannot be asked whether it lives: ZMQError" in str(heard.error)
        await until(lambda: core.restarts == 1)

    monkeypatch.setattr(CoreProcess, "send", send)
    with_core(test, FakeCore(step_s=0.01))


def test_an_engine_that_cannot_be_heard_is_ended_and_started_again(monkeypatch):
    heard_badly = []

    def read(frame, real=read_report):
        if len(heard_badly) < 1 and b"News" in frame:
            heard_badly.append(frame)
            raise msgspec.DecodeError("it is no report")
        return real(frame)

    async def test(core):
        heard = ask(core, max_tokens=300)
        await heard.ended.wait()
        assert "cannot be heard: DecodeError: it is no report" in str(heard.error)
        await until(lambda: core.state is CoreState.READY)
        await ask(core, "s").ended.wait()

    monkeypatch.setattr(process, "read_report", read)
    with_core(test, FakeCore(step_s=0.01))


def test_a_supervisor_that_fails_says_so_and_takes_the_engine_with_it(monkeypatch):
    def after(backoff, life_s):
        raise OSError("no clock")

    async def test(core):
        heard = ask(core, max_tokens=300)
        os.kill(core.pid, signal.SIGKILL)
        assert await core.failed() == "nobody watches the engine any more: OSError: no clock"
        assert core.state is CoreState.FAILED
        assert isinstance(heard.error, EngineGone)
        with pytest.raises(EngineGone, match="no clock"):
            ask(core, "s")

    monkeypatch.setattr(Backoff, "after", after)
    said = with_core(test, FakeCore(step_s=0.01))
    assert any("Traceback" in line for line in said)
