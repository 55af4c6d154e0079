"""`/v1/messages`: Anthropic's official client is answered, in one piece and by events."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json

import anthropic
import pytest
from scripted import SAYS, scripted
from sockets import in_a_thread

from octavo.errors import EngineGone
from octavo.server.keys import KeyHolder, KeyTable
from octavo.server.tenants import Tenant

PATH = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
TOOL = {"name": "look", "input_schema": {"type": "object", "properties": {}}}
ASKED = {"model": "tiny", "max_tokens": 100, "messages": HELLO, "tools": [TOOL]}


@contextlib.contextmanager
def _client(opened, key="none"):
    with (
        in_a_thread(opened) as url,
        anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=10) as made,
    ):
        yield made


@pytest.fixture
def client(tiny_tokenizer):
    """The official client of a server that thinks, speaks and calls."""
    with _client(scripted(tiny_tokenizer, SAYS)) as made:
        yield made


def test_an_answer_is_what_is_thought_said_and_called(client):
    message = client.messages.create(**ASKED)

    thought, text, first, second = message.content
    assert (thought.thinking, text.text) == ("they ask", "well")
    assert (first.name, first.input) == ("look", {"at": "a"})
    assert second.input == {}
    assert first.id != second.id
    assert message.stop_reason == "tool_use"
    assert message.usage.cache_read_input_tokens == 2


def test_a_stream_put_together_is_the_answer_in_one_piece(client):
    asked = {**ASKED, "extra_body": {"request_id": "7"}}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()

    assert final.model_dump() == whole.model_dump()


def test_events_come_in_the_order_that_clients_know(client):
    kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]

    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    told = [kind for kind, _ in itertools.groupby(kinds)]
    assert told == ["message_start", *(block * 4), "message_delta", "message_stop"]


def test_a_history_with_calls_and_their_results_is_a_prompt(client):
    first = client.messages.create(**ASKED)
    results = [
        {"type": "tool_result", "tool_use_id": block.id, "content": [{"type": "text", "text": "a"}]}
        for block in first.content
        if block.type == "tool_use"
    ]
    history = [
        *HELLO,
        {"role": "assistant", "content": first.content},
        {"role": "user", "content": [*results, {"type": "text", "text": "and then?"}]},
    ]
    second = client.messages.create(**{**ASKED, "messages": history})
    assert second.stop_reason == "tool_use"
    assert _prompt(second.usage) > _prompt(first.usage)


def test_system_blocks_are_one_system_message(client):
    blocks = [{"type": "text", "text": "be"}, {"type": "text", "text": "brief"}]
    counts = [
        client.messages.count_tokens(model="tiny", messages=HELLO, system=system).input_tokens
        for system in (blocks, "be\n\nbrief")
    ]
    assert counts[0] == counts[1]


def test_tokens_are_counted_as_the_prompt_has_them(client):
    counted = client.messages.count_tokens(model="tiny", messages=HELLO)
    asked = client.messages.create(model="tiny", max_tokens=5, messages=HELLO)
    assert counted.input_tokens == _prompt(asked.usage)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize(
    ("cut", "asked", "reason", "stopped"),
    [
        (False, {}, "end_turn", None),
        (True, {}, "max_tokens", None),
        (False, {"stop_sequences": ["ll"]}, "stop_sequence", "ll"),
    ],
)
def test_it_says_why_it_stopped(tiny_tokenizer, cut, asked, reason, stopped, stream):
    with _client(scripted(tiny_tokenizer, "well", cut=cut)) as client:
        asked = {"model": "tiny", "max_tokens": 100, "messages": HELLO, **asked}
        if stream:
            with client.messages.stream(**asked) as streamed:
                message = streamed.get_final_message()
        else:
            message = client.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == (reason, stopped)
    assert message.content[0].text == ("we" if stopped else "well")


def test_an_answer_goes_on_with_the_assistant_s_last_message(tiny_tokenizer):
    async def test(server):
        await server.post(
            PATH, max_tokens=9, messages=[*HELLO, {"role": "assistant", "content": "the hell"}]
        )
        text = server.parts.model.tokenizer.decode(
            list(server.core.asked[0].prompt), skip_special_tokens=False
        )
        assert text.endswith("<|im_start|>assistant\nthe hell")

    _near(test, tiny_tokenizer)


def test_errors_are_those_of_its_own_api(tiny_tokenizer):
    keys = KeyTable([KeyHolder(Tenant(name="ann"), ("ann-key",))])
    with _client(scripted(tiny_tokenizer, "well", keys=keys), key="ann-key") as client:
        assert client.messages.create(model="tiny", max_tokens=5, messages=HELLO).content
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(model="other", max_tokens=5, messages=HELLO)
        assert caught.value.type == "not_found_error"
        with pytest.raises(anthropic.AuthenticationError):
            client.with_options(api_key="another").messages.create(**ASKED)
        with pytest.raises(anthropic.BadRequestError) as caught:
            client.messages.create(model="tiny", max_tokens=0, messages=HELLO)
        assert caught.value.body["error"]["type"] == "invalid_request_error"


def test_an_engine_that_ends_is_an_overload_or_the_end_of_a_stream(tiny_tokenizer):
    async def test(server):
        server.core.go.clear()
        for stream in (True, False):
            asking = asyncio.create_task(
                server.post(PATH, max_tokens=9, messages=HELLO, stream=stream)
            )
            while not server.core.asked:
                await asyncio.sleep(0.001)
            server.core.asked.clear()
            await asyncio.sleep(0.01)
            server.core.lose(EngineGone("it was killed"))
            reply = await asking
            if stream:
                told = json.loads(reply.text.split("event: error\ndata: ")[1])
            else:
                assert reply.status_code == 529
                told = reply.json()
            assert told["error"]["type"] == "overloaded_error"

    _near(test, tiny_tokenizer)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "image"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
        ({"messages": [{"role": "system", "content": "a"}]}, "messages"),
        ({"messages": [{"role": "user", "content": []}]}, "messages"),
        ({"bogus": 1}, "bogus"),
    ],
)
def test_what_it_cannot_do_is_refused_by_name(tiny_tokenizer, body, names):
    async def test(server):
        reply = await server.post(PATH, **{"max_tokens": 5, "messages": HELLO, **body})
        assert reply.status_code == 400
        assert reply.json()["type"] == "error"
        assert names in reply.json()["error"]["message"], reply.text

    _near(test, tiny_tokenizer)


# ── inside ────────────────────────────────────────────────────────────────────────────────


def _prompt(usage):
    """Return the tokens of a prompt."""
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def _near(test, tokenizer):
    async def run():
        async with scripted(tokenizer, "well") as server:
            await asyncio.wait_for(test(server), 10)

    asyncio.run(run())
