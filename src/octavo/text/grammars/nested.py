"""JSON Schemas that stand inside a Lark grammar."""

from __future__ import annotations

import json
import re

from octavo.errors import RequestError
from octavo.text.grammars.schema import exact_schema

_BEFORE = re.compile(r"%json\s+(?=\{)")
_DECODER = json.JSONDecoder()
_OPTIONS = "x-guidance"
"""Stands in a schema, and is none of its keywords: how its values are spelled."""


def exact_grammar(lark: str) -> str:
    """Return a grammar with each JSON Schema in it rewritten. Raises RequestError."""
    parts: list[str] = []
    done = 0
    for found in _BEFORE.finditer(lark):
        try:
            value, end = _DECODER.raw_decode(lark, found.end())
        except (ValueError, RecursionError):
            continue  # a text that only looks like it, or no JSON, which the library says itself
        if found.start() < done or not isinstance(value, dict):
            continue
        try:
            exact = exact_schema(lark[found.end() : end])
        except RequestError as error:
            told = str(error).removeprefix("structured_outputs: json: ")
            raise RequestError(f"structured_outputs: grammar: %json: {told}") from None
        if _OPTIONS in value:
            exact = json.dumps(json.loads(exact) | {_OPTIONS: value[_OPTIONS]}, ensure_ascii=False)
        parts += [lark[done : found.end()], exact]
        done = end
    return "".join([*parts, lark[done:]])
