"""Turns, tools and calls as templates read them: in one order, whoever sent them."""

from __future__ import annotations

import json

import pytest

from octavo.errors import RequestError
from octavo.text.conversation import Tool, ToolCall, ToolChoice, Turn
from octavo.text.parsing import PlainParser


def test_a_turn_is_written_with_what_it_has_and_nothing_else():
    assert Turn(role="user", content="hi").for_template() == {"role": "user", "content": "hi"}


def test_reasoning_goes_by_both_names_that_templates_know():
    turn = Turn(role="assistant", content="4", reasoning="2 + 2").for_template()

    assert turn["reasoning"] == turn["reasoning_content"] == "2 + 2"


def test_arguments_reach_the_template_as_a_value_in_the_order_the_model_wrote_them():
    call = ToolCall(id="c1", name="book", arguments='{"to": "Oslo", "from": "Rome"}')

    turn = Turn(role="assistant", calls=(call,)).for_template()

    (written,) = turn["tool_calls"]
    assert list(written["function"]["arguments"]) == ["to", "from"]


@pytest.mark.parametrize("arguments", ["[1]", "{", '"x"', "[" * 100_000])
def test_arguments_that_are_no_object_are_refused_by_the_name_of_the_tool(arguments):
    call = ToolCall(id="c1", name="book", arguments=arguments)

    with pytest.raises(RequestError, match="arguments of 'book'"):
        Turn(role="assistant", calls=(call,)).for_template()


def test_a_tool_is_the_same_text_whatever_the_order_of_its_keywords():
    one = {"required": ["a"], "type": "object", "properties": {"b": {}, "a": {"type": "string"}}}
    two = {"properties": one["properties"], "type": "object", "required": ["a"]}

    texts = {json.dumps(Tool(name="f", parameters=schema).for_template()) for schema in (one, two)}

    assert len(texts) == 1


def test_the_order_of_properties_and_values_is_the_authors():
    schema = {"properties": {"z": {"enum": ["b", "a"], "default": {"y": 1, "x": 2}}, "a": {}}}

    written = Tool(name="f", parameters=schema).for_template()["function"]["parameters"]

    assert json.dumps(written["properties"]) == json.dumps(
        {"z": {"enum": ["b", "a"], "default": {"y": 1, "x": 2}}, "a": {}}
    )


@pytest.mark.parametrize(
    ("choice", "forces"), [("auto", False), ("none", False), ("required", True), ("named", True)]
)
def test_a_choice_forces_a_call_or_not(choice, forces):
    assert ToolChoice(choice).forces is forces


def test_without_a_format_all_of_an_answer_is_content():
    parser = PlainParser()

    assert parser.push("<tool_call>").content + parser.finish().content == "<tool_call>"
