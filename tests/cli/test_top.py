"""`octavo top`: what it shows of a server, and what it says where there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading

import pytest
import uvicorn

from octavo.cli import run
from octavo.cli.top import Board
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant
from octavo.testing.near_server import near_server


class _Server(uvicorn.Server):
    def capture_signals(self):
        return contextlib.nullcontext()


@pytest.fixture(scope="module")
def url():
    """A server with a key, in a thread of its own, that has answered a request."""
    ready, told = threading.Event(), {}
    keys = KeyTable([KeyHolder(Tenant(name="default"), ("secret",))])

    async def serve():
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            async with near_server(keys=keys) as server:
                app = uvicorn.Config(server.app, log_config=None, lifespan="off")
                http = told["server"] = _Server(app)
                told["url"] = f"http://127.0.0.1:{sock.getsockname()[1]}"
                server.client.headers["authorization"] = "Bearer secret"
                await server.post("/v1/completions", prompt=list(range(1, 20)), max_tokens=3)
                serving = asyncio.create_task(http.serve([sock]))
                while not http.started:
                    await asyncio.sleep(0.01)
                ready.set()
                await serving

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(20)
    yield told["url"]
    told["server"].should_exit = told["server"].force_exit = True
    thread.join()


def test_one_look_is_one_document(url, capfd, monkeypatch):
    monkeypatch.setenv("OCTAVO_API_KEY", "secret")

    assert run(["top", "--url", url, "--json"]) == 0

    told = json.loads(capfd.readouterr().out)
    assert told["schema"] == "octavo.top/1"
    assert (told["counts"]["cached"], told["counts"]["free"]) == (6, 194)
    assert told["requests"] == {"live": [], "running": 0, "waiting": 0}


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["--api-key", "wrong"], 2, "give --api-key"),
        (["--api-key", "secret", "--url", "http://127.0.0.1:9"], 1, "octavo serve"),
        (["--url", "ftp://here"], 2, "must be like http://127.0.0.1:8000"),
        (["--url", "http://[::"], 2, "cannot be read"),
    ],
)
def test_what_is_wrong_is_said_with_the_way_out(url, arguments, status, words, capfd):
    at = [] if "--url" in arguments else ["--url", url]

    assert run(["top", "--json", *at, *arguments]) == status

    assert words in capfd.readouterr().err


def test_a_page_tells_what_the_memory_holds_and_who_holds_it():
    frame = {
        "type": "snapshot",
        "now_s": 10.0,
        "step": 7,
        "paused": False,
        "pool": {"model": "fake", "blocks": 100},
        "counts": {
            **dict.fromkeys(("shared", "tentative", "pinned", "quarantined"), 0),
            **{"in_use": 40, "cached": 10, "free": 50},
            **{"held": 40, "logical": 60, "waste_share": 0.025},
        },
        "requests": {
            "live": {
                "seq": "AwAAAA==",
                "phase": "Ag==",
                "tokens": "MAAAAA==",
                "computed": "MAAAAA==",
                "blocks": "KAAAAA==",
                "preemptions": "AAA=",
                "paused": "AA==",
            },
            "new": [
                {
                    "seq": 3,
                    "request": "r7",
                    "index": 0,
                    "tenant": "alice",
                    "prompt": 20,
                    "hit": 16,
                    "miss": {"reason": "evicted"},
                }
            ],
            "gone": [],
            "running": 1,
            "waiting": 2,
        },
    }
    board = Board("http://here")
    assert board.lines() == ["http://here: the engine is ready"]

    board.take_in("snapshot", frame)
    page = "\n".join(board.lines())

    assert "1 running  2 waiting" in page
    assert "in_use       40  40.0%" in page
    assert "40 blocks held, 60 without sharing; 2.5% of their slots are empty" in page
    row = next(line for line in board.lines() if line.startswith("r7/0"))
    assert row.split() == ["r7/0", "alice", "running", "20", "48", "16", "40", "evicted"]
