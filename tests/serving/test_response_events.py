"""Events of responses in the background: heard at once, later, and again, within bounds."""

from __future__ import annotations

import asyncio
import json

import openai
import pytest
from scripted import SAYS, scripted
from sockets import Line, in_a_thread, listening

from octavo.errors import EngineGone
from octavo.server.doors import Doors
from octavo.server.event_log import EventLog
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.responses_form import ResponsesForm
from octavo.server.retold import Retold
from octavo.server.stored_responses import StoredResponse, StoredResponses
from octavo.server.tenants import Tenant

PATH = "/v1/responses"
BEHIND = {"input": "hello", "background": True, "stream": True}
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def client(tiny_tokenizer):
    """The official client of a server that thinks, speaks and calls."""
    with (
        in_a_thread(scripted(tiny_tokenizer, SAYS)) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as made,
    ):
        yield made


def test_events_can_be_heard_again_from_any_number_on(client):
    heard = list(client.responses.create(model="tiny", tools=[TOOL], **BEHIND))
    name = heard[0].response.id

    assert [one.sequence_number for one in heard] == list(range(len(heard)))
    assert [one.type for one in heard[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    assert [one.response.status for one in heard[:3]] == ["queued", "queued", "in_progress"]
    assert list(client.responses.retrieve(name, stream=True)) == heard
    for number in (0, 7, len(heard) - 2, len(heard) - 1, len(heard) + 5):
        rest = list(client.responses.retrieve(name, stream=True, starting_after=number))
        assert rest == heard[number + 1 :]
    assert client.responses.retrieve(name) == heard[-1].response
    assert heard[-1].response.status == "completed"


def test_events_put_together_are_what_is_fetched(client):
    asked = {"model": "tiny", "input": "hello", "tools": [TOOL]}
    with client.responses.stream(**asked, background=True) as stream:
        final = stream.get_final_response()

    kept = client.responses.retrieve(final.id)
    assert final.output_text == kept.output_text == "well"
    assert final.usage == kept.usage
    with client.responses.stream(response_id=final.id) as again:
        assert again.get_final_response() == final


def test_a_client_that_leaves_ends_nothing_and_finds_the_rest(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        async with listening(server.app) as port:
            line = await Line.post(port, PATH, **BEHIND)
            first = read(await _with(line, "response.in_progress"))
            line.leave()
            name = first[0]["response"]["id"]
            while server.parts.doors.inside > 1:
                await asyncio.sleep(0.001)
            so_far = (await server.get(f"{PATH}/{name}")).json()
            assert so_far["status"] == "in_progress"
            asking = asyncio.create_task(
                server.get(f"{PATH}/{name}?stream=true&starting_after={len(first) - 1}")
            )
            await asyncio.sleep(0.01)
            assert not asking.done()
            server.core.go.set()
            rest = read((await asking).content)
        numbers = [one["sequence_number"] for one in first + rest]
        assert numbers == list(range(len(numbers)))
        assert rest[-1]["response"]["output"][0]["content"][0]["text"] == "well"
        assert server.parts.doors.inside == 0

    _near(test, tiny_tokenizer, "well")


@pytest.mark.parametrize("by", ["cancel", "loss", "delete"])
def test_whoever_listens_hears_of_an_end_from_outside(tiny_tokenizer, by):
    async def test(server):
        server.core.go.clear()
        listens = asyncio.create_task(server.post(PATH, **BEHIND, request_id="1"))
        while not server.core.asked:
            await asyncio.sleep(0.001)
        name = "resp_1"
        await asyncio.sleep(0.01)
        if by == "cancel":
            await server.post(f"{PATH}/{name}/cancel")
        elif by == "loss":
            server.core.lose(EngineGone("it was killed"))
        else:
            await server.client.delete(f"{PATH}/{name}")
        *_, last = read((await listens).content)
        told = (last["type"], last["response"]["status"] if "response" in last else last["code"])
        assert (
            told
            == {
                "cancel": ("response.failed", "cancelled"),
                "loss": ("response.failed", "failed"),
                "delete": ("error", "response_not_found"),
            }[by]
        )
        while server.parts.doors.inside:
            await asyncio.sleep(0.001)

    _near(test, tiny_tokenizer, "well")


def test_what_has_no_events_says_so(tiny_tokenizer):
    async def test(server):
        whole = (await server.post(PATH, input="hello")).json()["id"]
        behind = (await server.post(PATH, input="hello", background=True)).json()["id"]
        for where, param in (
            (f"{whole}?stream=true", "stream"),
            (f"{behind}?stream=true", "stream"),
            (f"{whole}?starting_after=3", "starting_after"),
            (f"{whole}?stream=true&starting_after=-1", "starting_after"),
            (f"{whole}?stream=perhaps", "stream"),
        ):
            reply = await server.get(f"{PATH}/{where}")
            assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)

    _near(test, tiny_tokenizer, "well")


def test_nobody_hears_the_events_of_others(tiny_tokenizer):
    async def test(server):
        def of(name):
            return {"Authorization": f"Bearer {name}-key"}

        mine = await server.client.post(PATH, json=BEHIND, headers=of("ann"))
        where = f"{PATH}/{read(mine.content)[0]['response']['id']}?stream=true"
        assert (await server.client.get(where, headers=of("bob"))).status_code == 404
        assert (await server.client.get(where, headers=of("ann"))).content == mine.content

    keys = KeyTable(KeyHolder(Tenant(name=name), (f"{name}-key",)) for name in ("ann", "bob"))
    _near(test, tiny_tokenizer, "well", keys=keys)


# ── bounds ────────────────────────────────────────────────────────────────────────────────


def written(store, name, events, *, size=1000, end=False):
    """A response with so many events, that is kept and goes on unless it ends."""
    log = EventLog()
    form = ResponsesForm({"id": name}, behind=True, hear=log.write)
    stored = StoredResponse(form, (), log)
    store.put("ann", stored)
    for _ in range(events):
        log.write(b"x" * size)
        store.grow("ann", stored)
    if end:
        store.end("ann", stored)
    return stored


def test_events_of_what_has_ended_go_before_any_response():
    store = StoredResponses(most_bytes=30_000)
    old = written(store, "r1", 10, end=True)
    new = written(store, "r2", 10, end=True)
    running = written(store, "r3", 12)

    assert store.get("ann", "r1") is old
    assert (old.events.first, new.events.first, running.events.first) == (10, 0, 0)
    assert store.bytes_of("ann") <= 30_000
    running.events.end()
    store.drop("ann", "r3")
    assert store.bytes_of("ann") == old.size + new.size


def test_of_what_is_still_written_the_oldest_events_go():
    store = StoredResponses(most_bytes=30_000)
    ended = written(store, "r1", 0, end=True)
    running = written(store, "r2", 100)

    assert ended.events.next == 0
    assert store.get("ann", "r2") is running
    assert 0 < running.events.first < 100 == running.events.next
    assert store.bytes_of("ann") <= 30_000


def test_a_listener_who_comes_too_late_is_told_where_they_begin():
    log = EventLog()
    for number in range(10):
        log.write(b"%d " % number)
    log.publish()

    async def test():
        late = Retold(log, 2, Doors(), keep_alive_s=1)
        log.let_go(4)
        said = await _told(late)
        assert b'"sequence_number":2' in said
        assert b"give 3 or more" in said
        log.end()
        assert await _told(Retold(log, 4, Doors(), keep_alive_s=1)) == b"4 5 6 7 8 9 "

    asyncio.run(test())


def test_a_listener_who_hears_nothing_for_long_gets_a_comment():
    log = EventLog()

    async def test():
        listens = asyncio.create_task(_told(Retold(log, 0, Doors(), keep_alive_s=0.01)))
        await asyncio.sleep(0.035)
        log.write(b"0 ")
        log.end()
        return await listens

    said = asyncio.run(test())
    assert said.endswith(b"0 ")
    assert said.count(b": keep-alive") >= 2


# ── inside ────────────────────────────────────────────────────────────────────────────────


def read(data):
    """The events of a stream."""
    blocks = data.decode().split("\n\n")
    return [json.loads(block.partition("data: ")[2]) for block in blocks if "data: " in block]


async def _with(line, what):
    """What comes up to an event, which comes whole."""
    data = b""
    while what.encode() not in data or not data.endswith(b"\n\n\r\n"):
        data += await line.piece()
    return data.partition(b"\r\n\r\n")[2]


async def _told(response):
    sent = []

    async def receive():
        await asyncio.Event().wait()

    async def send(message):
        sent.append(message.get("body", b""))

    await response({}, receive, send)
    return b"".join(sent)


def _near(test, tokenizer, says, **parts):
    async def run():
        async with scripted(tokenizer, says, **parts) as server:
            await asyncio.wait_for(test(server), 10)

    asyncio.run(run())
