"""`/v1/responses`: the official client is answered, in one piece, by events and by id."""

from __future__ import annotations

import asyncio
import contextlib
import itertools

import openai
import pytest
from scripted import SAYS, scripted
from sockets import Line, in_a_thread, listening

from octavo.errors import EngineGone
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.limits import TenantGate
from octavo.server.tenants import OpenKeyring, Tenant, TenantLimits

PATH = "/v1/responses"

TOOL = {"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}}


@pytest.fixture
def client(tiny_tokenizer):
    """The official client of a server that thinks, speaks and calls."""
    with _client(scripted(tiny_tokenizer, SAYS)) as made:
        yield made


def test_an_answer_is_what_is_thought_said_and_called(client):
    response = client.responses.create(model="tiny", input="hello", tools=[TOOL])

    assert response.status == "completed"
    assert response.output_text == "well"
    thought, _, first, second = response.output
    assert thought.content[0].text == "they ask"
    assert (first.name, first.arguments) == ("look", '{"at": "a"}')
    assert second.arguments == "{}"
    assert first.call_id != second.call_id
    usage = response.usage
    assert 0 < usage.output_tokens_details.reasoning_tokens <= len("they ask")
    assert usage.output_tokens == usage.total_tokens - usage.input_tokens


def test_a_stream_put_together_is_the_answer_in_one_piece(client):
    asked = {"model": "tiny", "input": "hello", "tools": [TOOL], "extra_body": {"request_id": "7"}}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()

    assert [_said(item) for item in final.output] == [_said(item) for item in whole.output]
    assert (final.id, final.usage) == (whole.id, whole.usage)
    assert [one.sequence_number for one in events] == list(range(len(events)))


def test_events_come_in_the_order_that_clients_know(client):
    kinds = []
    for event in client.responses.create(model="tiny", input="hello", tools=[TOOL], stream=True):
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type.removeprefix("response."))

    def part(kind):
        return [f"{kind}.delta", f"{kind}.done"]

    begins, ends = "content_part.added", "content_part.done"
    assert list(_without_repeats(kinds)) == [
        "created",
        "in_progress",
        "output_item.added",
        begins,
        *part("reasoning_text"),
        ends,
        "output_item.done",
        "output_item.added",
        begins,
        *part("output_text"),
        ends,
        "output_item.done",
        *(["output_item.added", *part("function_call_arguments"), "output_item.done"] * 2),
        "completed",
    ]


def test_a_response_is_fetched_continued_and_forgotten(client):
    first = client.responses.create(model="tiny", input="hello", instructions="be brief")
    assert client.responses.retrieve(first.id) == first

    second = client.responses.create(model="tiny", input="in", previous_response_id=first.id)
    assert second.previous_response_id == first.id
    again = [
        {"role": "user", "content": "hello"},
        *[item.model_dump() for item in first.output],
        {"role": "user", "content": "in"},
    ]
    stateless = client.responses.create(model="tiny", input=again, store=False)
    assert stateless.usage.input_tokens == second.usage.input_tokens > first.usage.input_tokens

    client.responses.delete(first.id)
    for ask in (
        lambda: client.responses.retrieve(first.id),
        lambda: client.responses.retrieve(stateless.id),
        lambda: client.responses.create(model="tiny", input="a", previous_response_id=first.id),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            ask()
        assert caught.value.code == "response_not_found"


def test_results_of_calls_stand_in_the_history(client):
    first = client.responses.create(model="tiny", input="hello", tools=[TOOL])
    results = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "the inn"}
        for call in first.output
        if call.type == "function_call"
    ]
    second = client.responses.create(
        model="tiny", input=results, previous_response_id=first.id, tools=[TOOL]
    )
    assert second.status == "completed"
    assert second.usage.input_tokens > first.usage.input_tokens + 2 * len("the inn") // 4


def test_an_answer_that_is_cut_says_so_and_can_be_continued(tiny_tokenizer):
    with _client(scripted(tiny_tokenizer, "<think>they", cut=True)) as client:
        response = client.responses.create(model="tiny", input="hello", max_output_tokens=3)
        assert response.status == "incomplete"
        assert response.incomplete_details.reason == "max_output_tokens"
        assert response.output[0].status == "incomplete"
        *_, last = client.responses.create(model="tiny", input="hello", stream=True)
        assert last.type == "response.incomplete"
        follows = client.responses.create(
            model="tiny", input="go on", previous_response_id=response.id
        )
        assert follows.usage.input_tokens > response.usage.input_tokens


