"""The texts around calls of one family: for calls that a model must make, and for histories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Protocol

from octavo.text.conversation import Tool

SPELLING = "x-guidance"
"""A keyword of llguidance."""
LIKE_TEMPLATES = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""How `tojson` of templates writes arguments, so that a history is the text of its answers."""

MAX_CALLS = 16
"""Of an answer of nothing but calls: a model that never stops calling comes to an end."""


class CallSpelling(Protocol):
    """How calls are written, as the templates of the family write them in a history."""

    @property
    def single(self) -> bool:
        """Templates of the family write one call alone."""
        ...

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return calls as the model would write them: names and arguments."""
        ...

    def grammar(
        self, tools: list[Tool], added: Mapping[str, int], *, several: bool, gap: str = ""
    ) -> str:
        """Return a grammar, as llguidance reads it, of nothing but calls of some tools.

        added: texts that are a token each, which a grammar names by number. several: one or more
        calls, else one. gap: stands before them. Raises RequestError for arguments that cannot be
        held.
        """
        ...

    def free_grammar(self, tools: list[Tool], added: Mapping[str, int]) -> str:
        """Return a grammar of free text in which calls fit the schemas of strict tools.

        added: as of `grammar`. Raises RequestError.
        """
        ...


def schema_of(tool: Tool) -> dict[str, object]:
    """Return the schema of a tool's arguments, which are always an object."""
    schema = dict(tool.parameters)
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema.setdefault("type", "object")
    return schema


class Texts:
    """Writes texts as a grammar has them."""

    def __init__(self, added: Mapping[str, int]) -> None:
        self._added = added
        spelled = "|".join(re.escape(one) for one in sorted(added, key=len, reverse=True))
        self._pattern = re.compile(f"({spelled})" if spelled else r"(?!)")

    def of(self, text: str) -> str:
        """Return a text; empty: there is none."""
        return " ".join(
            f"<[{self._added[part]}]>" if part in self._added else json.dumps(part)
            for part in self._pattern.split(text)
            if part
        )

    def until(self, trigger: str, before: str = "TEXT") -> str:
        """Return the rule `begin`: all before a trigger, and the trigger.

        What is a token by itself cannot stand in free text; what is not ends it where it can.
        """
        lazy = "" if trigger in self._added else "[lazy]"
        return f"begin{lazy}: {before} {self.of(trigger)}"


TEXT = r"TEXT: /(.|\n)*/"
