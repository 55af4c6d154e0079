"""ChatML as Hermes and Qwen write it: <tool_call>, a JSON object, </tool_call>."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.text.conversation import Tool
from octavo.text.formats.call_object import read_call
from octavo.text.formats.feed import Feed, GeneratorParser, Reading, Said
from octavo.text.formats.objects import ObjectSpelling
from octavo.text.parsing import AnswerParser, CallIds

OPEN, CLOSE = "<tool_call>", "</tool_call>"


class HermesFormat:
    """A `ToolFormat`. Several calls stand behind each other, a line end between them."""

    shown = frozenset((OPEN, CLOSE))
    spelling = ObjectSpelling(
        before=f"{OPEN}\n", after=f"\n{CLOSE}", between="\n", key="arguments", trigger=OPEN
    )

    def fits(self, template: str) -> bool:
        """True for templates that write such calls, and for ChatML, which says nothing of calls."""
        return OPEN in template or "<|im_start|>" in template

    def parser(self, tools: Mapping[str, Tool], ids: CallIds) -> AnswerParser:
        """Return what reads one answer."""
        names = frozenset(tools)
        return GeneratorParser(lambda feed, said: _read(feed, said, names), ids)

    def spell_id(self, digest: str) -> str:
        """Return an id of a call."""
        return f"call_{digest[:24]}"


def _read(feed: Feed, said: Said, names: frozenset[str]) -> Reading[None]:
    # A template puts one line end between what is said and the first call.
    while marker := (yield from feed.upto((f"\n{OPEN}", OPEN), said.content)):
        while marker:
            if not (yield from read_call(feed, said, names)):
                said.content(marker)
                break
            yield from feed.spaces()
            while (yield from feed.begins("}")):
                yield from feed.spaces()
            yield from feed.begins(CLOSE)
            gap = yield from feed.spaces()
            marker = yield from feed.begins(OPEN)
            if not marker and (feed.text or not feed.ended):
                said.content(gap)
            marker = gap + marker if marker else ""
