"""From a JSON Schema as it is given to one that grammars are made of, or a refusal."""

from __future__ import annotations

import json

from octavo.errors import RequestError
from octavo.text.grammars.schema.document import Document
from octavo.text.grammars.schema.meaning import Meaning
from octavo.text.grammars.schema.order import Order
from octavo.text.grammars.schema.patterns import Patterns
from octavo.text.grammars.schema.structures import plain
from octavo.text.grammars.schema.written import Writer


def exact_schema(text: str) -> str:
    """Return a schema of few words for which the same values are valid, keys in their order.

    It has no keywords but type, enum, numeric limits and multipleOf, lengths and patterns,
    prefixItems and items, properties, required, patternProperties, additionalProperties, counts,
    anyOf and $ref; patterns are spelled for Rust's regex crate. Raises RequestError, which names
    the keyword, its place as a JSON Pointer, and quotes what stands there.
    """
    document = Document(text)
    meaning = Meaning(document, Patterns())
    try:
        written = Writer(meaning, Order(document)).whole(plain(document.root))
    except RecursionError:
        raise RequestError(
            "structured_outputs: json: its parts refer to each other too deeply: make it flatter"
        ) from None
    if written is False:
        raise RequestError("structured_outputs: json: no value fits this schema")
    return json.dumps({} if written is True else written, ensure_ascii=False)