def test_in_the_background_it_is_written_to_its_end(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        began = await server.post(PATH, input="hello", background=True)
        assert began.json()["status"] == "queued"
        where = f"{PATH}/{began.json()['id']}"
        so_far = await _until(server, where, lambda one: one["output"])
        assert so_far["status"] == "in_progress"
        assert so_far["output"][0]["status"] == "in_progress"
        early = await server.post(PATH, input="hello", previous_response_id=so_far["id"])
        assert early.status_code == 400
        server.core.go.set()
        ended = await _until(server, where, lambda one: one["status"] != "in_progress")
        assert (ended["status"], ended["output"][0]["content"][0]["text"]) == ("completed", "well")
        assert server.parts.doors.inside == 0

    _near(test, tiny_tokenizer, "well")


def test_in_the_background_it_can_be_ended(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        began = (await server.post(PATH, input="hello", background=True)).json()
        where = f"{PATH}/{began['id']}"
        await _until(server, where, lambda one: one["output"])
        ended = (await server.post(f"{where}/cancel")).json()
        assert ended["status"] == "cancelled"
        assert "well".startswith(ended["output"][0]["content"][0]["text"])
        assert (await server.post(f"{where}/cancel")).json() == ended
        other = (await server.post(PATH, input="hello", background=True)).json()
        await server.client.delete(f"{PATH}/{other['id']}")
        await _all_out(server)
        assert (await server.get(f"{PATH}/{other['id']}")).status_code == 404

    _near(test, tiny_tokenizer, "well")


def test_in_the_background_it_has_its_place_from_the_start(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        body = {"input": "hello", "background": True}
        first = (await server.post(PATH, **body)).json()
        second = (await server.post(PATH, **body)).json()
        assert (await server.post(PATH, **body)).status_code == 429
        # It waits for its turn, and gives its place back to who comes next.
        assert (await server.post(f"{PATH}/{second['id']}/cancel")).json()["status"] == "cancelled"
        assert (await server.post(PATH, **body)).status_code == 200
        server.core.go.set()
        await _all_out(server)
        assert len(server.core.asked) == 2
        assert (await server.get(f"{PATH}/{first['id']}")).json()["status"] == "completed"

    limits = TenantLimits(max_running=1, max_queued=1)
    keys = OpenKeyring(Tenant(name="ann", limits=limits))
    _near(test, tiny_tokenizer, "well", keys=keys, gate=TenantGate(60))


def test_what_fails_in_the_background_says_why(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        began = (await server.post(PATH, input="hello", background=True)).json()
        await _until(server, f"{PATH}/{began['id']}", lambda one: one["output"])
        server.core.lose(EngineGone("it was killed"))
        where = f"{PATH}/{began['id']}"
        failed = await _until(server, where, lambda one: one["status"] != "in_progress")
        assert failed["status"] == "failed"
        assert failed["error"]["code"] == "server_error"

    _near(test, tiny_tokenizer, "well")


def test_a_client_that_leaves_ends_its_response(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        body = {"input": "hello", "stream": True}
        async with listening(server.app) as port:
            line = await Line.post(port, PATH, **body)
            name = (await line.piece()).decode().split('"id":"resp_')[1].split('"')[0]
            line.leave()
            await _all_out(server)
        ended = (await server.get(f"{PATH}/resp_{name}")).json()
        assert ended["status"] == "cancelled"

    _near(test, tiny_tokenizer, "well")


def test_nobody_fetches_the_responses_of_others(tiny_tokenizer):
    async def test(server):
        def of(name):
            return {"Authorization": f"Bearer {name}-key"}

        ask = server.client.request
        mine = (await ask("POST", PATH, json={"input": "hello"}, headers=of("ann"))).json()
        where = f"{PATH}/{mine['id']}"
        follows = {"input": "in", "previous_response_id": mine["id"]}
        for method, path, body in (
            ("GET", where, None),
            ("DELETE", where, None),
            ("POST", f"{where}/cancel", None),
            ("POST", PATH, follows),
        ):
            reply = await ask(method, path, json=body, headers=of("bob"))
            assert reply.status_code == 404
        assert (await ask("GET", where, headers=of("ann"))).json() == mine
        assert (await ask("GET", where)).status_code == 401

    keys = KeyTable(KeyHolder(Tenant(name=name), (f"{name}-key",)) for name in ("ann", "bob"))
    _near(test, tiny_tokenizer, "well", keys=keys)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": []}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"role": "user"}]}, "input"),
        ({"background": True, "store": False}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"max_output_tokens": 0}, "max_tokens"),
        ({"truncation": "auto"}, "truncation"),
        ({"conversation": "conv_1"}, "conversation"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(tiny_tokenizer, body, param):
    async def test(server):
        reply = await server.post(PATH, **{"input": "hello", **body})
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == param, reply.text

    _near(test, tiny_tokenizer, "well")


# ── inside ────────────────────────────────────────────────────────────────────────────────


def _said(item):
    return item.model_dump(exclude={"parsed_arguments", "content"}) | {
        "texts": [part.text for part in getattr(item, "content", None) or ()]
    }


def _without_repeats(kinds):
    return (kind for kind, _ in itertools.groupby(kinds))


@contextlib.contextmanager
def _client(opened):
    with (
        in_a_thread(opened) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=10) as made,
    ):
        yield made


def _near(test, tokenizer, says, **parts):
    async def run():
        async with scripted(tokenizer, says, **parts) as server:
            await asyncio.wait_for(test(server), 10)

    asyncio.run(run())


async def _until(server, where, happens):
    while not happens(found := (await server.get(where)).json()):
        await asyncio.sleep(0.001)
    return found


async def _all_out(server):
    while server.parts.doors.inside:
        await asyncio.sleep(0.001)
