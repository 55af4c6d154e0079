"""What is read out of an answer as it is written: reasoning, calls of tools, and the rest.

A way of writing these is a row of a table in `octavo.text.formats.table`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from octavo.text.conversation import Tool
from octavo.text.formats.spelling import CallSpelling


class CallPiece(msgspec.Struct, frozen=True):
    """What has come of a call: first its name, then its arguments bit by bit."""

    index: int
    """Among the calls of the answer."""
    id: str = ""
    """With its first piece alone."""
    name: str = ""
    """With its first piece alone, whole."""
    arguments: str = ""
    """JSON that follows what came before."""


class Parsed(msgspec.Struct, frozen=True):
    """What new text of an answer says."""

    content: str = ""
    reasoning: str = ""
    calls: tuple[CallPiece, ...] = ()


class AnswerParser(Protocol):
    """Reads one answer. What it has returned never changes, however the text was cut.

    So a stream, joined, is what the answer is in one piece.
    """

    def push(self, text: str) -> Parsed:
        """Take more text; return what is certain now. Held back is what may begin a marker."""
        ...

    def finish(self) -> Parsed:
        """The text has ended; return the rest. What looked like a call and is none is content."""
        ...


CallIds: TypeAlias = Callable[[int], str]
"""Returns the id of a call, by its number in the answer."""


class ToolFormat(Protocol):
    """How a family of models writes calls: a row of `TOOL_FORMATS`."""

    @property
    def shown(self) -> frozenset[str]:
        """Special tokens by their text that stay in the text of answers, for the parser to see."""
        ...

    @property
    def spelling(self) -> CallSpelling:
        """The texts around calls, which forced calls and lowered histories have too."""
        ...

    def fits(self, template: str) -> bool:
        """Tell by a chat template's source whether the model writes calls like this."""
        ...

    def parser(self, tools: Mapping[str, Tool], ids: CallIds) -> AnswerParser:
        """Return what reads one answer; all that is no call of one of these by name is content.

        A caller never hears of a call to what it did not offer.
        """
        ...

    def spell_id(self, digest: str) -> str:
        """Return an id of a call, as templates of the family take them. digest: 32 hex digits."""
        ...


class ReasoningFormat(Protocol):
    """How a family of models thinks aloud: a row of `REASONING_FORMATS`."""

    @property
    def end(self) -> str:
        """What ends the reasoning; a form begins behind it (`StructuredOutputs.after`)."""
        ...

    @property
    def shown(self) -> frozenset[str]:
        """As of `ToolFormat`."""
        ...

    def fits(self, template: str) -> bool:
        """Tell by a chat template's source whether the model thinks like this."""
        ...

    def opened(self, prompt: str) -> bool:
        """Tell by a rendered prompt whether the answer begins in the midst of reasoning."""
        ...

    def closed(self, prompt: str) -> bool:
        """Tell by a rendered prompt whether the answer has no reasoning."""
        ...

    def parser(self, rest: AnswerParser, *, opened: bool) -> AnswerParser:
        """Return what splits reasoning off; rest: reads all that is none."""
        ...


class PlainParser:
    """Takes all of an answer for content."""

    def push(self, text: str) -> Parsed:
        """Return it as it is."""
        return Parsed(content=text)

    def finish(self) -> Parsed:
        """Nothing was held back."""
        return Parsed()


class OneCall:
    """Leaves out all calls of another parser but the first."""

    def __init__(self, parser: AnswerParser) -> None:
        self._parser = parser

    def push(self, text: str) -> Parsed:
        """Take more text; return what is certain now."""
        return _first_alone(self._parser.push(text))

    def finish(self) -> Parsed:
        """The text has ended; return the rest."""
        return _first_alone(self._parser.finish())


def _first_alone(parsed: Parsed) -> Parsed:
    calls = tuple(call for call in parsed.calls if not call.index)
    return Parsed(parsed.content, parsed.reasoning, calls)
