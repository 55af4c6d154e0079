"""The stream of the memory: snapshots, deltas, and what each caller may see of it."""

from __future__ import annotations

import asyncio
import re
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from page_reader import Page

from octavo.contract.memory_view import CellState
from octavo.contract.request import Request
from octavo.contract.retention import TenantShare
from octavo.contract.sampling import SamplingParams
from octavo.errors import OverLimit
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant
from octavo.server.watch.feed import MOST_STREAMS, Feed, Stream
from octavo.server.watch.wants import Wants
from octavo.testing.near_core import Heard, fake_loop
from octavo.testing.near_server import served

EVENTS = "/v1/debug/memory/events"
BLOCKS = "/v1/debug/memory/blocks"
PROMPT = tuple(range(1, 20))
KEYS = KeyTable(
    [KeyHolder(Tenant(name=name), (f"{name}-key",)) for name in ("alice", "bob")], ["admin-key"]
)


def several():
    return fake_loop(tenants=[TenantShare("alice"), TenantShare("bob")])


def submit(core, name, prompt=PROMPT, *, max_tokens=200, tenant="default", n=1):
    heard = Heard(n)
    params = SamplingParams(max_tokens=max_tokens, n=n)
    core.submit(Request(id=name, prompt=prompt, sampling=params, seed=3, tenant=tenant), heard)
    return heard


@asynccontextmanager
async def watching(core, feed=None, **wants):
    """Yield a page, and what lets it take in the next event."""
    stream = Stream(feed or Feed(core), core, "fake", Wants(**wants), words=True)
    events = stream.events(keep_alive_s=10.0)
    page = Page()

    async def read():
        page.take_in(await anext(events))
        return page

    try:
        yield read
    finally:
        await events.aclose()


def agrees(page, core):
    """Assert that a page shows what is there, as the pool counts it."""
    usage, states = core.loop.usage(), page.cells["state"]
    core.loop.check()
    counts = np.bincount(states, minlength=7).tolist()
    held = sum(counts[one] for one in (CellState.IN_USE, CellState.SHARED, CellState.TENTATIVE))
    assert (held, counts[CellState.FREE]) == (usage.blocks_used, usage.blocks_free)
    assert counts[CellState.CACHED] + counts[CellState.PINNED] == usage.blocks_cached
    assert int(page.cells["refs"].sum()) == usage.blocks_logical
    assert int((page.cells["refs"] > 1).sum()) == usage.blocks_shared
    assert [page.last["counts"][one.name.lower()] for one in CellState] == counts


def test_deltas_on_a_snapshot_show_what_the_pool_counts_under_load():
    async def test(server):
        core = server.core
        async with watching(core) as read:
            await read()
            for round in range(8):
                submit(
                    core, f"r{round}", PROMPT[: 4 + round], max_tokens=5 + round, n=1 + round % 3
                )
                await asyncio.sleep(0.03)
                await server.post("/pause")
                page = await read()
                while page.last["step"] < core.loop.stats.steps:
                    page = await read()
                agrees(page, core)
                await core.resume()
        kinds = [frame["type"] for frame in page.frames]
        assert kinds[0] == "snapshot"
        assert set(kinds[1:]) == {"delta"}

    keys = KeyTable([], ["admin-key"])

    async def run(server):
        server.client.headers["authorization"] = "Bearer admin-key"
        await test(server)

    served(run, step_s=0.001, keys=keys)


def test_a_reader_that_is_behind_is_told_the_newest_state_in_one_delta():
    async def test(server):
        core = server.core
        feed = Feed(core)
        async with watching(core, feed) as slow, watching(core, feed) as quick:
            await slow()
            for number in range(2):
                submit(core, f"r{number}", max_tokens=12)
                for _ in range(2):
                    page = await quick()
            while core.loop.busy:
                page = await quick()
            page = await quick()
            behind = await slow()
            while behind.seq < page.seq:
                behind = await slow()
            assert len(behind.frames) < len(page.frames)
            agrees(behind, core)

    served(test, step_s=0.01)


