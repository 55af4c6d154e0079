"""Forced calls and forms over both official clients: what comes always fits, streamed or whole."""

from __future__ import annotations

import contextlib
import json

import anthropic
import jsonschema_rs
import openai
import pytest
from chaos_callers import TEMPLATE
from pydantic import BaseModel
from sockets import in_a_thread
from tiny_served import HELLO, VOCABULARY, worded

from octavo.testing.near_server import near_server
from octavo.testing.served import grammars_of

SCHEMA = {
    "type": "object",
    "properties": {"at": {"enum": ["inn", "hell"]}, "times": {"type": "integer", "maximum": 99}},
    "required": ["at", "times"],
    "additionalProperties": False,
}
FITS = jsonschema_rs.validator_for(SCHEMA)
FUNCTION = {"name": "look", "description": "", "parameters": SCHEMA}


class Place(BaseModel):
    """What an answer is read into."""

    at: str
    times: int

    model_config = {"json_schema_extra": {"properties": SCHEMA["properties"]}}


@pytest.fixture(scope="module")
def url(tiny_tokenizer, tiny_gguf):
    """Where an engine that says anything is held to forms."""
    options = worded(
        tiny_tokenizer.with_template(TEMPLATE),
        num_blocks=1000,
        max_model_len=2000,
        grammars=grammars_of(str(tiny_gguf), VOCABULARY),
    )
    with in_a_thread(near_server(**options)) as address:
        yield address


@contextlib.contextmanager
def openai_at(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=20) as made:
        yield made


@contextlib.contextmanager
def anthropic_at(url):
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=20) as made:
        yield made


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_a_response_fit_their_schema_streamed_or_whole(url, seed):
    tools = [{"type": "function", **FUNCTION}]
    asked = {
        "model": "fake",
        "input": "hello",
        "tools": tools,
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "extra_body": {"seed": seed, "request_id": str(seed)},
    }
    with openai_at(url) as client:
        whole = client.responses.create(**asked)
        with client.responses.stream(**asked) as stream:
            streamed = stream.get_final_response()
    (call,) = whole.output
    assert FITS.is_valid(json.loads(call.arguments))
    assert streamed.output[0].arguments == call.arguments


@pytest.mark.parametrize("seed", range(3))
def test_calls_of_a_message_fit_their_schema_streamed_or_whole(url, seed):
    asked = {
        "model": "fake",
        "max_tokens": 500,
        "messages": HELLO,
        "tools": [{"name": "look", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "look", "disable_parallel_tool_use": True},
        "extra_body": {"seed": seed, "request_id": str(seed)},
    }
    with anthropic_at(url) as client:
        whole = client.messages.create(**asked)
        with client.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
    (call,) = whole.content
    assert whole.stop_reason == "tool_use"
    assert FITS.is_valid(call.input)
    assert streamed.content == whole.content


def test_an_answer_is_read_into_what_the_client_gave(url):
    with openai_at(url) as client:
        response = client.responses.parse(model="fake", input="hello", text_format=Place)
        assert FITS.is_valid(response.output_parsed.model_dump())
        assert response.text.format.type == "json_schema"
    with anthropic_at(url) as client:
        message = client.messages.parse(
            model="fake", max_tokens=500, messages=HELLO, output_format=Place
        )
        assert FITS.is_valid(message.parsed_output.model_dump())


def test_a_form_that_cannot_be_is_refused_before_anything_is_sent(url):
    wrong = {"type": "object", "properties": {"a": {"$ref": "http://elsewhere"}}}
    with openai_at(url) as client, pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(
            model="fake",
            input="hello",
            stream=True,
            text={"format": {"type": "json_schema", "name": "s", "schema": wrong}},
        )
    assert "elsewhere" in str(caught.value)
    with anthropic_at(url) as client, pytest.raises(anthropic.BadRequestError) as caught:
        client.messages.create(
            model="fake",
            max_tokens=5,
            messages=HELLO,
            extra_body={"output_config": {"format": {"type": "json_schema", "schema": wrong}}},
        )
    assert "elsewhere" in str(caught.value)
