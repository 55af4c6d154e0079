"""Qwen3-Coder: <tool_call>, <function=NAME>, parameters one by one between marks of their own."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from octavo.text.conversation import Tool
from octavo.text.formats.call_object import ValueEnd
from octavo.text.formats.feed import SPACES, Feed, GeneratorParser, Reading, Said
from octavo.text.formats.parameters import ParameterSpelling, is_text, parameters_of
from octavo.text.parsing import AnswerParser, CallIds

OPEN, CLOSE = "<tool_call>", "</tool_call>"
_FUNCTION, _FUNCTION_END = "<function=", "</function>"
_PARAMETER, _PARAMETER_END = "<parameter=", "</parameter>"
_ENDS = (f"\n{_PARAMETER_END}", _PARAMETER_END)
_OF_PYTHON = {"True": "true", "False": "false", "None": "null"}
"""Templates of the family write histories so, and models learn it."""


class Qwen3CoderFormat:
    """A `ToolFormat`. Where a model leaves out the first mark, the rest is read all the same."""

    shown = frozenset((OPEN, CLOSE))
    spelling = ParameterSpelling(
        trigger=OPEN,
        function=(f"{OPEN}\n{_FUNCTION}{{}}>\n", f"{_FUNCTION_END}\n{CLOSE}"),
        parameter=(f"{_PARAMETER}{{}}>\n", f"\n{_PARAMETER_END}\n"),
        closing=_PARAMETER_END,
        between="\n",
    )

    def fits(self, template: str) -> bool:
        """True for templates that write both marks."""
        return _FUNCTION in template and _PARAMETER in template

    def parser(self, tools: Mapping[str, Tool], ids: CallIds) -> AnswerParser:
        """Return what reads one answer."""
        texts = {
            name: frozenset(key for key, given in parameters_of(tool).items() if is_text(given))
            for name, tool in tools.items()
        }
        return GeneratorParser(lambda feed, said: _read(feed, said, texts), ids)

    def spell_id(self, digest: str) -> str:
        """Return an id of a call."""
        return f"call_{digest[:24]}"


def _read(feed: Feed, said: Said, texts: Mapping[str, frozenset[str]]) -> Reading[None]:
    while marker := (yield from feed.upto((f"\n{OPEN}", OPEN, _FUNCTION), said.content)):
        gap = ""
        while marker:
            taken, name = yield from _head(feed, marker, texts)
            if not name:
                said.content(gap + taken)
                break
            yield from _read_call(feed, said, name, texts[name])
            gap = yield from feed.spaces()
            marker = yield from feed.begins(OPEN, _FUNCTION)
            if not marker and (feed.text or not feed.ended):
                said.content(gap)


def _head(feed: Feed, marker: str, names: Iterable[str]) -> Reading[tuple[str, str]]:
    """Take all up to the name of a tool; return that, and the name; empty: there is none."""
    taken = marker
    if marker != _FUNCTION:
        taken += yield from feed.spaces()
        mark = yield from feed.begins(_FUNCTION)
        taken += mark
        if not mark:
            return taken, ""
    name = yield from feed.begins(*(f"{name}>" for name in names))
    return taken + name, name.removesuffix(">")


def _read_call(feed: Feed, said: Said, name: str, texts: frozenset[str]) -> Reading[None]:
    """Tell a call, parameter by parameter; it is left open where the answer ends."""
    said.call(name)
    before = "{"
    while mark := (yield from feed.upto((_PARAMETER, _FUNCTION_END, CLOSE), _nobody)):
        if mark != _PARAMETER:
            said.arguments("{}" if before == "{" else "}")
            break
        key: list[str] = []
        if not (yield from feed.upto((">",), key.append)):
            return
        name = "".join(key)
        said.arguments(f"{before}{json.dumps(name, ensure_ascii=False)}: ")
        before = ", "
        yield from feed.begins("\n")
        tell = _tell_text if name in texts else _tell_value
        yield from tell(feed, said)
    if mark == _FUNCTION_END:
        yield from feed.spaces()
        yield from feed.begins(CLOSE)


def _tell_text(feed: Feed, said: Said) -> Reading[None]:
    def tell(piece: str) -> None:
        said.arguments(json.dumps(piece, ensure_ascii=False)[1:-1])

    said.arguments('"')
    if (yield from feed.upto(_ENDS, tell)):
        said.arguments('"')


def _tell_value(feed: Feed, said: Said) -> Reading[None]:
    """Tell JSON whole, once its end is there; what is none is a text."""
    parts: list[str] = []
    while end := (yield from feed.upto(_ENDS, parts.append)):
        text = "".join(parts).strip(SPACES)
        if not _in_quotes(text):
            said.arguments(_value(text))
            return
        parts.append(end)


def _in_quotes(text: str) -> bool:
    """True if a mark behind a text belongs to a text in it."""
    value = ValueEnd()
    if text[:1] in ("{", "[", '"'):
        value.find(text, 0)
    return value.quoted and not value.broken


def _value(text: str) -> str:
    try:
        json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return _OF_PYTHON.get(text) or json.dumps(text, ensure_ascii=False)
    return text


def _no_number(word: str) -> float:
    raise ValueError(word)


def _nobody(text: str) -> None:
    """Between the marks there is nothing to tell."""
