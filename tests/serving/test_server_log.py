"""The log has a line for each request, and texts only where they are asked for."""

from __future__ import annotations

import asyncio
import logging

import pytest
from tiny_served import HELLO, worded

from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.logs import set_up_log
from octavo.server.settings import ServerSettings
from octavo.server.stats_log import log_stats
from octavo.server.tenants import Tenant
from octavo.testing.near_server import served

SECRET = "hello the world"


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.INFO, logger="octavo")
    return caplog


def lines(log, name):
    return [record.getMessage() for record in log.records if record.name == name]


def test_a_request_is_one_line_without_its_text(log, tiny_tokenizer):
    async def test(server):
        reply = await server.client.post(
            "/v1/completions",
            json={"prompt": SECRET, "max_tokens": 3, "ignore_eos": True, "user": "user-name"},
            headers={"X-Request-Id": "mine", "Authorization": "Bearer top-secret"},
        )
        used = reply.json()["usage"]
        (line,) = lines(log, "octavo.access")
        assert line.startswith("mine default POST /v1/completions status=200 ")
        assert f"tokens={used['prompt_tokens']}+{used['completion_tokens']} seconds=" in line
        await server.post("/v1/chat/completions", messages=HELLO, max_tokens=2, stream=True)
        await server.post("/v1/completions", prompt=SECRET, max_tokens="secret")
        await server.get("/nothing/hello?the=world")
        for word in ("hello the", "secret", "user-name", "the=world"):
            assert word not in log.text

    served(test, **worded(tiny_tokenizer))


def test_a_path_cannot_begin_a_line_of_its_own(log):
    async def test(server):
        await server.get("/v1/models/a%0Ab")
        (line,) = lines(log, "octavo.access")
        assert "\n" not in line
        assert "a\\nb" in line

    served(test)


def test_whose_key_is_unknown_is_nobody_and_the_key_is_not_told(log):
    async def test(server):
        await server.client.get("/v1/models", headers={"Authorization": "Bearer wrong-key"})
        (line,) = lines(log, "octavo.access")
        assert " - GET /v1/models status=401 " in line
        assert "wrong-key" not in log.text

    served(test, keys=KeyTable([KeyHolder(Tenant(name="a"), ("k",))]))


def test_some_paths_or_all_are_left_out(log):
    async def quiet(server):
        await server.get("/health")
        await server.get("/version")
        assert len(lines(log, "octavo.access")) == 1

    async def silent(server):
        await server.get("/version")
        assert not lines(log, "octavo.access")

    served(quiet, settings=ServerSettings(quiet_paths=frozenset(["/health"])))
    log.clear()
    served(silent, settings=ServerSettings(log_access=False))


def test_options_are_logged_if_asked_for_and_salts_never(log, tiny_tokenizer):
    async def test(server):
        await server.post(
            "/v1/completions", prompt=SECRET, max_tokens=2, temperature=0.5, cache_salt="pepper"
        )
        assert "'temperature': 0.5" in log.text
        options = {"temperature": 0.25, "cache_salt": "pepper"}
        asked = [{"role": "user", "content": "the"}]
        await server.post("/v1/responses", input=asked, instructions=SECRET, **options)
        await server.post("/v1/messages", messages=asked, system=SECRET, max_tokens=2, **options)
        told = [line for line in lines(log, "octavo.server") if "0.25" in line]
        assert len(told) == 2
        assert not any(SECRET in line.partition("options=")[2] for line in told)
        assert "pepper" not in log.text

    served(test, settings=ServerSettings(log_requests=True), **worded(tiny_tokenizer))


def test_what_the_engine_does_is_told_while_there_is_work(log):
    async def test(server):
        telling = asyncio.create_task(log_stats(server.parts, 0.05))
        await asyncio.sleep(0.12)
        assert not lines(log, "octavo.stats")
        await server.post("/v1/completions", prompt=list(range(1, 41)), max_tokens=20)
        await server.post("/v1/completions", prompt=list(range(1, 41)), max_tokens=20)
        await asyncio.sleep(0.12)
        told = lines(log, "octavo.stats")
        assert "0 waiting, " in told[0]
        assert " of new prompts in memory" in told[0]
        await asyncio.sleep(0.12)
        assert len(lines(log, "octavo.stats")) == len(told), "nothing has happened since"
        server.core.die()
        await asyncio.sleep(0.12)
        assert not telling.done()
        telling.cancel()

    served(test)


def test_a_server_without_a_stderr_logs_nowhere(monkeypatch):
    names = ("octavo", "uvicorn")
    kept = [(logging.getLogger(name), logging.getLogger(name).handlers[:]) for name in names]
    levels = [(one.level, one.propagate) for one, _ in kept]
    monkeypatch.setattr("sys.stderr", None)
    try:
        set_up_log()
        logging.getLogger("octavo.server").warning("nobody reads this")
    finally:
        for (logger, handlers), (level, propagate) in zip(kept, levels, strict=True):
            logger.handlers[:] = handlers
            logger.setLevel(level)
            logger.propagate = propagate
