"""Whatever a body holds, its sender is told what is wrong with it, and the server goes on."""

from __future__ import annotations

import json

import pytest
from tiny_served import HELLO, worded

from octavo.testing.near_server import served

PATHS = ["/v1/completions", "/v1/chat/completions", "/tokenize", "/detokenize"]
JSON = {"content-type": "application/json"}

BODIES = {
    "empty": b"",
    "no json": b"{",
    "two values": b"{} {}",
    "a list": b"[]",
    "a number": b"1",
    "null": b"null",
    "a text": b'"x"',
    "nan": b'{"prompt": "a", "temperature": NaN}',
    "infinity": b'{"prompt": "a", "temperature": Infinity}',
    "beyond all floats": b'{"prompt": "a", "temperature": 1e999}',
    "minus beyond all floats": b'{"prompt": "a", "temperature": -1e999}',
    "half a character": b'{"prompt": "\\ud800"}',
    "not utf-8": b'{"prompt": "\xff\xfe"}',
    "a control character": b'{"prompt": "a\x00b"}',
    "deep lists": b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
    "very deep lists": b"[" * 1_000_000,
    "deep objects": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "a long number": b'{"prompt": "a", "messages": [], "seed": ' + b"9" * 5000 + b"}",
    "a huge exponent": b'{"prompt": "a", "max_tokens": 1e308}',
    "no field of ours": b'{"prompt": "a", "\\u0000": 1}',
    "a long name": b'{"prompt": "a", "' + b"n" * 100_000 + b'": 1}',
    "an empty name": b'{"prompt": "a", "": 1}',
}


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_body_that_is_not_what_a_route_reads_is_the_sender_s_mistake(nasty_server, path, body):
    async def test(server):
        reply = await server.client.post(path, content=body, headers=JSON)
        assert 400 <= reply.status_code < 500, reply.text
        error = reply.json()["error"]
        assert len(error["message"]) < 1000
        assert error["type"]

    nasty_server(test)


WRONG = [
    {"prompt": None},
    {"prompt": {}},
    {"prompt": []},
    {"prompt": [[]]},
    {"prompt": [1, "a"]},
    {"prompt": ["a", [1]]},
    {"prompt": [True]},
    {"prompt": [1.5]},
    {"prompt": [-1]},
    {"prompt": [10**9]},
    {"prompt": [2**70]},
    {"prompt": ""},
    {"prompt": "a", "n": True},
    {"prompt": "a", "n": 0},
    {"prompt": "a", "n": 1.5},
    {"prompt": "a", "n": "2"},
    {"prompt": "a", "max_tokens": 0},
    {"prompt": "a", "max_tokens": -1},
    {"prompt": "a", "max_tokens": 10**30},
    {"prompt": "a", "temperature": "hot"},
    {"prompt": "a", "temperature": -0.1},
    {"prompt": "a", "temperature": 10**400},
    {"prompt": "a", "top_p": 0},
    {"prompt": "a", "top_p": 1.1},
    {"prompt": "a", "min_p": 2},
    {"prompt": "a", "top_k": -2},
    {"prompt": "a", "presence_penalty": 3},
    {"prompt": "a", "repetition_penalty": 0},
    {"prompt": "a", "logit_bias": []},
    {"prompt": "a", "logit_bias": {"x": 1}},
    {"prompt": "a", "logit_bias": {"-1": 1}},
    {"prompt": "a", "logit_bias": {"9999999": 1}},
    {"prompt": "a", "logit_bias": {"٣": 1}},
    {"prompt": "a", "logit_bias": {"1": "x"}},
    {"prompt": "a", "logit_bias": {"9" * 5000: 1}},
    {"prompt": "a", "stop": ""},
    {"prompt": "a", "stop": [""]},
    {"prompt": "a", "stop": [1]},
    {"prompt": "a", "stop_token_ids": [-1]},
    {"prompt": "a", "allowed_token_ids": []},
    {"prompt": "a", "bad_words": [" "]},
    {"prompt": "a", "best_of": 2},
    {"prompt": "a", "stream": "yes"},
    {"prompt": "a", "stream_options": {"include_usage": True}},
    {"prompt": "a", "stream": True, "stream_options": {"bogus": True}},
    {"prompt": "a", "stream": True, "stream_interval": 0},
    {"prompt": "a", "truncate_prompt_tokens": 0},
    {"prompt": "a", "truncate_prompt_tokens": -2},
    {"prompt": "a", "priority": 2**64},
    {"prompt": "a", "seed": 2**64},
    {"prompt": "a", "cache_salt": ""},
    {"prompt": "a", "min_tokens": 99, "max_tokens": 3},
    {"prompt": "a", "n": 2, "temperature": 0},
    {"prompt": "a", "use_beam_search": True, "temperature": 0.5},
    {"prompt": "a", "beam_width": 3},
    {"prompt": "a", "use_beam_search": True, "early_stopping": "maybe"},
    {"prompt": "a", "response_format": {"type": "json_object"}},
    {"prompt": "a", "suffix": "b"},
    {"prompt": "a", "guided_regex": "a+"},
    {"prompt": "a", "model": "gpt-4"},
    {"prompt": "a", "model": 7},
    {"prompt": "a", "detokenize": False, "stop": ["b"]},
]


