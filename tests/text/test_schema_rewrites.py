"""JSON Schemas in front of the grammars: the same values are valid, whatever keywords say so."""

from __future__ import annotations

import json
from functools import cache
from itertools import permutations

import jsonschema_rs
import llguidance
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import RequestError
from octavo.text.grammars.byte_vocabulary import END, byte_vocabulary
from octavo.text.grammars.schema import exact_schema


@cache
def vocabulary():
    return llguidance.LLTokenizer(byte_vocabulary(), n_vocab=END + 1, eos_token=END, slices=[])


def matcher(schema):
    grammar = llguidance.LLMatcher.grammar_from_json_schema(exact_schema(json.dumps(schema)))
    made = llguidance.LLMatcher(vocabulary(), grammar, log_level=0)
    assert not made.is_error(), made.get_error()
    return made


def fits(made, value):
    text = value if isinstance(value, str) else json.dumps(value)
    tokens = [*text.encode(), END]
    return made.deep_copy().validate_tokens(tokens) == len(tokens)


CASES = [
    ({"not": {"type": ["object", "array", "string", "number"]}}, [None, True], [1, [], {}]),
    (
        {"type": "string", "not": {"enum": ["no", "non"]}},
        ['"n"', '""', '"none"'],
        ['"no"', '"non"'],
    ),
    ({"type": "integer", "not": {"const": 5}}, [4, 6, 55], [5]),
    ({"type": "object", "not": {"required": ["a"]}}, [{}, {"b": 1}], [{"a": 1}]),
    (
        {"not": {"properties": {"a": {"type": "string"}}}, "type": "object"},
        [{"a": 1}],
        [{}, {"a": "x"}],
    ),
    ({"oneOf": [{"minimum": 3}, {"maximum": 5}], "type": "integer"}, [1, 9], [3, 4, 5]),
    (
        {"if": {"properties": {"k": {"const": 1}}}, "then": {"required": ["a"]}, "type": "object"},
        [{"k": 2}, {"k": 1, "a": 0}],
        [{"k": 1}, {}],
    ),
    ({"dependentRequired": {"a": ["b"]}, "type": "object"}, [{"a": 1, "b": 1}, {}], [{"a": 1}]),
    (
        {"propertyNames": {"maxLength": 2, "not": {"const": "no"}}, "type": "object"}
        | {"properties": {"ab": {}, "abc": {}}, "additionalProperties": False},
        [{"ab": 1}],
        [{"abc": 1}],
    ),
    (
        {"properties": {"a": {}, "b": {}}, "minProperties": 1, "type": "object"},
        [{"a": 1}, {"b": 1}, {"z": 1}],
        [{}],
    ),
    (
        {"allOf": [{"properties": {"a": {}}}], "unevaluatedProperties": False, "type": "object"},
        [{"a": 1}, {}],
        [{"b": 1}],
    ),
    (
        {"type": "array", "contains": {"const": 1}, "maxItems": 3, "maxContains": 1},
        [[1], [2, 1, 3]],
        [[], [2], [1, 1]],
    ),
    (
        {"type": "array", "items": {"enum": ["a", "b"]}, "uniqueItems": True},
        [[], ["b", "a"]],
        [["a", "a"]],
    ),
    ({"const": {"b": 1.0, "a": [2]}}, ['{"b":1,"a":[2]}'], ['{"b":1}', '{"b":1,"a":[3]}']),
    (
        {"$defs": {"n": {"type": ["object", "null"], "properties": {"n": {"$ref": "#/$defs/n"}}}}}
        | {"$ref": "#/$defs/n"},
        [None, {"n": {"n": None}}],
        [1, {"n": {"n": 1}}],
    ),
    ({"type": "string", "format": "date"}, ['"2024-02-29"'], ['"2023-02-29"', '"1900-02-29"']),
    (
        {"type": "string", "format": "time"},
        ['"23:59:60Z"', '"01:29:60+01:30"', '"15:59:60-08:00"'],
        ['"22:59:60Z"', '"23:59:60+01:00"', '"15:59:60-08:30"'],
    ),
    ({"type": "string", "pattern": r"^\S\u{41}[\d_]$"}, ['"xA1"'], ['" A1"', '"\ufeffA1"']),
    ({"type": "string", "pattern": r'^[^"\\]+$'}, ['"a\\u0000\\nb"'], ['"\\\\"', '"\\""', '""']),
    ({"type": "string", "pattern": r"a[^\\]*b"}, ['"acb"', '"\\\\ab"'], ['"a\\\\b"']),
    ({"type": "string", "format": "of-my-own"}, ['"anything"'], ["1"]),
    ({"type": "integer", "maximum": 2**60}, [2**60], [2**60 + 1]),
]


