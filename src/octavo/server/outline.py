"""The parts of one answer in the order in which they come: what is thought, said and called.

Newer APIs tell an answer as a list of parts, each opened, filled and closed. How the text was cut
into pieces makes no difference: a stream, put together, is the list that comes in one piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from octavo.server.choice import Piece
from octavo.server.scored_text import Scored
from octavo.text.conversation import ToolCall, Turn
from octavo.text.parsing import CallPiece, Parsed

Kind: TypeAlias = Literal["reasoning", "text", "call"]


@dataclass(slots=True)
class Part:
    """One part, as far as it has come."""

    kind: Kind
    index: int
    """Among all parts of the answer."""
    call_id: str = ""
    name: str = ""
    """Of the tool that is called."""
    pieces: list[str] = field(default_factory=list[str])
    closed: bool = False

    @property
    def text(self) -> str:
        """All of it so far: of a call, its arguments."""
        return "".join(self.pieces)


@dataclass(frozen=True, slots=True)
class Step:
    """What happens to a part. text: with more, what it goes on with; scored: of these tokens."""

    what: Literal["open", "more", "close"]
    part: Part
    text: str = ""
    scored: Scored = ()


class Outline:
    """Parts that follow one another; a part is closed before the next one is opened.

    White space opens none: it goes before the text of its kind that follows, or is dropped if
    something else comes first. An answer that holds nothing else has it as its only text.
    """

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self._open: Part | None = None
        self._blank: dict[Kind, str] = {}
        """White space that waits for a text of its kind."""
        self._blank_scored: Scored = ()
        """The tokens of what waits for a text."""

    def take(self, piece: Piece) -> Iterator[Step]:
        """Take in news of the answer; yields what they change, which must be read to its end."""
        scored = iter(piece.scored)
        for parsed in piece.parsed or (Parsed(piece.text),):
            yield from self._say("reasoning", parsed.reasoning)
            yield from self._say("text", parsed.content, next(scored, ()))
            for call in parsed.calls:
                yield from self._call(call)

    def close(self) -> Iterator[Step]:
        """End the answer; yields what that changes."""
        blank, scored = self._blank.get("text", ""), self._blank_scored
        if not self.parts and blank:
            yield from self._begin("text")
            yield self._more(blank, scored)
        yield from self._end()

    def turn(self) -> Turn:
        """Return the answer as a history has it."""
        said: dict[Kind, list[str]] = {"reasoning": [], "text": []}
        for part in self.parts:
            if part.kind != "call":
                said[part.kind].append(part.text)
        calls = tuple(
            ToolCall(id=part.call_id, name=part.name, arguments=part.text)
            for part in self.parts
            if part.kind == "call"
        )
        return Turn(
            role="assistant",
            content="".join(said["text"]),
            reasoning="".join(said["reasoning"]) or None,
            calls=calls,
        )

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _say(self, kind: Kind, text: str, scored: Scored = ()) -> Iterator[Step]:
        if not text:
            return
        if self._open is None or self._open.kind != kind:
            text = self._blank.get(kind, "") + text
            if kind == "text":
                scored = self._blank_scored + scored
            if text.isspace():
                self._blank[kind] = text
                if kind == "text":
                    self._blank_scored = scored
                return
            yield from self._begin(kind)
        yield self._more(text, scored)

    def _call(self, call: CallPiece) -> Iterator[Step]:
        if call.name:
            yield from self._begin("call", call.id, call.name)
        if call.arguments:
            yield self._more(call.arguments)

    def _begin(self, kind: Kind, call_id: str = "", name: str = "") -> Iterator[Step]:
        yield from self._end()
        self._blank.clear()
        self._blank_scored = ()
        self._open = Part(kind, len(self.parts), call_id, name)
        self.parts.append(self._open)
        yield Step("open", self._open)

    def _more(self, text: str, scored: Scored = ()) -> Step:
        assert self._open is not None, "arguments came before the name of their call"
        self._open.pieces.append(text)
        return Step("more", self._open, text, scored)

    def _end(self) -> Iterator[Step]:
        if self._open is not None:
            self._open.closed = True
            yield Step("close", self._open)
            self._open = None
