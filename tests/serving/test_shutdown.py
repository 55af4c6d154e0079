"""The first signal lets requests end, the second ends all; a lost engine is started again."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import signal
import threading
import time
from contextlib import closing, contextmanager
from urllib.parse import urlsplit

import httpx2
import pytest

from octavo.errors import ConfigError
from octavo.server import lifecycle
from octavo.server.lifecycle import FAILED, Ending, Place, serve
from octavo.server.listen import address_of, listen
from octavo.server.parts import Parts, ServedModel
from octavo.server.remote.backoff import Backoff
from octavo.server.remote.client import ProcessCore
from octavo.testing.fake_server import children_of, fake_server, gone
from octavo.testing.near_core import NearCore, fake_loop
from octavo.testing.served import FakeCore

JSON = {"Content-Type": "application/json"}
SLOW = FakeCore(step_s=0.05)
MODEL = ServedModel(names=("fake",), root="fake", tokenizer=None, created_s=0)


def ask(server, method, path, body=None):
    """Return the status of an answer, and its headers."""
    where = urlsplit(server.address)
    with closing(http.client.HTTPConnection(where.hostname, where.port, timeout=10)) as connection:
        connection.request(method, path, body and json.dumps(body), JSON)
        reply = connection.getresponse()
        reply.read()
        return reply.status, dict(reply.headers)


@contextmanager
def stream_of(server, max_tokens):
    """Read a stream in a thread, once it has begun; yields what has come of it."""
    where = urlsplit(server.address)
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=20)
    body = {"prompt": [1, 2, 3], "max_tokens": max_tokens, "stream": True, "ignore_eos": True}
    body["return_token_ids"] = True  # this engine has no text to send
    connection.request("POST", "/v1/completions", json.dumps(body), JSON)
    reply = connection.getresponse()
    assert reply.status == 200, reply.read()
    lines = [reply.readline()]

    def read():
        try:
            lines.extend(reply)
        except (OSError, http.client.HTTPException):
            lines.append(b"broken")

    thread = threading.Thread(target=read)
    thread.start()
    try:
        yield lines
    finally:
        thread.join(10)
        reply.close()
        connection.close()


def tokens_in(lines):
    """Count the tokens of a stream; a chunk may hold several."""
    chunks = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {")]
    return sum(len(chunk["choices"][0].get("token_ids", [])) for chunk in chunks)


def test_the_first_signal_lets_requests_end_and_refuses_new_ones():
    with fake_server(SLOW) as server:
        engine = children_of(server.process.pid)
        with stream_of(server, max_tokens=20) as lines:
            server.process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
            status, headers = ask(server, "POST", "/v1/completions", {"prompt": [1]})
            assert status == 503
            assert "retry-after" in headers
            assert ask(server, "GET", "/health")[0] == 503
        assert lines[-2:] == [b"data: [DONE]\n", b"\n"]
        assert tokens_in(lines) == 20
        assert server.ended() == 0
        assert engine
        assert gone(engine)


def test_requests_that_do_not_end_in_time_are_told_so():
    with fake_server(SLOW, drain_timeout_s=0.3) as server, stream_of(server, 390) as lines:
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 0
    errors = [json.loads(line[6:])["error"] for line in lines if b'{"error"' in line]
    assert [error["code"] for error in errors] == ["engine_gone"]
    assert lines[-2:] == [b"data: [DONE]\n", b"\n"]


def test_the_second_signal_ends_everything_at_once():
    with fake_server(SLOW) as server, stream_of(server, 390) as lines:
        engine = children_of(server.process.pid)
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
        assert server.process.poll() is None
        server.process.send_signal(signal.SIGINT)
        assert server.ended(within_s=3) == 130
        assert gone(engine)
    assert lines


def test_a_signal_while_the_engine_is_built_ends_the_start():
    with fake_server(FakeCore(build_s=60), wait=False) as server:
        server.wait_for("a fake engine is built")
        deadline_s = time.monotonic() + 5
        while True:  # the engine loads beside what speaks HTTP
            try:
                status, _ = ask(server, "GET", "/health")
            except OSError:
                status = 0
            if status or time.monotonic() > deadline_s:
                break
        assert status == 503, "it listens already, and says that it is not ready"
        engine = children_of(server.process.pid)
        server.process.send_signal(signal.SIGTERM)
        assert server.ended() == 143
        assert gone(engine)


def test_an_engine_that_cannot_be_built_ends_the_server_with_the_reason():
    def build():
        raise ConfigError("too large")

    async def run():
        core = NearCore(build)
        model = ServedModel(names=("fake",), root="fake", tokenizer=None, created_s=0)
        with listen("127.0.0.1", 0) as sock:
            await serve(
                core,
                lambda: Parts(core=core, model=model),
                Place(socket=sock),
                ready=lambda parts: pytest.fail("it is not ready"),
                ending=Ending(),
            )

    with pytest.raises(ConfigError, match="too large"):
        asyncio.run(run())


def test_an_engine_that_is_lost_is_told_of_and_started_again():
    with fake_server(SLOW) as server:
        (engine,) = children_of(server.process.pid)
        with stream_of(server, 390) as lines:
            os.kill(engine, signal.SIGKILL)
        errors = [json.loads(line[6:])["error"] for line in lines if b'{"error"' in line]
        assert [error["code"] for error in errors] == ["engine_gone"]
        assert lines[-2:] == [b"data: [DONE]\n", b"\n"]
        assert ask(server, "GET", "/health")[0] == 503
        status, headers = ask(server, "POST", "/v1/completions", {"prompt": [1]})
        assert status == 503
        assert "retry-after" in headers
        end_s = time.monotonic() + 10
        while ask(server, "GET", "/health")[0] != 200 and time.monotonic() < end_s:
            time.sleep(0.05)
        assert ask(server, "POST", "/v1/completions", {"prompt": [1]})[0] == 200
        assert children_of(server.process.pid) != [engine]


def test_a_server_whose_engine_is_given_up_answers_who_waits_and_ends_with_status_1(caplog):
    async def run():
        core = ProcessCore(
            FakeCore(dies_at=20, step_s=0.005).spec(),
            report=print,
            restart_limit=1,
            backoff=Backoff(first_s=0.01),
        )
        ready = asyncio.Event()
        with listen("127.0.0.1", 0) as sock:
            serving = asyncio.create_task(
                serve(
                    core,
                    lambda: Parts(core=core, model=MODEL),
                    Place(socket=sock),
                    ready=lambda parts: ready.set(),
                    ending=Ending(),
                )
            )
            await ready.wait()
            url = f"{address_of(sock, tls=False)}/v1/completions"
            told = []
            async with httpx2.AsyncClient(timeout=10) as client:
                while not serving.done() and len(told) < 1000:
                    body = {"prompt": [1, 2], "max_tokens": 100, "stream": True}
                    with contextlib.suppress(httpx2.TransportError):
                        reply = await client.post(url, json=body)
                        told.append(reply.text)
                        await asyncio.sleep(0.02)
            assert sum(text.endswith("data: [DONE]\n\n") for text in told) == 2
            return await asyncio.wait_for(serving, 10)

    assert asyncio.run(asyncio.wait_for(run(), 20)) == FAILED
    assert "SIGABRT" in caplog.text
    assert "the server ends" in caplog.text


@contextlib.asynccontextmanager
async def serving_at(core, parts, ending):
    """Serve on a free port; (socket, task) once it is ready."""
    ready = asyncio.Event()
    with listen("127.0.0.1", 0) as sock:
        serving = asyncio.create_task(
            serve(
                core,
                lambda: parts,
                Place(socket=sock),
                ready=lambda parts: ready.set(),
                ending=ending,
            )
        )
        await ready.wait()
        yield sock, serving


@pytest.mark.parametrize("waiting", [0, 1])
def test_the_second_signal_cuts_off_those_that_are_there_and_tells_of_nobody_else(caplog, waiting):
    async def run():
        core = NearCore(fake_loop)
        parts, ending = Parts(core=core, model=MODEL), Ending()
        async with serving_at(core, parts, ending) as (sock, serving):
            await core.pause()
            async with httpx2.AsyncClient(base_url=address_of(sock, tls=False)) as client:
                assert (await client.get("/health")).status_code == 200
                body = {"prompt": [1, 2], "stream": True}
                asked = [
                    asyncio.create_task(client.post("/v1/completions", json=body))
                    for _ in range(waiting)
                ]
                while parts.doors.inside < waiting:
                    await asyncio.sleep(0.001)
                ending.hear(signal.SIGTERM)
                await asyncio.sleep(0)
                ending.hear(signal.SIGTERM)
                await serving
                await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(asyncio.wait_for(run(), 20))

    assert "Cancel" not in caplog.text
    assert "0 requests had not ended" not in caplog.text


def test_a_task_that_fails_in_the_background_is_told_of_and_health_turns_red(monkeypatch, caplog):
    async def log_stats(parts, every_s):
        raise ZeroDivisionError("no steps")

    monkeypatch.setattr(lifecycle, "log_stats", log_stats)

    async def run():
        core = NearCore(fake_loop)
        parts, ending = Parts(core=core, model=MODEL), Ending()
        async with serving_at(core, parts, ending) as (sock, serving):
            async with httpx2.AsyncClient() as client:
                reply = await client.get(f"{address_of(sock, tls=False)}/health")
            ending.hear(signal.SIGTERM)
            await serving
        assert reply.status_code == 503
        assert reply.json()["status"] == "fault"

    asyncio.run(run())
    assert "no steps" in caplog.text
