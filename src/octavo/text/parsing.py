"""What is read out of an answer as it is written: reasoning, calls of tools, and the rest.

A way of writing these is a row of a table, found by name; `auto` looks at the model's template.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeVar

import msgspec

from octavo.contract.structured import StructuredOutputs
from octavo.errors import ConfigError
from octavo.text.conversation import Tool, ToolChoice

AUTO = "auto"


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


class ToolFormat(Protocol):
    """How a family of models writes calls: a row of `TOOL_FORMATS`."""

    shown: frozenset[str]
    """Special tokens by their text that stay in the text of answers, for the parser to see."""

    def fits(self, template: str) -> bool:
        """Tell by a chat template's source whether the model writes calls like this."""
        ...

    def parser(self, tools: tuple[Tool, ...]) -> AnswerParser:
        """Return what reads one answer; all that is no call is content."""
        ...

    def form(
        self, tools: tuple[Tool, ...], choice: ToolChoice, *, parallel: bool
    ) -> StructuredOutputs | None:
        """Return the form that holds an answer to this choice; None: it may be anything.

        Arguments are spelled as the template spells them in a history, so that the history finds
        the answer in memory.
        """
        ...


class ReasoningFormat(Protocol):
    """How a family of models thinks aloud: a row of `REASONING_FORMATS`."""

    end: str
    """What ends the reasoning; a form begins behind it (`StructuredOutputs.after`)."""
    shown: frozenset[str]
    """As of `ToolFormat`."""

    def fits(self, template: str) -> bool:
        """Tell by a chat template's source whether the model thinks like this."""
        ...

    def opened(self, prompt: str) -> bool:
        """Tell by a rendered prompt whether the answer begins in the midst of reasoning."""
        ...

    def parser(self, rest: AnswerParser, *, opened: bool) -> AnswerParser:
        """Return what splits reasoning off; rest: reads all that is none."""
        ...


TOOL_FORMATS: dict[str, ToolFormat] = {}
"""By the name that --tool-call-parser takes."""

REASONING_FORMATS: dict[str, ReasoningFormat] = {}
"""By the name that --reasoning-parser takes."""


class PlainParser:
    """Takes all of an answer for content."""

    def push(self, text: str) -> Parsed:
        """Return it as it is."""
        return Parsed(content=text)

    def finish(self) -> Parsed:
        """Nothing was held back."""
        return Parsed()


class _Format(Protocol):
    def fits(self, template: str) -> bool: ...


_Row = TypeVar("_Row", bound=_Format)


def find_format(
    setting: str, name: str, rows: Mapping[str, _Row], template: str | None
) -> _Row | None:
    """Return a row by its name, or with auto the first that fits a template; None: none does.

    setting: which names it, for errors. Raises ConfigError for an unknown name.
    """
    if name == AUTO:
        return next((row for row in rows.values() if row.fits(template or "")), None)
    if name not in rows:
        known = ", ".join([AUTO, *rows])
        raise ConfigError(f"{setting} {name!r:.80} is not one of {known}")
    return rows[name]
