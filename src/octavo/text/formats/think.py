"""Models that think aloud between two marks before they answer."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.text.formats.feed import Feed, GeneratorParser, Reading, Said
from octavo.text.parsing import AnswerParser, Parsed


@dataclass(frozen=True, slots=True)
class ThinkFormat:
    """A `ReasoningFormat` with two marks. Line ends just inside and behind them are no text."""

    start: str = "<think>"
    end: str = "</think>"

    @property
    def shown(self) -> frozenset[str]:
        """Both marks."""
        return frozenset((self.start, self.end))

    def fits(self, template: str) -> bool:
        """True for templates that know how reasoning ends."""
        return self.end in template

    def opened(self, prompt: str) -> bool:
        """True if the prompt ends in the beginning of reasoning."""
        return prompt.rstrip().endswith(self.start)

    def closed(self, prompt: str) -> bool:
        """True if the prompt ends behind reasoning: the answer has none."""
        return prompt.rstrip().endswith(self.end)

    def parser(self, rest: AnswerParser, *, opened: bool) -> AnswerParser:
        """Return what splits reasoning off."""
        return _ThinkParser(self, rest, opened=opened)


class _ThinkParser:
    """Reads up to the end of reasoning, and leaves all behind it to another parser."""

    def __init__(self, marks: ThinkFormat, rest: AnswerParser, *, opened: bool) -> None:
        self._rest = rest
        self._answer = ""
        """What is no reasoning."""
        self._reasoning = GeneratorParser(
            lambda feed, said: self._read(feed, said, marks, opened=opened), str
        )

    def push(self, text: str) -> Parsed:
        """Take more text; return what is certain now."""
        reasoning = self._reasoning.push(text).content
        return self._joined(reasoning, self._rest.push(self._take()))

    def finish(self) -> Parsed:
        """The text has ended; return the rest."""
        reasoning = self._reasoning.finish().content
        before = self._rest.push(self._take())
        after = self._rest.finish()
        return self._joined(
            reasoning, Parsed(before.content + after.content, "", before.calls + after.calls)
        )

    def _take(self) -> str:
        answer, self._answer = self._answer, ""
        return answer

    @staticmethod
    def _joined(reasoning: str, rest: Parsed) -> Parsed:
        return Parsed(rest.content, reasoning, rest.calls)

    def _read(self, feed: Feed, said: Said, marks: ThinkFormat, *, opened: bool) -> Reading[None]:
        before = yield from feed.spaces()
        if (yield from feed.begins(marks.start)) or opened:
            while (yield from feed.begins("\n")):
                pass
            if (yield from feed.upto((f"\n{marks.end}", marks.end), said.content)):
                while (yield from feed.begins("\n")):
                    pass
        else:
            self._answer += before
        while True:
            self._answer += feed.take(len(feed.text))
            if not (yield from feed.more()):
                return
