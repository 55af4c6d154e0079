"""How answers to conversations are read and held: what routes of every API add to their terms."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import count

import msgspec

from octavo.contract.sampling import SamplingParams
from octavo.contract.structured import StructuredOutputs
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.terms import Terms
from octavo.text.conversation import Turn
from octavo.text.formats.lowering import lowered
from octavo.text.formats.table import REASONING_FORMATS, TOOL_FORMATS, find_format
from octavo.text.parsing import (
    AnswerParser,
    OneCall,
    PlainParser,
    ReasoningFormat,
    ToolFormat,
)
from octavo.text.tokenizer import Tokenizer

_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Formats:
    """How a model writes calls and reasoning.

    tools, reasoning: None: it does not, as far as is known. lowers: its template knows no tools,
    and gets them in plain turns.
    """

    tokenizer: Tokenizer
    tools: ToolFormat | None
    reasoning: ReasoningFormat | None
    lowers: bool

    @classmethod
    def find(cls, tokenizer: Tokenizer, tools: str, reasoning: str) -> Formats:
        """Look rows up by their names. Raises ConfigError."""
        template = tokenizer.template
        source = template.source(tools=True)
        return cls(
            tokenizer,
            find_format("tool_call_parser", tools, TOOL_FORMATS, source),
            find_format("reasoning_parser", reasoning, REASONING_FORMATS, source),
            template.exists and not template.reads("tools"),
        )

    def turns(self, chat: ChatRequest) -> tuple[Turn, ...]:
        """Return what the template writes. Raises ApiError for tools that it has no words for."""
        if not self.lowers:
            return chat.turns
        calls = any(turn.calls or turn.role == "tool" for turn in chat.turns)
        if not (chat.tools or calls):
            return chat.turns
        if self.tools is None:
            name = "tools" if chat.tools else "messages"
            raise ApiError(
                400,
                f"{name}: the model's template knows no tools: a server started with "
                "--tool-call-parser can write them all the same",
                param=name,
            )
        return lowered(chat.turns, chat.tools, self.tools.spelling)

    def apply(
        self, chat: ChatRequest, prompt: str, params: SamplingParams, terms: Terms
    ) -> tuple[SamplingParams, Terms]:
        """Return options and terms with what tools and reasoning add. prompt: as rendered.

        Raises ApiError for a choice that the model has no words for.
        """
        reads = bool(chat.tools) and chat.tool_choice.mode != "none"
        if reads and self.tools is None:
            raise ApiError(
                400,
                "tools: it is not known how this model writes calls: start the server with "
                "--tool-call-parser",
                param="tools",
            )
        tools = self.tools if reads else None
        held = self._held(chat, prompt, params, tools)
        shown = frozenset[str]()
        for row in (tools, self.reasoning):
            shown |= frozenset() if row is None else row.shown
        if tools is None and self.reasoning is None:
            return held, terms
        parser = self._parsers(chat, prompt, terms.request_id or uuid.uuid4().hex, tools)
        ids = frozenset(self.tokenizer.special(shown).values())
        return held, replace(terms, parser=parser, shown=ids)

    def _parsers(
        self, chat: ChatRequest, prompt: str, name: str, tools: ToolFormat | None
    ) -> Callable[[], AnswerParser]:
        """Return what makes the parser of each answer, one after another."""
        names = frozenset(tool.name for tool in chat.tools)
        opened = self.reasoning is not None and self.reasoning.opened(prompt)
        seed = blake2b(f"{name}\0{prompt}".encode(), digest_size=_ID_BYTES).digest()
        answers = count()

        def parser() -> AnswerParser:
            rest: AnswerParser = PlainParser()
            if tools is not None:
                rest = tools.parser(names, _ids(tools, seed, next(answers)))
                if not chat.parallel_calls:
                    rest = OneCall(rest)
            return rest if self.reasoning is None else self.reasoning.parser(rest, opened=opened)

        return parser

    def _held(
        self, chat: ChatRequest, prompt: str, params: SamplingParams, tools: ToolFormat | None
    ) -> SamplingParams:
        form = params.structured_outputs
        thinks = self.reasoning is not None and not self.reasoning.closed(prompt)
        if tools is not None and chat.tool_choice.forces:
            if form is not None:
                raise ApiError(
                    400,
                    f"tool_choice: {chat.tool_choice.mode}: an answer of calls alone has no other "
                    "form: leave the other out, or let the model choose",
                    param="tool_choice",
                )
            form = self._calls(chat, tools, gap="\n\n" if thinks else "")
        if form is None:
            return params
        if thinks and self.reasoning is not None:
            form = msgspec.structs.replace(form, after=self.reasoning.end)
        return msgspec.structs.replace(params, structured_outputs=form)

    def _calls(self, chat: ChatRequest, row: ToolFormat, *, gap: str) -> StructuredOutputs:
        choice = chat.tool_choice
        tools = [
            tool for tool in chat.tools if choice.mode == "required" or tool.name == choice.name
        ]
        special = self.tokenizer.special(row.shown)
        several = chat.parallel_calls and choice.mode == "required"
        return StructuredOutputs(
            grammar=row.spelling.grammar(tools, special, several=several, gap=gap)
        )


def _ids(row: ToolFormat, seed: bytes, answer: int) -> Callable[[int], str]:
    def spell(call: int) -> str:
        digest = blake2b(b"%b %d %d" % (seed, answer, call), digest_size=_ID_BYTES)
        return row.spell_id(digest.hexdigest())

    return spell
