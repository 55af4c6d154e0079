"""Calls that are JSON objects: how they are spelled, and grammars of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.text.conversation import Tool
from octavo.text.formats.call_object import ARGUMENTS
from octavo.text.formats.spelling import (
    LIKE_TEMPLATES,
    MAX_CALLS,
    SPELLING,
    TEXT,
    Texts,
    schema_of,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSpelling:
    """A `CallSpelling` of objects with a name and arguments."""

    before: str
    """Each call."""
    after: str
    """Each call."""
    between: str
    """Two calls."""
    key: str
    """Of the arguments."""
    trigger: str
    """What nothing but calls begins with: of the first call, or of each."""
    opening: str = ""
    """Before the first call."""
    closing: str = ""
    """Behind the last call."""
    single: bool = False
    """Templates of the family write one call alone."""
    bare: bool = False
    """Calls begin an answer without the trigger, too."""

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return calls as the model would write them: names and arguments."""
        written = [f"{self._head(name)}{arguments}}}{self.after}" for name, arguments in calls]
        return self.opening + self.between.join(written) + self.closing

    def grammar(
        self, tools: list[Tool], added: Mapping[str, int], *, several: bool, gap: str = ""
    ) -> str:
        """See `CallSpelling.grammar`."""
        text = Texts(added)
        calls = self._several(text) if several and not self.single else "call"
        start = (text.of(gap + self.opening), calls, text.of(self.closing))
        rules = ["start: " + " ".join(part for part in start if part)]
        return "\n".join([*rules, *self._calls(tools, text)])

    def free_grammar(self, tools: list[Tool], added: Mapping[str, int]) -> str:
        """See `CallSpelling.free_grammar`."""
        text = Texts(added)
        if self.bare:
            return "\n".join([*self._bare(tools, text), *self._calls(tools, text, free=True)])
        calls = "call"
        if self.opening:
            assert self.opening.startswith(self.trigger)
            rest = text.of(self.opening.removeprefix(self.trigger))
            calls = f"{rest} {self._several(text)} {text.of(self.closing)}"
        rules = [f"start: (begin {calls})* TEXT", text.until(self.trigger), TEXT]
        return "\n".join([*rules, *self._calls(tools, text, free=True)])

    def _several(self, text: Texts) -> str:
        return f"call ({text.of(self.between)} call){{0,{MAX_CALLS - 1}}}"

    def _bare(self, tools: list[Tool], text: Texts) -> list[str]:
        """Return rules of text that is no call from its beginning, nor behind a trigger."""
        trigger = text.of(self.trigger)
        return [
            f"start: (calls {trigger} | begin)* (calls | FREE)",
            f"calls: {self._several(text)}",
            text.until(self.trigger, "FREE"),
            rf"FREE: /(.|\n)*/ & ~/{_beginning([tool.name for tool in tools])}(.|\n)*/",
        ]

    def _calls(self, tools: list[Tool], text: Texts, *, free: bool = False) -> list[str]:
        """Return the rule of a call. free: in free text, where only strict schemas count."""
        names = [f"call_{number}" for number in range(len(tools))]
        rules = [f"call: {' | '.join(names)}"]
        for name, tool in zip(names, tools, strict=True):
            held = not free or tool.strict
            schema = {**(schema_of(tool) if held else {"type": "object"}), SPELLING: LIKE_TEMPLATES}
            head, end = text.of(self._rest(tool.name, free=free)), text.of("}" + self.after)
            if free and self.bare:
                head = f"HEAD_{name.upper()}"
                rules.append(f"{head}: /{_head_of(self._head(tool.name))}/")
            rules.append(f"{name}: {head} {name}_arguments {end}")
            rules.append(f"{name}_arguments: %json {json.dumps(schema, ensure_ascii=False)}")
        return rules

    def _rest(self, name: str, *, free: bool) -> str:
        head = self._head(name)
        return head.removeprefix(self.trigger) if free and not self.opening else head

    def _head(self, name: str) -> str:
        return f'{self.before}{{"name": {json.dumps(name)}, "{self.key}": '


_SPACES = r"[ \n\r\t]*"
_TEXT = r'"([^"\\]|\\.)*"'


def _head_of(head: str) -> str:
    """Return an expression of a call up to its arguments; models now and then say what it is."""
    rest = _escaped(head.removeprefix("{"))
    return rf'{_SPACES}\{{("type": "function", )?{rest}'


def _beginning(names: Iterable[str]) -> str:
    """Return an expression of all that may go on as a call of one of these, however spelled.

    An escape in a key or a name may stand for any letter; and what tells its arguments first says
    its name too late.
    """
    known = "|".join(_escaped(name) for name in names)
    told = rf'("(type|id)"{_SPACES}:{_SPACES}{_TEXT}{_SPACES},{_SPACES})*'
    name = rf'"name"{_SPACES}:{_SPACES}"(({known})"|[^"\\]*\\)'
    arguments = rf'"({"|".join(ARGUMENTS)})"{_SPACES}:'
    return rf'{_SPACES}\{{{_SPACES}{told}({name}|{arguments}|"[^"\\]*\\)'


def _escaped(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_ ]", lambda found: f"\\{found[0]}", text)
