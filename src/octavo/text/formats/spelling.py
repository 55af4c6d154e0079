"""The texts around calls of one family: for calls that a model must make, and for histories."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.text.conversation import Tool

_SPELLING = "x-guidance"
"""A keyword of llguidance."""
_LIKE_TEMPLATES = {
    "whitespace_flexible": False,
    "item_separator": ", ",
    "key_separator": ": ",
}
"""How `tojson` of templates writes arguments, so that a history is the text of its answers."""

MAX_CALLS = 16
"""Of an answer of nothing but calls: a model that never stops calling comes to an end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpelling:
    """How calls are written, as the templates of the family write them in a history."""

    before: str
    """Each call."""
    after: str
    """Each call."""
    between: str
    """Two calls."""
    key: str
    """Of the arguments."""
    opening: str = ""
    """Before the first call."""
    closing: str = ""
    """Behind the last call."""
    single: bool = False
    """Templates of the family write one call alone."""
    trigger: str = ""
    """The beginning of `before` that nothing but a call begins with; empty: there is none."""

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return calls as the model would write them: names and arguments."""
        written = [f"{self._head(name)}{arguments}}}{self.after}" for name, arguments in calls]
        return self.opening + self.between.join(written) + self.closing

    def grammar(
        self, tools: list[Tool], added: Mapping[str, int], *, several: bool, gap: str = ""
    ) -> str:
        """Return a grammar, as llguidance reads it, of nothing but calls of some tools.

        added: texts that are a token each, which a grammar names by number. several: one or more
        calls, else one. gap: stands before them.
        """
        text = _Texts(added)
        more = ""
        if several and not self.single:
            more = f"({text.of(self.between)} call){{0,{MAX_CALLS - 1}}}"
        start = (text.of(gap + self.opening), "call", more, text.of(self.closing))
        rules = ["start: " + " ".join(part for part in start if part)]
        return "\n".join([*rules, *self._calls(tools, text)])

    def free_grammar(self, tools: list[Tool], added: Mapping[str, int]) -> str:
        """Return a grammar of free text in which calls fit the schemas of strict tools.

        There must be a trigger. added: as of `grammar`.
        """
        assert self.before.startswith(self.trigger)
        text = _Texts(added)
        # What is a token by itself cannot stand in free text; what is not ends it where it can.
        lazy = "" if self.trigger in added else "[lazy]"
        rules = [
            "start: (begin call)* TEXT",
            f"begin{lazy}: TEXT {text.of(self.trigger)}",
            r"TEXT: /(.|\n)*/",
        ]
        return "\n".join([*rules, *self._calls(tools, text, after=self.trigger)])

    def _calls(self, tools: list[Tool], text: _Texts, *, after: str | None = None) -> list[str]:
        """Return the rule of a call. after: it goes on behind this; only strict schemas count."""
        names = [f"call_{number}" for number in range(len(tools))]
        rules = [f"call: {' | '.join(names)}"]
        for name, tool in zip(names, tools, strict=True):
            held = after is None or tool.strict
            schema = {
                **(schema_of(tool) if held else {"type": "object"}),
                _SPELLING: _LIKE_TEMPLATES,
            }
            head, end = self._head(tool.name).removeprefix(after or ""), "}" + self.after
            rules.append(f"{name}: {text.of(head)} {name}_arguments {text.of(end)}")
            rules.append(f"{name}_arguments: %json {json.dumps(schema, ensure_ascii=False)}")
        return rules

    def _head(self, name: str) -> str:
        return f'{self.before}{{"name": {json.dumps(name)}, "{self.key}": '


def schema_of(tool: Tool) -> dict[str, object]:
    """Return the schema of a tool's arguments, which are always an object."""
    schema = dict(tool.parameters)
    if not schema:
        return {"type": "object", "properties": {}, "additionalProperties": False}
    schema.setdefault("type", "object")
    return schema


class _Texts:
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
