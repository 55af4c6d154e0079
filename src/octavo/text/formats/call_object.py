"""A call that is written as a JSON object: {"name": …, "arguments": {…}}."""

from __future__ import annotations

import json
from dataclasses import dataclass

from octavo.text.formats.feed import SPACES, Feed, Reading, Said

ARGUMENTS = ("arguments", "parameters")
"""Families call them by one name or the other, and models now and then by the wrong one."""

_KEYS = frozenset(("name", "type", "id", *ARGUMENTS))
"""An object with any other key is no call."""

_OF_JSON = frozenset('{}[]",:+-.0123456789eEtrufalsn' + SPACES)
"""All that stands outside of texts."""


class ValueEnd:
    """Finds the end of an object, an array, or a text, in JSON that comes in pieces.

    It looks at brackets and quotes alone: whether it is JSON is for whoever reads it whole.
    """

    def __init__(self) -> None:
        self.ended = False
        self.broken = False
        """What came cannot belong to a value."""
        self.quoted = False
        """What comes next stands in a text."""
        self._open = 0
        self._escaped = False

    def find(self, text: str, place: int) -> int:
        """Return the place behind what belongs to the value, from a place on."""
        while place < len(text) and not self.ended:
            letter = text[place]
            if self.quoted:
                self._read_quoted(letter)
            elif letter not in _OF_JSON or (letter in "}]" and not self._open):
                self.broken = True
                return place
            else:
                self.quoted = letter == '"'
                self._open += (letter in "{[") - (letter in "}]")
            place += 1
            self.ended = not self._open and not self.quoted
        return place

    def _read_quoted(self, letter: str) -> None:
        if self._escaped:
            self._escaped = False
        elif letter == "\\":
            self._escaped = True
        elif letter == '"':
            self.quoted = False


@dataclass(slots=True)
class _Cursor:
    """Reads ahead in a feed without taking anything."""

    feed: Feed
    place: int = 0

    def visible(self) -> Reading[str]:
        """Return the next character that is no space; empty: the text has ended."""
        while True:
            while self.place < len(self.feed.text):
                letter = self.feed.text[self.place]
                if letter not in SPACES:
                    return letter
                self.place += 1
            if not (yield from self.feed.more()):
                return ""

    def value(self) -> Reading[str]:
        """Return an object, an array or a text that stands here; empty: none does."""
        begin, end = self.place, ValueEnd()
        while True:
            self.place = end.find(self.feed.text, self.place)
            if end.ended:
                return self.feed.text[begin : self.place]
            if end.broken or not (yield from self.feed.more()):
                return ""


def read_call(feed: Feed, said: Said, names: frozenset[str]) -> Reading[bool]:
    """Read one call of a tool with one of some names; False: there is none, and nothing is taken.

    It is told as soon as it is certain, with its arguments as they come. From then on it is a
    call, however it goes on.
    """
    at = _Cursor(feed)
    if (yield from at.visible()) != "{":
        return False
    name, arguments = "", ""
    letter = "{"
    while letter in ("{", ","):
        at.place += 1
        if letter == "{" and (yield from at.visible()) == "}":
            return False
        key = yield from _key(at)
        if key not in _KEYS:
            return False
        letter = yield from at.visible()
        if key in ARGUMENTS and letter == "{" and name and not arguments:
            yield from _tell(at, said, name)
            return True
        if letter not in ('"', "{") or (letter == "{") != (key in ARGUMENTS):
            return False
        value = yield from at.value()
        if key == "name":
            name = _text(value)
            if name not in names:
                return False
        elif key in ARGUMENTS:
            arguments = value
        if not value:
            return False
        letter = yield from at.visible()
    if letter != "}" or not name:
        return False
    feed.take(at.place + 1)
    said.call(name)
    said.arguments(arguments or "{}")
    return True


def _key(at: _Cursor) -> Reading[str]:
    """Return a key, and take its colon; empty: there is none."""
    if (yield from at.visible()) != '"':
        return ""
    key = _text((yield from at.value()))
    if (yield from at.visible()) != ":":
        return ""
    at.place += 1
    return key


def _text(value: str) -> str:
    try:
        text: object = json.loads(value)
    except ValueError:
        return ""
    return text if isinstance(text, str) else ""


def _tell(at: _Cursor, said: Said, name: str) -> Reading[None]:
    """Tell a call whose arguments begin here, and take it up to its end."""
    feed = at.feed
    feed.take(at.place)
    said.call(name)
    yield from tell_arguments(feed, said)
    # What may stand behind them says nothing of the call.
    while True:
        yield from feed.spaces()
        if (yield from feed.begins("}", ",")) != ",":
            return
        at = _Cursor(feed)
        if not (yield from _key(at)) or (yield from at.visible()) != '"':
            return
        if not (yield from at.value()):
            return
        feed.take(at.place)


def tell_arguments(feed: Feed, said: Said) -> Reading[None]:
    """Tell an object as it comes, up to its end or to what cannot belong to it."""
    end = ValueEnd()
    while not (end.ended or end.broken):
        said.arguments(feed.take(end.find(feed.text, 0)))
        if not (end.ended or end.broken) and not (yield from feed.more()):
            return
