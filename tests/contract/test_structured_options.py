"""The form of an answer: what is taken, how it is kept, and what is refused with the way out."""

from __future__ import annotations

import json

import msgspec
import pytest

from octavo import StructuredOutputs
from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import MAX_CHOICES, MAX_FORM_CHARS
from octavo.errors import RequestError

SCHEMA = {"type": "object", "properties": {"b": {"type": "string"}, "a": {"type": "integer"}}}


@pytest.mark.parametrize(
    ("options", "form", "text"),
    [
        ({"json": SCHEMA}, "json", json.dumps(SCHEMA, separators=(",", ":"))),
        ({"json": '{"type": "null"}'}, "json", '{"type": "null"}'),
        ({"json": True}, "json", "true"),
        ({"json": False}, "json", "false"),
        ({"json_object": True}, "json_object", ""),
        ({"regex": "[0-9]+"}, "regex", "[0-9]+"),
        ({"choice": ["yes", "no"]}, "choice", '["yes", "no"]'),
        ({"grammar": 'start: "a"'}, "grammar", 'start: "a"'),
        ({"structural_tag": {"triggers": []}}, "structural_tag", '{"triggers":[]}'),
    ],
)
def test_each_form_is_kept_as_the_text_a_grammar_is_made_of(options, form, text):
    wanted = StructuredOutputs(**options)

    assert (wanted.form, wanted.text) == (form, text)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "nothing is given: give one of json, json_object"),
        ({"regex": "a", "choice": ["a"]}, "regex and choice is given: give one of"),
        ({"json": "{"}, "json is no JSON: Expecting"),
        ({"json": '{"minimum": NaN}'}, "NaN is no number of JSON"),
        ({"json": {"minimum": float("inf")}}, "json is no JSON"),
        ({"json": "[1]"}, r"json must be an object, or true or false, got \[1\]"),
        ({"json": {"const": object()}}, "json is no JSON"),
        ({"structural_tag": "true"}, "structural_tag must be an object, got True"),
        ({"regex": ""}, "regex must be a text that is not empty, got ''"),
        ({"regex": 3}, "regex must be a text that is not empty, got 3"),
        ({"choice": "yes"}, "choice must be a list of texts, got 'yes'"),
        ({"choice": []}, "at least one text, none of them empty"),
        ({"choice": ["a", ""]}, "at least one text, none of them empty"),
        ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice has 4097 texts, but at most 4096"),
        ({"regex": "a" * (MAX_FORM_CHARS + 1)}, "regex has 262145 characters, but at most 262144"),
        ({"json_object": 1}, "json_object must be true or false, got 1"),
        ({"regex": "a", "backend": "none"}, "'none' is not one of auto, llguidance, xgrammar"),
        ({"regex": "a", "whitespace_pattern": " "}, "is about JSON, but regex is given"),
        (
            {"json_object": True, "disable_any_whitespace": True, "whitespace_pattern": " "},
            "leaves whitespace_pattern nothing to match",
        ),
        ({"regex": "\ud800"}, "regex has half a surrogate pair"),
        ({"json": {"const": "\ud800"}}, "json has half a surrogate pair"),
        ({"json_object": True, "after": "\udfff"}, "after has half a surrogate pair"),
        ({"regex": "a", "after": None}, "after must be a text, got None"),
    ],
)
def test_what_is_no_form_is_refused_with_the_way_out(options, message):
    with pytest.raises(RequestError, match=message):
        StructuredOutputs(**options)


def test_an_unknown_name_is_a_type_error():
    with pytest.raises(TypeError, match="lark"):
        StructuredOutputs(lark="start: A")


def test_a_schema_nested_without_end_is_refused_not_a_crash():
    with pytest.raises(RequestError, match="json"):
        StructuredOutputs(json='{"not":' * 100_000 + "{}" + "}" * 100_000)


def test_the_order_of_properties_is_kept_and_makes_another_form():
    there = StructuredOutputs(json={"properties": {"a": {}, "b": {}}})
    back = StructuredOutputs(json={"properties": {"b": {}, "a": {}}})

    assert there.text != back.text
    assert there.key != back.key
    assert there.key == StructuredOutputs(json={"properties": {"a": {}, "b": {}}}).key


def test_what_acts_on_the_grammar_acts_on_the_key():
    keys = {
        StructuredOutputs(json_object=True).key,
        StructuredOutputs(json_object=True, after="</think>").key,
        StructuredOutputs(json_object=True, disable_any_whitespace=True).key,
        StructuredOutputs(json_object=True, backend="xgrammar").key,
    }

    assert len(keys) == 4


def test_a_form_crosses_between_processes_whole():
    params = SamplingParams(structured_outputs=StructuredOutputs(json=SCHEMA, after="</think>"))

    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params


def test_an_answer_of_a_form_looks_back_at_its_text():
    assert SamplingParams(structured_outputs=StructuredOutputs(regex="a")).looks_back


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structured_outputs": {"regex": "a"}}, "must be StructuredOutputs, got"),
        (
            {"structured_outputs": StructuredOutputs(regex="a"), "ignore_eos": True},
            "ignore_eos cannot be combined with structured_outputs",
        ),
    ],
)
def test_what_does_not_go_with_a_form_is_refused(options, message):
    with pytest.raises(RequestError, match=message):
        SamplingParams(**options)
