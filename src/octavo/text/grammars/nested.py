"""JSON Schemas that stand in a grammar: made exact, as those that stand alone are."""

from __future__ import annotations

import json
import re
from typing import cast

from octavo.errors import RequestError
from octavo.text.grammars.schema import exact_schema

_RULE = re.compile(r"^([a-z_]\w*)[ \t]*:[ \t]*%json[ \t]*(?=\{)", re.MULTILINE)
_OURS = "x-guidance"
"""A keyword of the library, about spelling; it goes through as it is."""


def exact_grammar(text: str) -> str:
    """Return a Lark grammar whose `rule: %json {…}` lines hold exact schemas.

    Raises RequestError, which names the rule, for a schema that cannot be held.
    """
    parts: list[str] = []
    place = 0
    for rule in _RULE.finditer(text):
        if rule.start() < place:
            continue
        try:
            value, end = json.JSONDecoder().raw_decode(text, rule.end())
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"structured_outputs: grammar: the schema of {rule[1]!r:.80} is no JSON: {error}"
            ) from None
        parts += [text[place : rule.end()], _exact(rule[1], cast("dict[str, object]", value))]
        place = end
    return "".join([*parts, text[place:]])


def _exact(rule: str, schema: dict[str, object]) -> str:
    spelling = schema.pop(_OURS, None)
    try:
        exact: object = json.loads(exact_schema(json.dumps(schema, ensure_ascii=False)))
    except RequestError as error:
        reason = str(error).removeprefix("structured_outputs: json: ")
        raise RequestError(f"structured_outputs: grammar: {rule}: {reason}") from None
    if isinstance(exact, dict) and spelling is not None:
        exact[_OURS] = spelling
    return json.dumps(exact, ensure_ascii=False)
