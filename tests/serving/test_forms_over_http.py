"""Answers of a server have the form that a body asks for, under each of the names for it."""

from __future__ import annotations

import json
import re

import openai
import pytest
from commands import octavo_serve
from tiny_served import HELLO

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 99}, "b": {"enum": ["x"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
TAG = {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f>"]}


@pytest.fixture(scope="module")
def client(tiny_gguf):
    with octavo_serve(tiny_gguf, "--port", 0, "--served-model-name", "tiny") as (_, at):
        made = openai.OpenAI(base_url=f"{at}/v1", api_key="none", max_retries=0, timeout=30)
        with made:
            yield made


def is_ours(text):
    value = json.loads(text)
    return value["b"] == "x" and 0 <= value["a"] <= 99


def is_object(text):
    return isinstance(json.loads(text), dict)


JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
TIGHT = {"json": {"type": "object", "additionalProperties": {"enum": [1]}, "maxProperties": 1}}
FORMS = [
    ({"response_format": JSON_SCHEMA}, is_ours),
    ({"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}, is_ours),
    ({"structured_outputs": TIGHT | {"disable_fallback": True}}, is_object),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, re.compile("[0-9]{3}").fullmatch),
    ({"structured_outputs": {"choice": ["yes", "no"]}}, ["yes", "no"].__contains__),
    ({"structured_outputs": {"grammar": 'start: "a"+ "b"'}}, re.compile("a+b").fullmatch),
    ({"guided_json": SCHEMA, "guided_whitespace_pattern": " ?"}, is_ours),
    ({"guided_json": json.dumps(SCHEMA), "guided_decoding_backend": "guidance"}, is_ours),
    ({"guided_regex": "ab|cd"}, ["ab", "cd"].__contains__),
    ({"guided_choice": ["the"]}, "the".__eq__),
    ({"guided_grammar": 'start: "x"'}, "x".__eq__),
]


@pytest.mark.parametrize(("extra", "fits"), FORMS, ids=lambda v: str(v)[:50])
def test_a_chat_has_the_form_that_the_body_names(client, extra, fits):
    reply = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=200, temperature=0.7, seed=3, extra_body=extra
    )

    (choice,) = reply.choices
    assert choice.finish_reason in ("stop", "length")
    assert choice.finish_reason == "length" or fits(choice.message.content)
    assert choice.finish_reason == "stop" or "+" in str(extra) or "object" in str(extra)


def test_a_completion_and_a_stream_of_it_are_the_same_and_fit(client):
    ask = {"model": "tiny", "prompt": "hello", "max_tokens": 200, "temperature": 0.7, "seed": 3}
    extra = {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}}

    whole = client.completions.create(**ask, extra_body=extra).choices[0].text
    stream = client.completions.create(**ask, stream=True, extra_body=extra)

    assert is_ours(whole)
    assert "".join(chunk.choices[0].text for chunk in stream if chunk.choices) == whole


def test_every_answer_of_several_fits(client):
    reply = client.chat.completions.create(
        model="tiny", messages=HELLO, n=4, seed=1, temperature=1.5, response_format=JSON_SCHEMA,
        max_tokens=300, extra_body={"top_k": 300},
    )  # fmt: skip

    ended = [one for one in reply.choices if one.finish_reason == "stop"]
    assert all(is_ours(one.message.content) for one in ended)


def test_a_response_has_the_form_of_its_text(client):
    text = {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}}

    reply = client.responses.create(
        model="tiny", input="hello", text=text, max_output_tokens=200, extra_body={"seed": 3}
    )

    assert is_ours(reply.output_text)


REFUSED = [
    ({"response_format": {"type": "xml"}}, "response_format"),
    ({"response_format": {"type": "json_schema", "json_schema": {"schema": 3}}}, "schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "sort"}}}},
        '/type: `type`: it must be one of null, boolean, number, integer, string, array, object, '
        'got "sort"',
    ),
    (
        {"guided_json": {"properties": {"a": {"not": {"pattern": "x"}}}}},
        '/properties/a/not/pattern: `pattern`: strings that do not match cannot be asked for, got '
        '"x"',
    ),
    ({"guided_json": "{"}, "guided_*: json is no JSON"),
    ({"guided_regex": "(ab"}, "regex: "),
    ({"guided_regex": "a", "guided_choice": ["b"]}, "regex and choice"),
    ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "all say what form"),
    ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "'outlines'"),
    ({"structured_outputs": {"jsn": {}}}, "'jsn'"),
    ({"structured_outputs": {"grammar": "start: foo"}}, "foo"),
    ({"structured_outputs": {"structural_tag": {"triggers": []}}}, "structural_tag"),
    ({"structured_outputs": {"json": {}, "disable_additional_properties": True}}, "additionalProp"),
    ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "ignore_eos"),
]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("extra", "told"), REFUSED, ids=lambda v: str(v)[:50])
def test_a_form_that_is_not_possible_is_a_400_that_quotes_it(client, extra, told, stream):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(
            model="tiny", messages=HELLO, max_tokens=20, stream=stream, extra_body=extra
        )

    assert told in refused.value.body["message"]


def test_calls_in_free_text_hold_what_their_tag_says(client):
    reply = client.chat.completions.create(
        model="tiny", messages=HELLO, max_tokens=40, seed=5,
        extra_body={"response_format": {"type": "structural_tag", **TAG}},
    )  # fmt: skip

    assert (
        "<f>" not in reply.choices[0].message.content or "</f>" in reply.choices[0].message.content
    )
