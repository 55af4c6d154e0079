"""Parsers that are written as if the text were there already.

A parser is a generator: it yields where it needs text that has not come yet. So it reads as the
format does, from left to right, and what it returns does not depend on how the text is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeAlias, TypeVar

from octavo.text.parsing import CallPiece, Parsed

Result = TypeVar("Result")

Reading: TypeAlias = Generator[None, None, Result]
"""Yields where more text is needed; returns what it has found."""

SPACES = " \n\r\t"


class Feed:
    """The text of an answer that has not been read yet."""

    def __init__(self) -> None:
        self.text = ""
        """From the first character that has not been taken."""
        self.ended = False
        """Nothing will be appended."""

    def more(self) -> Reading[bool]:
        """Wait for more text; False: there is none."""
        if self.ended:
            return False
        yield
        return True

    def take(self, chars: int) -> str:
        """Take so many characters, which must be there."""
        taken, self.text = self.text[:chars], self.text[chars:]
        return taken

    def spaces(self) -> Reading[str]:
        """Take all spaces and line ends up to something else, or the end."""
        taken = ""
        while True:
            rest = self.text.lstrip(SPACES)
            taken += self.take(len(self.text) - len(rest))
            if rest or not (yield from self.more()):
                return taken

    def begins(self, *texts: str) -> Reading[str]:
        """Take the first of some texts that stands here; empty: none does."""
        while True:
            for text in texts:
                if self.text.startswith(text):
                    return self.take(len(text))
            if not any(text.startswith(self.text) for text in texts):
                return ""
            if not (yield from self.more()):
                return ""

    def upto(self, markers: tuple[str, ...], tell: Callable[[str], None]) -> Reading[str]:
        """Tell all up to the first of some markers and take that; empty: the text has ended.

        Of two that begin at one place the first in the list counts; none may begin another that
        stands behind it.
        """
        while True:
            places = [(self.text.find(marker), marker) for marker in markers]
            found = min(
                (one for one in places if one[0] >= 0), default=None, key=lambda one: one[0]
            )
            certain = len(self.text) - _begun(self.text, markers)
            if found is not None and found[0] <= certain:
                tell(self.take(found[0]))
                return self.take(len(found[1]))
            tell(self.take(certain))
            if not (yield from self.more()):
                tell(self.take(len(self.text)))
                return ""


def _begun(text: str, markers: tuple[str, ...]) -> int:
    """Return how long the longest end of a text is that begins a marker without completing it."""
    longest = max(map(len, markers)) - 1
    for size in range(min(longest, len(text)), 0, -1):
        end = text[-size:]
        if any(len(marker) > size and marker.startswith(end) for marker in markers):
            return size
    return 0


class Said:
    """What a parser has found and not told yet. ids: of calls, by their number."""

    def __init__(self, ids: Callable[[int], str]) -> None:
        self._ids = ids
        self._content = ""
        self._calls: list[CallPiece] = []
        self._index = -1

    def content(self, text: str) -> None:
        """Tell text that is no call."""
        self._content += text

    def call(self, name: str) -> None:
        """Begin a call."""
        self._index += 1
        self._calls.append(CallPiece(self._index, self._ids(self._index), name))

    def arguments(self, text: str) -> None:
        """Go on with the arguments of the last call."""
        if text:
            self._calls.append(CallPiece(self._index, arguments=text))

    def take(self) -> Parsed:
        """Return all that has been told since the last time."""
        parsed = Parsed(self._content, "", tuple(self._calls))
        self._content, self._calls = "", []
        return parsed


class GeneratorParser:
    """An `AnswerParser` that is written as a generator."""

    def __init__(
        self, read: Callable[[Feed, Said], Reading[None]], ids: Callable[[int], str]
    ) -> None:
        self._feed = Feed()
        self._said = Said(ids)
        self._work = read(self._feed, self._said)

    def push(self, text: str) -> Parsed:
        """Take more text; return what is certain now."""
        self._feed.text += text
        return self._go_on()

    def finish(self) -> Parsed:
        """The text has ended; return the rest."""
        self._feed.ended = True
        return self._go_on()

    def _go_on(self) -> Parsed:
        next(self._work, None)
        return self._said.take()