@pytest.mark.parametrize(("schema", "valid", "invalid"), CASES, ids=lambda v: str(v)[:40])
def test_what_keywords_say_together_is_what_the_grammar_allows(schema, valid, invalid):
    made = matcher(schema)

    assert [one for one in valid if not fits(made, one)] == []
    assert [one for one in invalid if fits(made, one)] == []


def test_keys_are_written_in_the_order_in_which_the_schema_names_them():
    schema = {"required": ["c"], "allOf": [{"properties": {"b": {}}}], "properties": {"a": {}}}
    made = matcher({"type": "object"} | schema)

    assert fits(made, '{"b":1,"a":2,"c":3,"z":4}')
    assert not fits(made, '{"a":2,"b":1,"c":3}')


def test_drafts_differ_in_what_stands_beside_a_reference():
    schema = {"definitions": {"s": {"type": "string"}}, "$ref": "#/definitions/s", "maxLength": 1}

    old = matcher({"$schema": "http://json-schema.org/draft-07/schema#"} | schema)
    new = matcher({"$schema": "https://json-schema.org/draft/2020-12/schema"} | schema)

    assert fits(old, '"ab"')
    assert not fits(new, '"ab"')


VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 7, "", "a", "b", "ab", "abc"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    ),
    max_leaves=5,
)
SMALL = st.one_of(
    st.booleans(),
    st.fixed_dictionaries({"type": st.sampled_from(["null", "boolean", "integer", "string"])}),
    st.fixed_dictionaries({"type": st.just(["array", "object"])}),
    st.fixed_dictionaries({"const": VALUES}),
    st.fixed_dictionaries({"enum": st.lists(VALUES, min_size=1, max_size=3)}),
    st.fixed_dictionaries({"minimum": st.integers(-1, 7), "maximum": st.integers(0, 7)}),
    st.fixed_dictionaries({"minLength": st.integers(0, 2), "maxLength": st.integers(0, 3)}),
    st.fixed_dictionaries({"minItems": st.integers(0, 2), "maxItems": st.integers(0, 2)}),
    st.fixed_dictionaries({"maxProperties": st.integers(0, 2)}),
    st.fixed_dictionaries({"minProperties": st.integers(0, 2)}),
    st.fixed_dictionaries({"required": st.lists(st.sampled_from("abc"), max_size=2, unique=True)}),
)


def larger(inner):
    some = st.lists(inner, min_size=1, max_size=3)
    named = st.dictionaries(st.sampled_from("abc"), inner, max_size=3)
    return st.one_of(
        st.fixed_dictionaries({"properties": named}),
        st.fixed_dictionaries({"properties": named, "additionalProperties": inner}),
        st.fixed_dictionaries({"properties": named, "unevaluatedProperties": st.just(False)}),
        st.fixed_dictionaries({"properties": named, "anyOf": some})
        | st.fixed_dictionaries({"anyOf": some, "unevaluatedProperties": st.just(False)}),
        st.fixed_dictionaries({"prefixItems": some, "items": inner}),
        st.fixed_dictionaries({"items": inner}),
        st.fixed_dictionaries({"contains": inner, "maxItems": st.just(2)}),
        st.fixed_dictionaries({"allOf": some}),
        st.fixed_dictionaries({"oneOf": some}),
        st.fixed_dictionaries({"not": inner}),
        st.fixed_dictionaries({"if": inner, "then": inner, "else": inner}),
        st.fixed_dictionaries({"dependentSchemas": named}),
    )


@given(schema=st.recursive(SMALL, larger, max_leaves=6), values=st.lists(VALUES, max_size=8))
@settings(max_examples=100, deadline=None)
def test_a_schema_that_is_accepted_allows_what_a_validator_does(schema, values):
    try:
        made = matcher(schema)
    except RequestError:
        return
    validator = jsonschema_rs.Draft202012Validator(schema)

    for value in values:
        # The order of keys is the schema's; here all orders are tried.
        allowed = any(fits(made, text) for text in spellings(value))
        assert allowed == validator.is_valid(value), (schema, value)


def spellings(value):
    if isinstance(value, list):
        rows = [""]
        for item in value:
            rows = [f"{row},{text}" for row in rows for text in spellings(item)]
        return [f"[{row[1:]}]" for row in rows]
    if isinstance(value, dict):
        found = []
        for order in permutations(value):
            rows = [""]
            for key in order:
                rows = [f'{row},"{key}":{text}' for row in rows for text in spellings(value[key])]
            found += [f"{{{row[1:]}}}" for row in rows]
        return found
    return [json.dumps(value)]


def test_numbers_keep_their_digits():
    made = matcher({"enum": [0.1, 1e2, 2.5]})

    assert [one for one in ("0.1", "100", "2.5") if not fits(made, one)] == []
