"""Conversations, tools and calls of them, as every API hands them to a chat template.

Each API has its own words for these; inside there is one kind of value, and it is written in one
order, so that a history is the same text each time it comes back.
"""

from __future__ import annotations

import json
import re
from typing import Literal, TypeAlias, cast

import msgspec

from octavo.errors import RequestError

_FIRST = ("type", "description", "properties", "required", "items", "enum")
"""Keywords of a schema that come first, in the order in which models have mostly seen them."""

MAX_DEPTH = 64
"""Of JSON that templates read."""
MAX_NAME_CHARS = 128
"""Of a tool."""
_TOOL_NAME = re.compile(rf"[A-Za-z0-9_.:/-]{{1,{MAX_NAME_CHARS}}}")


class Spelled(dict[str, object]):
    """A JSON object that is written out as it was spelled, so that a model reads its own words.

    Spaces, numbers and escapes come back as they were: read and written again they might differ,
    and the history would not be found in memory.
    """

    def __init__(self, fields: dict[str, object], text: str) -> None:
        super().__init__(fields)
        self.text = text


class ToolCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model has made."""

    id: str
    name: str
    arguments: str
    """A JSON object as text, as the model wrote it."""

    def read(self) -> Spelled:
        """Return its arguments. Raises RequestError if they are no JSON object."""
        text = self.arguments.strip() or "{}"
        try:
            value: object = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"tool_calls: arguments of {self.name!r}: {error}") from None
        if not isinstance(value, dict):
            raise RequestError(
                f"tool_calls: arguments of {self.name!r} must be a JSON object, got "
                f"{self.arguments:.80}"
            )
        return Spelled(cast("dict[str, object]", value), text)

    def for_template(self) -> dict[str, object]:
        """Return it as templates read it. Raises RequestError if arguments are no JSON object."""
        call: dict[str, object] = {"name": self.name, "arguments": self.read()}
        return {"id": self.id, "type": "function", "function": call}


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One message of a conversation."""

    role: str
    content: str = ""
    """All of its text."""
    name: str | None = None
    reasoning: str | None = None
    """What the model thought before it answered."""
    calls: tuple[ToolCall, ...] = ()
    """Calls that it made."""
    call_id: str | None = None
    """Of a tool's result: the call that it answers."""

    def for_template(self) -> dict[str, object]:
        """Return it as templates read it. Raises RequestError for a call that is no call."""
        fields: dict[str, object] = {"role": self.role, "content": self.content}
        if self.name is not None:
            fields["name"] = self.name
        if self.reasoning is not None:
            # Templates know it by one name or the other.
            fields["reasoning"] = fields["reasoning_content"] = self.reasoning
        if self.calls:
            fields["tool_calls"] = [call.for_template() for call in self.calls]
        if self.call_id is not None:
            fields["tool_call_id"] = self.call_id
        return fields


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that a model may call."""

    name: str
    description: str = ""
    parameters: dict[str, object] = msgspec.field(default_factory=dict[str, object])
    """JSON Schema of its arguments; empty: it takes none."""
    strict: bool = False
    """Arguments fit the schema even where the model is free to call or not."""

    def __post_init__(self) -> None:
        if not _TOOL_NAME.fullmatch(self.name):
            raise RequestError(
                f"tools: a name has 1 to {MAX_NAME_CHARS} letters, digits, _ - . : and /, got "
                f"{self.name!r:.80}"
            )
        if deeper(self.parameters, MAX_DEPTH):
            raise RequestError(
                f"tools: parameters of {self.name!r} are nested more than {MAX_DEPTH} deep"
            )

    def for_template(self) -> dict[str, object]:
        """Return it as templates read it, in an order that does not depend on its sender's."""
        function: dict[str, object] = {"name": self.name, "description": self.description}
        function["parameters"] = in_stable_order(self.parameters)
        return {"type": "function", "function": function}


ToolMode: TypeAlias = Literal["auto", "none", "required", "named"]


class ToolChoice(msgspec.Struct, frozen=True):
    """Whether, and what, a model must call."""

    mode: ToolMode = "auto"
    name: str = ""
    """Of mode named: the only tool that it may call, and must."""

    @property
    def forces(self) -> bool:
        """True if the answer is nothing but calls."""
        return self.mode in ("required", "named")


AUTOMATIC = ToolChoice()
"""The model decides."""


def deeper(value: object, most: int) -> bool:
    """Tell whether JSON is nested deeper than so many objects and arrays."""
    layer = [value]
    for _ in range(most + 1):
        below: list[object] = []
        for one in layer:
            if isinstance(one, dict):
                below += cast("dict[str, object]", one).values()
            elif isinstance(one, list):
                below += cast("list[object]", one)
        if not below:
            return False
        layer = below
    return True


def in_stable_order(schema: object) -> object:
    """Return a JSON Schema with its keywords in one order; properties stay in the sender's.

    The order of properties is the author's, and models write arguments in it.
    """
    if isinstance(schema, list):
        return [in_stable_order(one) for one in cast("list[object]", schema)]
    if not isinstance(schema, dict):
        return schema
    fields = cast("dict[str, object]", schema)
    last = len(_FIRST)
    ranks = {name: rank for rank, name in enumerate(_FIRST)}
    ordered: dict[str, object] = {}
    for name in sorted(fields, key=lambda name: (ranks.get(name, last), name)):
        value = fields[name]
        if name in ("properties", "$defs", "definitions", "patternProperties") and isinstance(
            value, dict
        ):
            parts = cast("dict[str, object]", value)
            ordered[name] = {part: in_stable_order(one) for part, one in parts.items()}
        elif name in ("const", "enum", "default", "examples"):
            ordered[name] = value  # values, not schemas
        else:
            ordered[name] = in_stable_order(value)
    return ordered
