"""Llama 3.1 and later: a bare JSON object, or one behind <|python_tag|>."""

from __future__ import annotations

from collections.abc import Mapping

from octavo.text.conversation import Tool
from octavo.text.formats.call_object import read_call
from octavo.text.formats.feed import Feed, GeneratorParser, Reading, Said
from octavo.text.formats.objects import ObjectSpelling
from octavo.text.parsing import AnswerParser, CallIds

TAG = "<|python_tag|>"


class Llama3Format:
    """A `ToolFormat`. Calls begin the answer, or stand behind the tag."""

    shown = frozenset((TAG,))
    spelling = ObjectSpelling(
        before="",
        after="",
        between="; ",
        key="parameters",
        trigger=TAG,
        single=True,
        bare=True,
    )

    def fits(self, template: str) -> bool:
        """True for templates that speak of the tag, or write parameters."""
        return TAG in template or ("<|start_header_id|>" in template and "parameters" in template)

    def parser(self, tools: Mapping[str, Tool], ids: CallIds) -> AnswerParser:
        """Return what reads one answer."""
        names = frozenset(tools)
        return GeneratorParser(lambda feed, said: _read(feed, said, names), ids)

    def spell_id(self, digest: str) -> str:
        """Return an id of a call."""
        return f"call_{digest[:24]}"


def _read(feed: Feed, said: Said, names: frozenset[str]) -> Reading[None]:
    before = yield from feed.spaces()
    marker = yield from feed.begins(TAG)
    while True:
        while (yield from read_call(feed, said, names)):
            before = yield from feed.spaces()
            before += yield from feed.begins(";")
            before += yield from feed.spaces()
            marker = yield from feed.begins(TAG)
        if feed.text or not feed.ended or marker:
            said.content(before + marker)
        before = ""
        marker = yield from feed.upto((TAG,), said.content)
        if not marker:
            return
