"""Tools and reasoning in chats: what the model writes is told as calls, in pieces or whole."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest
from tiny_served import HELLO, events, real, saying

from octavo import LLM
from octavo.server.settings import RequestBounds, ServerSettings
from octavo.testing.near_server import served
from tiny_model import write_tiny_gguf

PATH = "/v1/chat/completions"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    },
    {"type": "function", "function": {"name": "go", "description": "Goes."}},
]
LOOK = '<tool_call>\n{"name": "look", "arguments": {"a": "h\\u00e9"}}\n</tool_call>'
GO = '<tool_call>\n{"name": "go", "arguments": {}}\n</tool_call>'
THINKS = ServerSettings(reasoning_parser="qwen3")


def together(chunks, index=0):
    """Return the message that the chunks of a stream make, and why it ended."""
    message, finish = {"content": "", "calls": {}}, None
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] != index:
                continue
            finish = choice["finish_reason"] or finish
            delta = choice["delta"]
            message["content"] += delta.get("content", "")
            if "reasoning" in delta:
                message["reasoning"] = message.get("reasoning", "") + delta["reasoning"]
            for piece in delta.get("tool_calls", ()):
                call = message["calls"].setdefault(piece["index"], {"arguments": ""})
                call["arguments"] += piece["function"].pop("arguments")
                call |= piece["function"] | {k: v for k, v in piece.items() if k == "id"}
    return message, finish


def whole(choice):
    """Return the same of an answer in one piece."""
    given = choice["message"]
    message = {"content": given["content"] or "", "calls": {}}
    if "reasoning" in given:
        message["reasoning"] = given["reasoning"]
    for number, call in enumerate(given.get("tool_calls", ())):
        message["calls"][number] = call["function"] | {"id": call["id"]}
    return message, choice["finish_reason"]


def answered(tokenizer, text, *, settings=None, **body):
    """Return what a chat is answered by a model that says a text: it is the same streamed."""
    said = []

    async def test(server):
        body.setdefault("request_id", "same")
        reply = await server.post(PATH, messages=HELLO, **body)
        assert reply.status_code == 200, reply.text
        stream = await server.post(PATH, messages=HELLO, stream=True, **body)
        said.append(whole(reply.json()["choices"][0]))
        assert together(events(stream.text)) == said[0]

    parts = {} if settings is None else {"settings": settings}
    served(test, **saying(tokenizer, text), **parts)
    return said[0]


def test_a_call_is_told_by_name_and_arguments(tiny_tokenizer):
    message, finish = answered(tiny_tokenizer, f"Well.\n{LOOK}", tools=TOOLS)

    assert finish == "tool_calls"
    assert message["content"] == "Well."
    (call,) = message["calls"].values()
    assert (call["name"], call["arguments"]) == ("look", '{"a": "h\\u00e9"}')
    assert call["id"].startswith("call_")


def test_several_calls_are_told_with_ids_of_their_own(tiny_tokenizer):
    message, _ = answered(tiny_tokenizer, f"{LOOK}\n{GO}", tools=TOOLS)

    assert [call["name"] for call in message["calls"].values()] == ["look", "go"]
    assert len({call["id"] for call in message["calls"].values()}) == 2


def test_one_call_is_told_where_no_more_are_wanted(tiny_tokenizer):
    message, _ = answered(tiny_tokenizer, f"{LOOK}\n{GO}", tools=TOOLS, parallel_tool_calls=False)

    assert [call["name"] for call in message["calls"].values()] == ["look"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"tools": TOOLS, "tool_choice": "none"},
        {"tools": [TOOLS[1]], "tool_choice": "auto"},
    ],
    ids=["no tools", "none", "another tool"],
)
def test_what_was_not_asked_for_is_content(tiny_tokenizer, body):
    message, finish = answered(tiny_tokenizer, LOOK, **body)

    assert message == {"content": LOOK, "calls": {}}
    assert finish == "stop"


def test_a_call_that_is_cut_keeps_what_there_is_of_its_arguments(tiny_tokenizer):
    message, finish = answered(tiny_tokenizer, LOOK, tools=TOOLS, stop="u00")

    assert message["calls"][0]["arguments"] == '{"a": "h\\'
    assert finish == "tool_calls"


def test_reasoning_is_told_apart(tiny_tokenizer):
    text = f"<think>\nthe hell\n</think>\n\nhello\n{GO}"

    message, _ = answered(tiny_tokenizer, text, settings=THINKS, tools=TOOLS)

    assert (message["reasoning"], message["content"]) == ("the hell", "hello")
    assert message["calls"][0]["name"] == "go"


def test_choices_are_read_each_for_itself(tiny_tokenizer):
    async def test(server):
        reply = await server.post(PATH, messages=HELLO, tools=TOOLS, n=2)
        first, second = reply.json()["choices"]
        assert first["message"]["content"] is None
        assert first["message"]["tool_calls"][0]["function"]["name"] == "look"
        assert second["message"] == {"role": "assistant", "content": "the", "refusal": None}
        assert [one["finish_reason"] for one in (first, second)] == ["tool_calls", "stop"]

    served(test, **saying(tiny_tokenizer, LOOK, "the"))


def test_calls_and_results_come_back_in_the_words_of_the_model(tiny_tokenizer):
    async def test(server):
        messages = [*HELLO]
        reply = await server.post(PATH, messages=messages, tools=TOOLS)
        answer = reply.json()["choices"][0]["message"]
        call_id = answer["tool_calls"][0]["id"]
        messages += [answer | {"refusal": None}]
        messages += [{"role": "tool", "tool_call_id": call_id, "content": "the"}]
        ids = (await server.post("/tokenize", messages=messages, tools=TOOLS)).json()["tokens"]
        text = tiny_tokenizer.decode(ids, skip_special_tokens=False)
        assert f"<|im_start|>assistant\n{LOOK}<|im_end|>\n" in text
        assert "<tool_response>\nthe\n</tool_response>" in text
        reply = await server.post(PATH, messages=messages, tools=TOOLS)
        usage = reply.json()["usage"]
        first = len(tiny_tokenizer.encode(text[: text.index("<tool_response>")]))
        assert usage["prompt_tokens_details"]["cached_tokens"] >= first - 16

    served(test, **saying(tiny_tokenizer, LOOK))


def test_the_order_in_which_keywords_of_a_tool_come_makes_no_other_prompt(tiny_tokenizer):
    async def test(server):
        counts = []
        for tools in (TOOLS, [dict(reversed(one.items())) for one in TOOLS]):
            parts = [one | {"function": dict(reversed(one["function"].items()))} for one in tools]
            reply = await server.post(PATH, messages=HELLO, tools=parts, max_tokens=1)
            counts.append(reply.json()["usage"])
        assert counts[1]["prompt_tokens_details"]["cached_tokens"] >= (
            counts[0]["prompt_tokens"] - 16
        )

    served(test, **saying(tiny_tokenizer, "the"))


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, None, "a name has 1 to"),
        ({"tools": [TOOLS[0]] * 2}, "tools", "'look' is there twice"),
        ({"tools": TOOLS * 3}, "tools", "at most 5 of them, got 6"),
        ({"tool_choice": "required"}, "tool_choice", "there are no tools"),
        (
            {
                "tools": TOOLS,
                "tool_choice": {"type": "function", "function": {"name": "other"}},
            },
            "tool_choice",
            "'other' is none of the tools",
        ),
        ({"documents": [{"text": "the"}]}, "documents", "the model's template reads none"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {
                "name": "look", "arguments": "{"}}]}]},
            "messages",
            "arguments of 'look'",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "has content, or calls"),
    ],
)  # fmt: skip
def test_what_no_model_could_call_is_refused_by_its_field(tiny_tokenizer, body, param, message):
    async def test(server):
        reply = await server.post(PATH, **{"messages": HELLO, **body})
        assert reply.status_code == 400
        error = reply.json()["error"]
        assert message in error["message"]
        assert param is None or error["param"] == param

    settings = ServerSettings(bounds=RequestBounds(max_tools=5))
    served(test, **saying(tiny_tokenizer, "the"), settings=settings)


def test_a_model_that_is_not_known_to_call_gets_no_tools(tiny_tokenizer):
    async def test(server):
        reply = await server.post(PATH, messages=HELLO, tools=TOOLS)
        assert reply.status_code == 400
        assert "--tool-call-parser" in reply.json()["error"]["message"]

    settings = ServerSettings(tool_call_parser="none")
    served(test, **saying(tiny_tokenizer, "the"), settings=settings)


def test_parameters_nested_without_end_are_refused(tiny_tokenizer):
    async def test(server):
        depth = 300
        schema = json.loads('{"items":' * depth + "{}" + "}" * depth)
        tool = {"type": "function", "function": {"name": "look", "parameters": schema}}
        reply = await server.post(PATH, messages=HELLO, tools=[tool])
        assert reply.status_code == 400
        assert "nested more than 64 deep" in reply.json()["error"]["message"]

    served(test, **saying(tiny_tokenizer, "the"))


def test_a_template_reads_documents_and_tools_of_its_own(tiny_tokenizer):
    template = (
        "{{ documents | tojson }}{% for t in tools %}{{ t.function.name }};{% endfor %}"
        "{{ messages[0].content }}<tool_call>"
    )

    async def test(server):
        body = {"messages": HELLO, "tools": TOOLS, "documents": [{"text": "the"}]}
        ids = (await server.post("/tokenize", **body)).json()["tokens"]
        assert tiny_tokenizer.decode(ids) == '[{"text": "the"}]look;go;hello<tool_call>'

    served(test, **saying(tiny_tokenizer.with_template(template), "the"))


def test_a_template_that_rejects_a_chat_is_an_error_of_its_messages(tiny_tokenizer):
    template = "{{ raise_exception('roles must alternate') }}"

    async def test(server):
        reply = await server.post(PATH, messages=HELLO)
        assert reply.status_code == 400
        assert reply.json()["error"]["param"] == "messages"
        assert "roles must alternate" in reply.json()["error"]["message"]

    served(test, **saying(tiny_tokenizer.with_template(template), "the"))


@pytest.fixture(scope="module")
def long_model(tmp_path_factory):
    """A tiny model that takes a prompt with tools."""
    path = tmp_path_factory.mktemp("gguf") / "long.gguf"
    return write_tiny_gguf(path, metadata={"llama.context_length": 4096})


def forced(long_model, **body):
    """Return the calls of a real engine whose answers are held, whole and streamed."""
    calls = []

    async def test(server):
        asked = {"messages": HELLO, "tools": BOUNDED, "max_tokens": 300, "request_id": "same"}
        for seed in range(3):
            body["seed"] = seed
            reply = await server.post(PATH, **asked, **body)
            assert reply.status_code == 200, reply.text
            (choice,) = reply.json()["choices"]
            stream = await server.post(PATH, **asked, **body, stream=True)
            assert together(events(stream.text)) == whole(choice)
            message, finish = whole(choice)
            assert (message["content"], finish) == ("", "tool_calls"), message
            calls.append([(one["name"], one["arguments"]) for one in message["calls"].values()])

    served(test, **real(LLM(str(long_model), kv_cache_memory_bytes=1 << 23)))
    return calls


BOUNDED = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "string", "maxLength": 4},
                    "b": {"type": "array", "items": {"enum": [1, 2]}, "maxItems": 2},
                },
                "required": ["a"],
                "additionalProperties": False,
            },
        },
    }
    for name in ("look", "go")
]


def fits(arguments):
    value = json.loads(arguments)
    schema = BOUNDED[0]["function"]["parameters"]
    return jsonschema_rs.is_valid(schema, value)


def test_calls_that_must_be_made_fit_their_schema(long_model):
    for calls in forced(long_model, tool_choice="required", parallel_tool_calls=False):
        ((name, arguments),) = calls
        assert name in ("look", "go")
        assert fits(arguments)
        # As a template writes it, so that the history is the text in memory.
        assert arguments == json.dumps(json.loads(arguments), ensure_ascii=False)


def test_a_named_tool_is_the_one_that_is_called(long_model):
    choice = {"type": "function", "function": {"name": "go"}}

    for calls in forced(long_model, tool_choice=choice):
        ((name, arguments),) = calls
        assert name == "go"
        assert fits(arguments)


def test_a_schema_that_cannot_be_held_is_refused(long_model):
    async def test(server):
        function = {"name": "look", "parameters": {"properties": {"a": {"type": "dict"}}}}
        tools = [{"type": "function", "function": function}]
        reply = await server.post(PATH, messages=HELLO, tools=tools, tool_choice="required")
        assert reply.status_code == 400
        assert "dict" in reply.json()["error"]["message"]

    served(test, **real(LLM(str(long_model), kv_cache_memory_bytes=1 << 23)))
