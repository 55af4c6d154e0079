"""Schemas that are not served: what is told names the keyword, its place and what stands there."""

from __future__ import annotations

import json
import time

import pytest

from octavo.errors import RequestError
from octavo.text.grammars.schema import exact_schema

CASES = [
    ({"type": "string", "not": {"pattern": "x"}}, "/not/pattern", "pattern", '"x"'),
    ({"properties": {"a": {"multipleOf": -1}}}, "/properties/a/multipleOf", "multipleOf", "-1"),
    ({"contains": {"const": 1}}, "/contains", "contains", '{"const": 1}'),
    ({"type": "array", "uniqueItems": True}, "/uniqueItems", "uniqueItems", "true"),
    ({"items": {"format": "regex"}}, "/items/format", "format", '"regex"'),
    ({"$ref": "https://example.com/s.json"}, "/$ref", "$ref", "example.com/s.json"),
    ({"$ref": "#/$defs/a"}, "/$ref", "$ref", "#/$defs/a"),
    ({"pattern": "(?=a)b"}, "/pattern", "pattern", "(?=a)b"),
    ({"pattern": "(a)\\1"}, "/pattern", "pattern", "(a)"),
    ({"type": "strnig"}, "/type", "type", "strnig"),
    ({"minLength": 1.5}, "/minLength", "minLength", "1.5"),
    ({"anyOf": []}, "/anyOf", "anyOf", "[]"),
    ({"properties": {"a/b": 3}}, "/properties/a~1b", "schema", "3"),
    ({"patternProperties": {"a": {}, "b": False}}, "/patternProperties", "a and b", '"a"'),
    ({"const": 2**64}, "the whole schema", "number", "digits"),
    ({"$schema": "http://example.com/mine"}, "/$schema", "$schema", "example.com/mine"),
]


@pytest.mark.parametrize(("schema", "where", "keyword", "part"), CASES)
def test_a_refusal_names_the_place_the_keyword_and_quotes_it(schema, where, keyword, part):
    with pytest.raises(RequestError) as refused:
        exact_schema(json.dumps(schema))

    said = str(refused.value)
    assert said.startswith(f"structured_outputs: json: {where}")
    assert keyword in said
    assert part in said


def test_what_cannot_be_said_is_no_matter_where_nothing_of_it_is_left():
    # No pattern can be excluded; but of a number none has to be.
    schema = {"type": "integer", "not": {"type": "string", "pattern": "x"}}

    assert json.loads(exact_schema(json.dumps(schema))) == {"type": "integer"}


def test_a_schema_for_which_no_value_is_valid_is_refused():
    with pytest.raises(RequestError, match="no value fits"):
        exact_schema('{"type": "string", "enum": [1]}')


def test_a_reference_that_comes_back_to_itself_is_refused():
    with pytest.raises(RequestError, match="comes back to itself"):
        exact_schema('{"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"}')


def nested(depth):
    schema = {"type": "string"}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    return schema


def choices(count):
    branch = {"properties": {f"k{i}": {"minimum": i} for i in range(8)}}
    return {"oneOf": [{**branch, "required": [f"k{i % 8}"]} for i in range(count)]}


@pytest.mark.parametrize(
    "schema",
    [
        nested(70),
        {"allOf": [{"type": "string"}] * 10_001},
        choices(60),
        {"allOf": [choices(6)] * 3},
        {"anyOf": [{"not": choices(12)}, {"not": {"not": choices(12)}}]},
        {"minProperties": 9, "properties": {f"k{i}": {} for i in range(40)}},
        {"type": "array", "items": {"enum": list(range(40))}, "uniqueItems": True},
        {"multipleOf": 123456789},
    ],
)
def test_hostile_schemas_end_soon(schema):
    begin = time.process_time()

    with pytest.raises(RequestError):
        exact_schema(json.dumps(schema))

    assert time.process_time() - begin < 3


def test_a_description_costs_nothing_and_unknown_words_are_no_keywords():
    schema = {"title": "T", "description": "d", "type": "null", "x-mine": {"not": 3}}

    assert json.loads(exact_schema(json.dumps(schema))) == {"enum": [None]}
