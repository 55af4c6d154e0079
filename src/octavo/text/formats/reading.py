"""How one model writes calls and reasoning: what every API does with tools before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

import msgspec

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.text.conversation import AUTOMATIC, Tool, ToolChoice, Turn
from octavo.text.formats.lowering import lowered, one_by_one
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


class ToolUse(msgspec.Struct, frozen=True, kw_only=True):
    """The tools of a conversation, and what is to be done with them."""

    tools: tuple[Tool, ...] = ()
    choice: ToolChoice = AUTOMATIC
    parallel: bool = True
    """More than one call may stand in an answer."""

    def __post_init__(self) -> None:
        seen = set[str]()
        for tool in self.tools:
            if tool.name in seen:
                raise RequestError(f"tools: {tool.name!r} is there twice")
            seen.add(tool.name)
        choice = self.choice
        if choice.forces and not self.tools:
            raise RequestError(f"tool_choice: {choice.mode}, but there are no tools")
        if choice.mode == "named" and choice.name not in seen:
            raise RequestError(f"tool_choice: {choice.name!r:.80} is none of the tools")

    @property
    def callable(self) -> dict[str, Tool]:
        """What an answer may call, by name."""
        return {} if self.choice.mode == "none" else {tool.name: tool for tool in self.tools}

    @property
    def forced(self) -> list[Tool]:
        """The tools of which one must be called; empty: none must."""
        if not self.choice.forces:
            return []
        named = self.choice.mode == "named"
        return [tool for tool in self.tools if not named or tool.name == self.choice.name]


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

    def turns(self, turns: tuple[Turn, ...], tools: tuple[Tool, ...]) -> tuple[Turn, ...]:
        """Return what the template writes. Raises RequestError for what it has no words for."""
        calls = any(turn.calls or turn.role == "tool" for turn in turns)
        if not self.lowers or not (tools or calls):
            single = self.tools is not None and self.tools.spelling.single
            return one_by_one(turns) if single and calls else turns
        if self.tools is None:
            raise RequestError(
                f"{'tools' if tools else 'messages'}: the model's template knows no tools: with "
                "--tool-call-parser it can be asked all the same"
            )
        return lowered(turns, tools, self.tools.spelling)

    def form(
        self, use: ToolUse, prompt: str, form: StructuredOutputs | None
    ) -> StructuredOutputs | None:
        """Return the form of answers, given the one that was asked for beside tools.

        prompt: as rendered. Raises RequestError for two forms at once.
        """
        thinks = self.reasoning is not None and not self.reasoning.closed(prompt)
        if use.forced and form is not None:
            raise RequestError(
                f"tool_choice: {use.choice.mode}: an answer of calls alone has no other form: "
                "leave the other out, or let the model choose"
            )
        grammar = self._grammar(use, gap="\n\n" if thinks else "")
        if grammar is not None and form is None:
            # Grammars of another library are spelled in another way.
            form = StructuredOutputs(grammar=grammar, backend="llguidance")
        if form is None or not thinks or self.reasoning is None:
            return form
        return msgspec.structs.replace(form, after=self.reasoning.end)

    def _grammar(self, use: ToolUse, *, gap: str) -> str | None:
        """Return the grammar of calls; None: nothing holds them."""
        strict = bool(use.callable) and any(tool.strict for tool in use.tools)
        if not (use.forced or strict):
            return None
        row = self._known(use)
        added = self.tokenizer.added(row.shown)
        if use.forced:
            several = use.parallel and use.choice.mode == "required"
            return row.spelling.grammar(use.forced, added, several=several, gap=gap)
        return row.spelling.free_grammar([*use.tools], added)

    def shown(self, use: ToolUse) -> frozenset[int]:
        """Return special tokens that parsers must see."""
        texts = frozenset[str]() if self.reasoning is None else self.reasoning.shown
        if use.callable:
            texts |= self._known(use).shown
        return frozenset(self.tokenizer.special(texts).values())

    def parsers(self, use: ToolUse, prompt: str, name: str) -> Callable[[], AnswerParser] | None:
        """Return what makes the parser of each answer, one after another; None: nothing is read.

        name: of the request: ids of calls follow from it and the prompt. Raises RequestError.
        """
        row = self._known(use) if use.callable else None
        reasoning = self.reasoning
        if row is None and reasoning is None:
            return None
        opened = reasoning is not None and reasoning.opened(prompt)
        seed = blake2b(f"{name}\0{prompt}".encode(), digest_size=_ID_BYTES).digest()
        answers = count()

        def parser() -> AnswerParser:
            rest: AnswerParser = PlainParser()
            if row is not None:
                rest = row.parser(use.callable, _ids(row, seed, next(answers)))
                if not use.parallel:
                    rest = OneCall(rest)
            return rest if reasoning is None else reasoning.parser(rest, opened=opened)

        return parser

    def _known(self, use: ToolUse) -> ToolFormat:
        if self.tools is None:
            raise RequestError(
                "tools: it is not known how this model writes calls: name it with "
                "--tool-call-parser"
            )
        return self.tools


def _ids(row: ToolFormat, seed: bytes, answer: int) -> Callable[[int], str]:
    def spell(call: int) -> str:
        digest = blake2b(b"%b %d %d" % (seed, answer, call), digest_size=_ID_BYTES)
        return row.spell_id(digest.hexdigest())

    return spell