def test_requests_are_told_from_their_coming_to_their_end():
    async def test(server):
        core = server.core
        async with watching(core) as read:
            await read()
            heard = submit(core, "one", max_tokens=60)
            page = await read()
            while not page.requests or page.requests[0]["hit"] is None:
                page = await read()
            facts = page.requests[0]
            assert (facts["request"], facts["prompt"], facts["hit"]) == ("one", 19, 0)
            assert facts["miss"]["reason"] == "first_seen"
            phase, tokens, computed, blocks = page.live()[0]
            assert phase == 2
            assert 19 <= tokens <= 79
            assert blocks == -(-computed // 4)
            assert 0 in page.cells["owner"]
            await heard.ended.wait()
            while page.requests:
                page = await read()
            assert page.last["requests"]["running"] == 0

    served(test, step_s=0.01)


def test_a_followed_request_shows_its_table_and_with_whom_it_shares():
    async def test(server):
        core = server.core
        async with watching(core, follow=("two",), cells=False) as read:
            await read()
            submit(core, "one")
            await asyncio.sleep(0.05)
            submit(core, "two")
            page = await read()
            while not any(len(table["shared"]) == 4 for table in page.tables.values()):
                page = await read()
            (table,) = page.tables.values()
            assert table["seq"] == 1
            assert [one[1] for one in table["shared"]] == [[0]] * 4
            assert page.cells == {}

    served(test, step_s=0.01)


def test_an_engine_that_is_started_again_begins_with_a_snapshot():
    async def test(server):
        core = server.core
        async with watching(core) as read:
            page = await read()
            core.die()
            page = await read()
            assert page.states == [{"state": "restarting", "words": core.last_words}]
            await core.revive()
            page = await read()
            assert page.states[1:] == [{"state": "ready"}]
            page = await read()
            assert (page.last["type"], page.epoch) == ("snapshot", 1)
            await core.stop()
            page = await read()
            assert page.states[-1] == {"state": "stopped"}
            try:
                await read()
            except StopAsyncIteration:
                return
            raise AssertionError("the stream goes on without a server")

    served(test)


def test_a_stream_says_that_it_lives_when_nothing_changes():
    async def test(server):
        async with watching(server.core) as read:
            await read()
            page = await read()
            assert page.last["type"] == "delta"
            assert "cells" not in page.last

    served(test)


def test_nobody_looks_once_the_last_stream_has_ended():
    async def test(server):
        core, feed = server.core, Feed(server.core)
        async with watching(core, feed) as read:
            await read()
            assert feed.mirror is not None
            number = feed.mirror.number
        await asyncio.sleep(0.25)
        assert feed.mirror.number == number

    served(test)


def test_a_tenant_sees_of_others_cells_their_state_alone():
    async def test(server):
        core, feed = server.core, Feed(server.core)
        async with (
            watching(core, feed, tenant="alice", tree=50, follow=("hers", "his")) as hers,
            watching(core, feed, tree=50) as everything,
        ):
            submit(core, "hers", tenant="alice")
            submit(core, "his", tuple(range(20, 45)), tenant="bob")
            page, whole = await hers(), await everything()
            while not page.requests or page.live()[0][0] != 2 or len(whole.requests) < 2:
                page, whole = await hers(), await everything()
            assert {one["request"] for one in page.requests.values()} == {"hers"}
            assert page.last["scope"] == "tenant"
            others = (page.cells["mine"] == 0) & (page.cells["state"] != 0)
            assert others.any()
            for name in ("refs", "tokens", "hits", "used_s"):
                assert not page.cells[name][others].any()
            assert set(page.cells["owner"][others]) == {-1}
            assert {key[0] for key in page.tables} <= {0}
            assert not {"counters", "what_if"} & page.last.keys()
            assert "held" not in page.last["counts"]
            nodes = [frame["tree"]["nodes"] for frame in page.frames if "tree" in frame][-1]
            assert all(page.cells["mine"][node["node"]] for node in nodes)

    served(test, build=several, step_s=0.01)


def test_keys_decide_who_sees_what():
    async def test(server):
        async def get(path, key=None):
            headers = {} if key is None else {"Authorization": f"Bearer {key}"}
            return await server.client.get(path, headers=headers)

        heard = submit(server.core, "his", tenant="bob", max_tokens=3)
        await heard.ended.wait()
        assert (await get(EVENTS)).status_code == 401
        assert (await get(EVENTS, "wrong")).status_code == 401
        assert (await get("/v1/debug/memory/history", "bob-key")).status_code == 403
        assert (await get("/v1/debug/memory/history", "admin-key")).status_code == 200
        for key, scope in (("bob-key", "tenant"), ("admin-key", "all")):
            page = Page()
            page.take_in((await get(EVENTS + "?once=true", key)).content)
            assert page.last["scope"] == scope
        other = (await get(f"{BLOCKS}/0", "alice-key")).json()
        assert other == {"block": 0, "state": "cached", "mine": False}
        for key in ("bob-key", "admin-key"):
            told = (await get(f"{BLOCKS}/1?prefix=true", key)).json()
            assert told["tokens"] == [5, 6, 7, 8]
            assert told["prefix_tokens"] == [1, 2, 3, 4, 5, 6, 7, 8]

    served(test, build=several, keys=KEYS)


def test_a_server_without_keys_tells_no_texts_unless_it_was_told_to():
    async def test(server):
        heard = submit(server.core, "one", max_tokens=3)
        await heard.ended.wait()
        told = (await server.get(f"{BLOCKS}/0")).json()
        assert told["mine"]
        assert told["key"]
        assert told["tokens"] is None

    served(test)


def test_options_that_there_are_not_are_refused_and_so_are_too_many_streams():
    async def test(server):
        for query in ("hertz=3", "hz=0", "hz=11", "tree=501", "cells=some", "count=70000"):
            reply = await server.get(f"{EVENTS}?{query}")
            assert reply.status_code == 400, query
        many = ",".join(f"r{number}" for number in range(9))
        assert (await server.get(f"{EVENTS}?follow={many}")).status_code == 400
        assert (await server.get(f"{BLOCKS}/200")).status_code == 404
        feed = Feed(server.core)
        for _ in range(MOST_STREAMS):
            feed.check_room()
            feed._watching.append(1)
        with pytest.raises(OverLimit, match="32 streams of the memory"):
            feed.check_room()

    served(test)


def test_the_tree_has_a_node_for_each_run_of_blocks_that_only_one_text_continues():
    async def test(server):
        core = server.core
        for tail in (30, 40):
            await submit(core, f"r{tail}", (*range(1, 9), *range(tail, tail + 9))).ended.wait()
        page = Page()
        page.take_in((await server.get(EVENTS + "?once=true&tree=10")).content)
        tree = page.last["tree"]
        root, *leaves = sorted(tree["nodes"], key=lambda node: node["depth"])
        assert (root["parent"], root["tokens"], root["children"], root["hits"]) == (None, 8, 2, 1)
        assert [leaf["parent"] for leaf in leaves] == [root["node"]] * 2
        assert [leaf["depth"] for leaf in leaves] == [8, 8]
        assert (tree["total"], tree["shown"]) == (3, 3)
        few = Page()
        few.take_in((await server.get(EVENTS + "?once=true&tree=1")).content)
        assert [node["node"] for node in few.last["tree"]["nodes"]] == [root["node"]]

    served(test)


def test_a_paused_engine_is_said_to_be_paused():
    async def test(server):
        await server.core.pause()
        async with watching(server.core) as read:
            page = await read()
            assert page.states == [{"state": "paused"}]
            page = await read()
            assert page.last["paused"]

    served(test)


def test_the_page_about_the_stream_names_every_field():
    text = Path(__file__).parents[2].joinpath("docs/reference/memory-stream.md").read_text()
    named = set(re.findall(r"`([^`\n]+)`", text))

    async def test(server):
        core = server.core
        async with watching(core, tree=5, follow=("one",)) as read:
            await read()
            submit(core, "one", n=2)
            page = await read()
            while not page.tables:
                page = await read()
        fields = {"index", "mine", "miss"}
        for frame in page.frames:
            for section in (frame, frame.get("cells", {}), frame["counts"], frame["requests"]):
                fields |= section.keys()
            fields |= frame["requests"]["live"].keys() | frame.get("counters", {}).keys()
            fields |= frame.get("pool", {}).keys() | frame.get("what_if", {}).keys()
            for rows in (frame.get("tables", ()), frame.get("copies", ())):
                fields |= {name for row in rows for name in row}
            fields |= {name for row in frame["requests"]["new"] for name in row}
            fields |= {name for row in frame.get("tree", {"nodes": ()})["nodes"] for name in row}
        states = {state.name.lower() for state in CellState}
        assert fields - states <= named | {"free", "type", "shown"}
        block = (await server.get(f"{BLOCKS}/0")).json()
        assert block.keys() - {"block"} <= named
        history = (await server.get("/v1/debug/memory/history?step=1")).json()
        assert history.keys() <= named

    served(test, step_s=0.01)
