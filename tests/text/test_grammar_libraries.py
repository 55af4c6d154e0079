"""Libraries that make grammars keep the same promises; what is special about one of them."""

from __future__ import annotations

import importlib.util
import json

import pytest

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.testing.grammar_suite import accepts, byte_tokens, check_grammar_maker
from octavo.text.grammars.table import GRAMMAR_BACKENDS
from octavo.text.grammars.tags import Tags


@pytest.mark.parametrize("name", GRAMMAR_BACKENDS)
def test_a_library_keeps_what_all_must_keep(name):
    if name == "xgrammar" and importlib.util.find_spec("xgrammar") is None:
        pytest.skip("xgrammar is an extra that is not installed")

    check_grammar_maker(GRAMMAR_BACKENDS[name])


def tag(**row):
    return {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"} | row], "triggers": ["<f"]}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (tag() | {"triggers": []}, "triggers"),
        (tag() | {"triggers": ["<g"]}, "'<f>'"),
        (tag() | {"more": 1}, "'more'"),
        (tag(begin=3), "begin and end"),
        (tag(schema={"type": "array", "uniqueItems": True}), "/uniqueItems"),
        ({"format": {"type": "sequence"}}, "triggered_tags"),
        ({}, "format"),
    ],
)
def test_a_structural_tag_that_cannot_be_read_is_refused_by_its_part(value, told):
    with pytest.raises(RequestError, match="structured_outputs: structural_tag: ") as refused:
        Tags.read(json.dumps(value))

    assert told in str(refused.value)


def test_both_spellings_of_a_structural_tag_are_the_same():
    schema = {"type": "null"}
    content = {"type": "json_schema", "json_schema": schema}
    tags = {"triggers": ["<f"], "tags": [{"begin": "<f>", "content": content, "end": "</f>"}]}

    new = Tags.read(json.dumps({"format": {"type": "triggered_tags", **tags}}))

    assert new == Tags.read(json.dumps(tag(schema=schema)))


def test_a_trigger_that_is_a_special_token_is_the_token_and_not_its_text():
    lark = Tags.read(json.dumps(tag() | {"triggers": ["<f>"]})).lark({"<f>": 7, "</f>": 8})

    assert "TEXT <[7]> %json {} <[8]>" in lark


def test_a_choice_may_hold_what_grammars_write_otherwise():
    maker = GRAMMAR_BACKENDS["llguidance"](byte_tokens())
    text = 'a/b\\n"\t\U0001f600'

    grammar = maker.compile(StructuredOutputs(choice=[text]))

    assert accepts(grammar.start(), text)


def test_a_schema_inside_a_grammar_is_held_to_as_exactly_as_one_alone():
    maker = GRAMMAR_BACKENDS["llguidance"](byte_tokens())
    schema = {"type": "integer", "not": {"const": 1}, "x-guidance": {"whitespace_flexible": False}}

    grammar = maker.compile(
        StructuredOutputs(grammar=f'start: "f " v\nv: %json {json.dumps(schema)}')
    )

    assert accepts(grammar.start(), "f 12")
    assert not accepts(grammar.start(), "f 1")
    bad = StructuredOutputs(grammar='start: %json {"not": {"pattern": "a"}}')
    with pytest.raises(RequestError, match="grammar: %json: /not/pattern: `pattern`"):
        maker.compile(bad)


def test_counts_side_by_side_are_as_many_as_there_are():
    pytest.importorskip("xgrammar", reason="xgrammar is an extra that is not installed")
    maker = GRAMMAR_BACKENDS["xgrammar"](byte_tokens())
    counted = {f"p{number}": {"pattern": f"^a{{1,{number + 20}}}$"} for number in range(20)}

    grammar = maker.compile(StructuredOutputs(json={"properties": counted}))

    assert accepts(grammar.start(), '{"p19": "aaa"}')
    assert not accepts(grammar.start(), json.dumps({"p0": "a" * 21}))


def test_strings_of_several_patterns_are_refused_by_a_library_that_reads_one():
    pytest.importorskip("xgrammar", reason="xgrammar is an extra that is not installed")
    maker = GRAMMAR_BACKENDS["xgrammar"](byte_tokens())
    several = {"type": "array", "items": {"format": "time"}}

    with pytest.raises(RequestError, match="a string of several patterns"):
        maker.compile(StructuredOutputs(json=several))
    assert maker.compile(StructuredOutputs(json={"properties": {"allOf": {"format": "date"}}}))
