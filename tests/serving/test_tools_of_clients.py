"""The official client as an agent: calls, results and reasoning go round and come back."""

from __future__ import annotations

import json

import openai
import pytest
from sockets import listening
from tiny_served import HELLO, real, saying

from octavo import LLM
from octavo.server.settings import ServerSettings
from octavo.testing.near_server import served
from tiny_model import write_tiny_gguf

LOOK = '<tool_call>\n{"name": "look", "arguments": {"a": "the"}}\n</tool_call>'
SAYS = (f"<think>\nre\n</think>\n\non\n{LOOK}\n{LOOK}", "<think>\nan\n</think>\n\nhello")
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "string", "maxLength": 3}},
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
]


def with_client(test, *, reasoning="qwen3", **options):
    """Run a test with the official client of a server on a socket."""

    async def run(server):
        async with (
            listening(server.app) as port,
            openai.AsyncOpenAI(
                base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=9
            ) as client,
        ):
            await test(client)

    served(run, settings=ServerSettings(reasoning_parser=reasoning), **options)


def test_an_agent_calls_hears_and_answers(tiny_tokenizer):
    async def test(client):
        messages = [*HELLO]
        reply = await client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
        (choice,) = reply.choices
        answer = choice.message
        assert choice.finish_reason == "tool_calls"
        assert (answer.content, answer.reasoning) == ("on", "re")
        assert [json.loads(call.function.arguments) for call in answer.tool_calls] == [
            {"a": "the"}
        ] * 2
        messages.append(answer.model_dump(exclude_none=True))
        messages += [
            {"role": "tool", "tool_call_id": call.id, "content": "in"} for call in answer.tool_calls
        ]
        reply = await client.chat.completions.create(model="fake", messages=messages, tools=TOOLS)
        assert reply.choices[0].message.content == "hello"
        assert reply.choices[0].message.reasoning == "an"
        assert reply.usage.prompt_tokens_details.cached_tokens > 0

    with_client(test, **saying(tiny_tokenizer, *SAYS))


def test_the_clients_own_stream_puts_calls_together(tiny_tokenizer):
    async def test(client):
        async with client.chat.completions.stream(
            model="fake", messages=HELLO, tools=TOOLS
        ) as stream:
            kinds = {event.type async for event in stream}
            answer = (await stream.get_final_completion()).choices[0]
        assert {
            "tool_calls.function.arguments.delta",
            "tool_calls.function.arguments.done",
        } <= kinds
        assert answer.finish_reason == "tool_calls"
        assert [call.function.name for call in answer.message.tool_calls] == ["look", "look"]
        assert answer.message.content == "on"

    with_client(test, **saying(tiny_tokenizer, *SAYS))


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_function_that_must_be_called_is(tmp_path, stream):
    path = write_tiny_gguf(tmp_path / "long.gguf", metadata={"llama.context_length": 4096})

    async def test(client):
        asked = {
            "model": "fake",
            "messages": HELLO,
            "tools": TOOLS,
            "tool_choice": {"type": "function", "function": {"name": "look"}},
            "max_tokens": 200,
        }
        if stream:
            async with client.chat.completions.stream(**asked) as events:
                answer = (await events.get_final_completion()).choices[0].message
        else:
            answer = (await client.chat.completions.create(**asked)).choices[0].message
        (call,) = answer.tool_calls
        assert call.function.name == "look"
        assert json.loads(call.function.arguments)["a"] is not None

    engine = real(LLM(str(path), kv_cache_memory_bytes=1 << 23))
    with_client(test, reasoning="auto", **engine)
