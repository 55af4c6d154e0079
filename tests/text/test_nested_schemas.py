"""Schemas inside a grammar are held as exactly as those that stand alone, or refused."""

from __future__ import annotations

import json

import pytest

from octavo.errors import RequestError
from octavo.text.grammars.nested import exact_grammar


def test_the_schema_of_a_rule_is_made_exact_and_keeps_its_spelling():
    schema = {"not": {"enum": [1]}, "enum": [1, 2], "x-guidance": {"key_separator": ": "}}
    text = f'start: "a" b\nb: %json {json.dumps(schema)}\nc: "%json"\n'

    exact = exact_grammar(text)

    first, second, third = exact.splitlines()
    assert (first, third) == ('start: "a" b', 'c: "%json"')
    made = json.loads(second.removeprefix("b: %json "))
    assert made.pop("x-guidance") == {"key_separator": ": "}
    assert "not" not in made
    assert "1" not in json.dumps(made)


def test_a_grammar_without_schemas_stays_as_it_is():
    text = 'start: "a"\nb: /%json/\n'

    assert exact_grammar(text) == text


def test_a_schema_that_cannot_be_held_is_refused():
    with pytest.raises(RequestError, match=r"grammar: %json: .*dict"):
        exact_grammar('start: b\nb: %json {"type": "dict"}')
