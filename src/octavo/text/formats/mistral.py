"""Mistral: [TOOL_CALLS] before an array of JSON objects, or before a name, [ARGS] and an object."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.text.conversation import Tool
from octavo.text.formats.call_object import read_call, tell_arguments
from octavo.text.formats.feed import Feed, GeneratorParser, Reading, Said
from octavo.text.formats.objects import ObjectSpelling
from octavo.text.parsing import AnswerParser, CallIds

CALLS, ARGS = "[TOOL_CALLS]", "[ARGS]"
_ID_CHARS = 9
"""Its templates refuse any other."""


class MistralFormat:
    """A `ToolFormat` of models up to tokenizer version 7; newer ones are read too."""

    shown = frozenset((CALLS, ARGS))
    spelling = ObjectSpelling(
        before="",
        after="",
        between=", ",
        key="arguments",
        trigger=CALLS,
        opening=f"{CALLS} [",
        closing="]",
    )

    def fits(self, template: str) -> bool:
        """True for templates that write the marker."""
        return CALLS in template

    def parser(self, tools: Mapping[str, Tool], ids: CallIds) -> AnswerParser:
        """Return what reads one answer."""
        names = frozenset(tools)
        return GeneratorParser(lambda feed, said: _read(feed, said, names), ids)

    def spell_id(self, digest: str) -> str:
        """Return an id of a call: nine letters and digits."""
        return digest[:_ID_CHARS]


def _read(feed: Feed, said: Said, names: frozenset[str]) -> Reading[None]:
    while marker := (yield from feed.upto((CALLS,), said.content)):
        gap = yield from feed.spaces()
        bracket = yield from feed.begins("[")
        if bracket:
            found = yield from _read_array(feed, said, names)
        else:
            found = yield from _read_named(feed, said, names)
        if not found:
            said.content(marker + gap + bracket)


def _read_array(feed: Feed, said: Said, names: frozenset[str]) -> Reading[bool]:
    found = False
    while (yield from read_call(feed, said, names)):
        found = True
        yield from feed.spaces()
        if not (yield from feed.begins(",")):
            break
    if found:
        yield from feed.begins("]")
    return found


def _read_named(feed: Feed, said: Said, names: frozenset[str]) -> Reading[bool]:
    # Of two names of which one begins the other, the longer is looked for first.
    spelled = {f"{name}{gap}": name for name in names for gap in (ARGS, "{")}
    begun = yield from feed.begins(*sorted(spelled, key=len, reverse=True))
    if not begun:
        return False
    if begun.endswith("{"):
        feed.text = "{" + feed.text
    said.call(spelled[begun])
    yield from feed.spaces()
    yield from tell_arguments(feed, said)
    return True