@pytest.mark.parametrize("body", WRONG, ids=lambda body: json.dumps(body)[:60])
def test_an_option_that_is_not_possible_is_refused(nasty_server, body):
    async def test(server):
        reply = await server.post("/v1/completions", **body)
        assert reply.status_code in (400, 404), reply.text
        assert reply.json()["error"]["message"]
        assert server.core.loop.queue_lengths == (0, 0)

    nasty_server(test)


@pytest.mark.parametrize(
    "extra",
    [
        {"tools": [{"type": "function", "function": {"name": "f g"}}]},
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}] * 2},
        {"tool_choice": "required"},
        {"tool_choice": "perhaps"},
        {"functions": [{"name": "f"}]},
        {"documents": [{"text": "the"}]},
        {"chat_template": "{{ 1 }}"},
        {"modalities": ["text", "audio"]},
        {"logprobs": 3},
        {"top_logprobs": -1, "logprobs": True},
        {"messages": []},
        {"messages": [HELLO]},
        {"chat_template_kwargs": []},
        {"store": True},
    ],
    ids=lambda extra: "-".join(extra),
)
def test_an_option_of_chats_that_is_not_possible_is_refused(nasty_server, extra):
    async def test(server):
        reply = await server.post("/v1/chat/completions", **{"messages": HELLO, **extra})
        assert reply.status_code == 400, reply.text

    nasty_server(test)


@pytest.mark.parametrize(
    "extra",
    [
        *({"chat_template_kwargs": {name: 1}} for name in ("self", "name", "eos_token")),
        {"user": "me", "metadata": {"a": "b"}, "service_tier": "auto"},
        {"tools": None, "tool_choice": "none", "functions": []},
        {"response_format": {"type": "text"}, "store": False, "modalities": ["text"]},
        {"temperature": None, "stop": None, "logit_bias": None, "n": None, "stream": None},
        {"temperature": 1, "top_p": 1, "presence_penalty": 0},
    ],
)
def test_what_clients_send_without_meaning_it_is_taken(nasty_server, extra):
    async def test(server):
        reply = await server.post("/v1/chat/completions", messages=HELLO, max_tokens=1, **extra)
        assert reply.status_code == 200, reply.text

    nasty_server(test)


def test_a_misspelt_field_is_told_its_nearest_name(nasty_server):
    async def test(server):
        reply = await server.post("/v1/completions", prompt="a", max_token=3)
        assert "did you mean max_tokens?" in reply.json()["error"]["message"]

    nasty_server(test)


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", ""])
def test_a_body_of_another_kind_is_refused(nasty_server, kind):
    async def test(server):
        reply = await server.client.post(
            "/v1/completions", content=b'{"prompt": "a"}', headers={"content-type": kind}
        )
        assert reply.status_code == 400, reply.text
        assert "Content-Type: application/json" in reply.json()["error"]["message"]

    nasty_server(test)


@pytest.fixture
def nasty_server(tiny_tokenizer):
    """Runs a test with a server, and sees that it still answers after that."""

    def run(test):
        async def then_ask(server):
            await test(server)
            assert (await server.post("/v1/completions", prompt="a")).status_code == 200

        served(then_ask, **worded(tiny_tokenizer))

    return run
