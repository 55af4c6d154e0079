"""One answer as it is written: its text, and what of it has not been sent."""

from __future__ import annotations

from dataclasses import dataclass, field

from octavo.contract.batch import Logprobs
from octavo.contract.request import FinishReason, Update
from octavo.engine.answer import AnswerText
from octavo.server.scored_text import Scored, ScoredText
from octavo.text.parsing import AnswerParser, CallPiece, Parsed


@dataclass(slots=True)
class Piece:
    """What has come of an answer since the last time."""

    first: bool = True
    """It is the answer's beginning."""
    text: str = ""
    """Without reasoning and calls, where a parser reads them."""
    reasoning: str = ""
    calls: list[CallPiece] = field(default_factory=list[CallPiece])
    parsed: list[Parsed] = field(default_factory=list[Parsed])
    """The same three in the order in which they came; empty where no parser reads them."""
    scored: list[Scored] = field(default_factory=list[Scored])
    """The tokens of each of their texts, if they are told with the text."""
    tokens: list[int] = field(default_factory=list[int])
    logprobs: list[Logprobs] = field(default_factory=list[Logprobs])
    """One for each of the tokens, if asked for."""
    finish: str | None = None
    stop_reason: str | int | None = None
    applied_s: float = 0.0
    """When the last step that it is from was applied."""

    def __bool__(self) -> bool:
        return bool(self.text or self.tokens or self.finish or self.reasoning or self.calls)

    def add(self, parsed: Parsed) -> None:
        """Append what has been read."""
        self.text += parsed.content
        self.reasoning += parsed.reasoning
        self.calls += parsed.calls
        self.parsed.append(parsed)


class Choice:
    """One of the answers to a prompt.

    index: among all answers of the HTTP request. silent: what is computed is not told. kept: its
    whole text stands in `said`, as the model wrote it. parser: reads reasoning and calls out of it.
    scores: follows which tokens its text is from; None: nobody asks.
    """

    __slots__ = (
        "_answer",
        "_kept",
        "_parser",
        "_piece",
        "_scores",
        "_silent",
        "cached_tokens",
        "calls",
        "error",
        "finish",
        "index",
        "last_s",
        "refused",
        "said",
        "thought",
        "tokens",
        "waits",
    )

    def __init__(
        self,
        index: int,
        answer: AnswerText,
        *,
        silent: bool = False,
        kept: bool = False,
        parser: AnswerParser | None = None,
        scores: ScoredText | None = None,
    ) -> None:
        self.index = index
        self.tokens = 0
        """Of the answer so far."""
        self.thought = 0
        """Tokens of the answer with which reasoning has come: those of its markers are none."""
        self.finish: str | None = None
        self.error: str | None = None
        """What went wrong, if that ended it."""
        self.refused = False
        """Its own options are at fault."""
        self.cached_tokens: int | None = None
        self.last_s: float | None = None
        """When its last tokens came."""
        self.waits = False
        """It stands in the list of those that have something to send."""
        self.said = ""
        """All of its text so far, if it is kept."""
        self.calls = 0
        """Of tools, so far."""
        self._kept = kept
        self._parser = parser
        self._scores = scores
        self._silent = silent
        self._answer = answer
        self._piece = Piece()

    @property
    def unsent(self) -> int:
        """Tokens that have not been taken yet."""
        return len(self._piece.tokens)

    def push(self, update: Update, applied_s: float) -> bool:
        """Take in news; returns True if a stop string has ended the text, which nobody else knows.

        Must not be called once `finish` is set.
        """
        piece = self._piece
        piece.applied_s = applied_s
        finish, reason = update.finish, update.stop_token
        text = self._answer.push(update)
        stopped = self._answer.stopped is not None
        if stopped:
            reason = self._answer.stopped
        if self.cached_tokens is None:
            self.cached_tokens = update.cached_tokens
        if not self._silent:
            self.tokens += len(update.tokens)
            if self._scores is not None:
                self._scores.push(update.tokens, update.logprobs)
            self._say(text, len(update.tokens), cut=stopped)
            piece.tokens += update.tokens
            piece.logprobs += update.logprobs
            if self._kept:
                self.said += text
        if finish is not None or stopped:
            self.finish = FinishReason.STOP.value if stopped or finish is None else finish.value
            if self._silent:
                # As it would be after no token.
                self.finish, reason = FinishReason.LENGTH.value, None
            self._close(cut=stopped)
            self.error, self.refused = update.error, update.refused
            piece.finish = self.finish
            piece.stop_reason = update.error if update.refused else reason
        return stopped and finish is None

    def end(self, finish: str) -> None:
        """End it from outside."""
        self._close()
        self.finish = self._piece.finish = finish

    def take(self) -> Piece:
        """Return what has come since the last time."""
        piece, self._piece = self._piece, Piece(first=False)
        return piece

    def _say(self, text: str, tokens: int, *, cut: bool) -> None:
        if self._parser is not None:
            if text:
                parsed = self._parser.push(text)
                self._take_in(parsed, cut=cut)
                if parsed.reasoning:
                    self.thought += tokens
        elif self._scores is not None:
            self._take_in(Parsed(text), cut=cut)
        else:
            self._piece.text += text

    def _close(self, *, cut: bool = False) -> None:
        """Let go of what the parser has held back."""
        if self._parser is not None:
            self._take_in(self._parser.finish(), cut=cut)
            self._parser = None

    def _take_in(self, parsed: Parsed, *, cut: bool) -> None:
        self._piece.add(parsed)
        self.calls += sum(1 for call in parsed.calls if call.name)
        if self._scores is None:
            return
        scored: Scored = ()
        if parsed.content:
            scored = self._scores.take(parsed.content, cut=cut)
        elif parsed.reasoning or parsed.calls:
            self._scores.drop()
        self._piece.scored.append(scored)
