"""Forms that answers of the tiny model are held to, and whether a text has them."""

from __future__ import annotations

import json
import re

from octavo import RequestOutput, StructuredOutputs

PROMPT = "The quick brown fox jumps over the lazy dog"
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "tags": {"type": "array", "items": {"enum": ["the", "fox"]}, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}
JSON = StructuredOutputs(json=SCHEMA, disable_any_whitespace=True)
NUMBER = StructuredOutputs(regex="[0-9]{3}(-[0-9]{4}){2}")
WORDS = StructuredOutputs(choice=["the fox", "a dog"])


def texts(results: list[RequestOutput]) -> list[str]:
    """Return all answers."""
    return [one.text for result in results for one in result.outputs]


def assert_fits(text: str, form: StructuredOutputs = JSON) -> None:
    """Assert that a text has one of the forms above."""
    if form.regex is not None:
        assert re.fullmatch(form.regex, text), text
    elif form.choice is not None:
        assert text in form.choice
    else:
        value = json.loads(text)
        assert list(value) == ["name", "tags"]
        assert len(value["name"]) <= 6
        assert set(value["tags"]) <= {"the", "fox"}
