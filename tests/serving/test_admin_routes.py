"""What administrators can do: reset, pause, drain, check, and look at what runs."""

from __future__ import annotations

import asyncio

from octavo.contract.request import FinishReason, Request
from octavo.contract.sampling import SamplingParams
from octavo.server.core import CoreState
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant, TenantLimits
from octavo.testing.near_core import Heard
from octavo.testing.near_server import served

ALICE = Tenant(name="alice", limits=TenantLimits(max_running=3))
KEYS = KeyTable([KeyHolder(ALICE, ("alices",))], ["admins"])
HEADERS = {"Authorization": "Bearer admins"}


def ask(core, name="r", *, max_tokens=8):
    heard = Heard()
    request = Request(
        id=name, prompt=tuple(range(1, 20)), sampling=SamplingParams(max_tokens=max_tokens), seed=3
    )
    core.submit(request, heard)
    return heard


def with_admin(test, **options):
    async def run(server):
        server.client.headers.update(HEADERS)
        await test(server)

    served(run, **{"keys": KEYS, **options})


def test_the_cache_is_emptied():
    async def test(server):
        await ask(server.core).ended.wait()
        blocks = (await server.post("/reset_prefix_cache")).json()["blocks"]
        assert blocks > 0
        assert (await server.post("/flush_cache")).json() == {"blocks": 0}

    with_admin(test)


def test_a_pause_keeps_requests_until_it_ends():
    async def test(server):
        assert (await server.post("/pause")).json() == {"paused": True}
        assert (await server.get("/is_paused")).json()["paused"]
        heard = ask(server.core)
        await asyncio.sleep(0.02)
        assert not heard.updates
        assert (await server.client.get("/health")).status_code == 200
        await server.post("/resume")
        await heard.ended.wait()
        assert len(heard.tokens()) == 8

    with_admin(test)


def test_a_pause_can_be_ended_while_there_is_no_engine():
    async def test(server):
        await server.post("/pause")
        server.core.die()
        reply = await server.post("/resume")
        assert reply.status_code == 200
        assert reply.json() == {"paused": False, "draining": False}
        await server.core.revive()
        assert not (await server.get("/is_paused")).json()["paused"]

    with_admin(test)


def test_a_pause_may_end_what_runs():
    async def test(server):
        heard = ask(server.core, max_tokens=300)
        while not heard.updates:
            await asyncio.sleep(0)
        await server.client.post("/pause", params={"mode": "abort"})
        await heard.ended.wait()
        assert heard.updates[-1].finish is FinishReason.ABORT

    with_admin(test)


def test_a_mode_that_there_is_not_is_refused():
    async def test(server):
        reply = await server.client.post("/pause", params={"mode": "wait"})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "mode"

    with_admin(test)


def test_a_drain_refuses_new_requests_waits_for_others_and_turns_health_red():
    async def test(server):
        server.parts.doors.come_in()
        reply = await server.client.post("/drain", params={"timeout_s": 0})
        assert reply.json() == {"draining": True, "left": 1}
        health = await server.get("/health")
        assert health.status_code == 503
        assert health.json()["status"] == "draining"
        reply = await server.client.get("/v1/models", headers={"Authorization": "Bearer alices"})
        assert reply.status_code == 503
        assert reply.headers["retry-after"] == "1"
        assert (await server.get("/metrics")).status_code == 200
        draining = asyncio.create_task(server.post("/drain"))
        await asyncio.sleep(0.01)
        assert not draining.done()
        server.parts.doors.go_out()
        assert (await draining).json()["left"] == 0
        await server.post("/resume")
        assert (await server.get("/health")).status_code == 200

    with_admin(test)


def test_counts_are_recomputed():
    async def test(server):
        reply = (await server.post("/check")).json()
        assert reply["ok"]
        assert reply["checks"]["runs"] == 1

    with_admin(test)


def test_what_runs_is_told_and_no_key():
    async def test(server):
        info = (await server.get("/server_info")).json()
        assert info["engine"]["backend"] == "fake"
        assert info["tenants"][0]["limits"]["max_running"] == 3
        assert info["flags"] == {"max-n": 3}
        text = (await server.get("/server_info")).text
        assert "admins" not in text
        assert "alices" not in text

    with_admin(test, about={"flags": {"max-n": 3}})


def test_health_is_red_while_there_is_no_engine():
    async def test(server):
        server.core.die("the engine's process ended (signal 9): /secret/path")
        reply = await server.get("/health")
        assert reply.status_code == 503
        assert reply.json() == {"status": "restarting", "restarts": 0}
        assert (await server.post("/reset_prefix_cache")).status_code == 503
        info = (await server.get("/server_info")).json()
        assert "signal 9" in info["last_words"]
        await server.core.revive()
        assert server.core.state is CoreState.READY
        assert (await server.get("/ping")).status_code == 200

    with_admin(test)
