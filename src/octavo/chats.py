"""Conversations of the offline API: messages and tools to prompts, answers to calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from octavo.contract.request import FinishReason, Update
from octavo.contract.sampling import SamplingParams
from octavo.engine.answer import AnswerText
from octavo.errors import RequestError
from octavo.prompts import Prompt, several
from octavo.results import CompletionOutput, RequestOutput
from octavo.text.conversation import AUTOMATIC, Tool, ToolCall, ToolChoice, Turn
from octavo.text.formats.reading import Formats, ToolUse
from octavo.text.parsing import AnswerParser, CallPiece, Parsed
from octavo.text.template import up_to_message
from octavo.text.tokenizer import Tokenizer
from octavo.text.unicode import check_unicode

_FIELDS = frozenset(
    {"role", "content", "name", "reasoning", "reasoning_content", "tool_calls", "tool_call_id"}
)


class Chats:
    """Some conversations that are answered together, with the same tools.

    tool_call_parser, reasoning_parser: how the model writes calls and reasoning. Raises
    ConfigError for one that there is not.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        use: ToolUse | None = None,
        *,
        tool_call_parser: str = "auto",
        reasoning_parser: str = "auto",
    ) -> None:
        self._tokenizer = tokenizer
        self._use = use or ToolUse()
        self._formats = Formats.find(tokenizer, tool_call_parser, reasoning_parser)
        self._texts: list[str] = []
        """Of all prompts, in their order."""

    def prompt(
        self,
        messages: object,
        variables: Mapping[str, object],
        *,
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> Prompt:
        """Render one conversation. Raises RequestError."""
        if continue_final_message and add_generation_prompt:
            raise RequestError(
                "continue_final_message: add_generation_prompt would end that message: make it "
                "False"
            )
        turns = conversation(messages)
        tools = self._use.tools
        more = dict(variables)
        if tools and not self._formats.lowers:
            more["tools"] = [tool.for_template() for tool in tools]
        text = self._tokenizer.apply_chat_template(
            [turn.for_template() for turn in self._formats.turns(turns, tools)],
            add_generation_prompt=add_generation_prompt,
            **more,
        )
        if continue_final_message:
            text = up_to_message(text, turns[-1].content)
        self._texts.append(text)
        return {"prompt_token_ids": self._tokenizer.encode(text, add_special_tokens=False)}

    def held(self, params: object) -> list[SamplingParams]:
        """Return the options of each prompt, with the form that its calls must have.

        What is no option, or one too many, is left for the engine to refuse.
        """
        if params is None or isinstance(params, SamplingParams):
            given: list[object] = [params or SamplingParams()] * len(self._texts)
        else:
            given = several(params, "sampling_params")
        texts = [*self._texts, *[""] * len(given)]
        return [
            self._held(text, one) if isinstance(one, SamplingParams) else cast("Any", one)
            for text, one in zip(texts, given, strict=False)
        ]

    def _held(self, text: str, params: SamplingParams) -> SamplingParams:
        form = self._formats.form(self._use, text, params.structured_outputs)
        if form is params.structured_outputs:
            return params
        return msgspec.structs.replace(params, structured_outputs=form)

    def read(self, results: list[RequestOutput], params: list[SamplingParams]) -> None:
        """Tell reasoning and calls of all answers from what else they say."""
        for number, (result, given) in enumerate(zip(results, params, strict=True)):
            self.reading(number, result, given).read(result)

    def reading(self, number: int, result: RequestOutput, params: SamplingParams) -> Reading:
        """Return what reads the answers to one of the conversations, as they come."""
        parsers = self._formats.parsers(self._use, self._texts[number], result.request_id)
        shown = self._formats.shown(self._use)

        def text() -> AnswerText | None:
            return AnswerText(self._tokenizer, params, shown=shown) if shown else None

        return Reading(
            [None if parsers is None else _Answer(parsers(), text()) for _ in result.outputs]
        )


class Reading:
    """Tells reasoning and calls of the answers to one conversation from what else they say.

    answers: what reads each; None: all of it is content.
    """

    def __init__(self, answers: list[_Answer | None]) -> None:
        self._answers = answers

    def read(self, result: RequestOutput) -> None:
        """Complete a result that has grown since the last time, or another one that goes on."""
        for output, answer in zip(result.outputs, self._answers, strict=True):
            if answer is None:
                output.content = output.text
            else:
                answer.read(output)


class _Answer:
    """Reads one answer. text: spells it with special tokens that the parser must see, if any."""

    def __init__(self, parser: AnswerParser, text: AnswerText | None) -> None:
        self._parser = parser
        self._text = text
        self._known = 0
        """Tokens that have been spelled; without `text`, characters that have been read."""
        self._ended = False
        self._parts: list[Parsed] = []

    def read(self, output: CompletionOutput) -> None:
        said = self._new(output)
        if said:
            self._parts.append(self._parser.push(said))
        if output.finish_reason is not None and not self._ended:
            self._ended = True
            self._parts.append(self._parser.finish())
        output.content = "".join(part.content for part in self._parts)
        output.reasoning = "".join(part.reasoning for part in self._parts) or None
        output.tool_calls = _whole([call for part in self._parts for call in part.calls])

    def _new(self, output: CompletionOutput) -> str:
        """Return the text that has come since the last time."""
        known = self._known
        if self._text is None:
            self._known = len(output.text)
            return output.text[known:]
        if self._ended:
            return ""
        self._known = len(output.token_ids)
        finish = None
        if output.finish_reason is not None:
            by_token = output.finish_reason == "stop" and not isinstance(output.stop_reason, str)
            finish = FinishReason.STOP if by_token else FinishReason.LENGTH
        tokens = tuple(output.token_ids[known:])
        return self._text.push(Update("", output.index, tokens, finish=finish))


def tool_use(tools: object, choice: object, *, parallel: bool) -> ToolUse:
    """Read tools as the OpenAI API writes them. Raises RequestError."""
    return ToolUse(
        tools=tuple(map(_tool, () if tools is None else several(tools, "tools"))),
        choice=_choice(choice),
        parallel=parallel,
    )


def _tool(given: object) -> Tool:
    if isinstance(given, Tool):
        return given
    fields = _object("tools", given, {"type", "function"})
    function = _object("tools", fields.get("function"), set(Tool.__struct_fields__))
    known = {name: value for name, value in function.items() if value is not None}
    try:
        return msgspec.convert(known, Tool)
    except msgspec.ValidationError as error:
        raise RequestError(f"tools: {error}") from None


def _choice(given: object) -> ToolChoice:
    if given is None:
        return AUTOMATIC
    if given in ("auto", "none", "required"):
        return ToolChoice(given)
    fields = _object("tool_choice", given, {"type", "function"})
    function = _object("tool_choice", fields.get("function"), {"name"})
    return ToolChoice("named", str(function.get("name")))


def _object(name: str, given: object, known: set[str]) -> Mapping[str, object]:
    fields = cast("Mapping[str, object]", given) if isinstance(given, Mapping) else None
    if fields is None or not fields.keys() <= known:
        raise RequestError(f"{name}: an object with {', '.join(sorted(known))}, got {given!r:.120}")
    return fields


def conversation(messages: object) -> tuple[Turn, ...]:
    """Check one conversation for the chat template; parts of text are joined.

    Raises RequestError for anything but messages with a role and a text, or calls.
    """
    turns = tuple(map(_turn, several(messages, "messages")))
    if not turns:
        raise RequestError("the conversation is empty: it must have at least one message")
    return turns


def _turn(message: object) -> Turn:
    if not isinstance(message, Mapping):
        raise RequestError(f"a message is a dict with 'role' and 'content', got {message!r:.80}")
    given = cast("Mapping[str, object]", message)
    fields = {name: value for name, value in given.items() if value is not None}
    unknown = fields.keys() - _FIELDS
    if unknown:
        raise RequestError(f"{min(map(str, unknown))!r} is no field of a message: leave it out")
    role, content = (
        fields.get("role"),
        fields.get("content", "" if "tool_calls" in fields else None),
    )
    if isinstance(content, list):
        content = _joined(cast("list[object]", content))
    if not isinstance(role, str) or not isinstance(content, str):
        raise RequestError(
            "a message needs a text as 'role' and a text, or parts of text, as 'content', got "
            f"{dict(given)!r:.120}"
        )
    check_unicode(content, f"the {role} message")
    return Turn(
        role=role,
        content=content,
        name=_text(fields, "name"),
        reasoning=_text(fields, "reasoning") or _text(fields, "reasoning_content"),
        calls=tuple(map(_call, several(fields.get("tool_calls", ()), "tool_calls"))),
        call_id=_text(fields, "tool_call_id"),
    )


def _text(fields: Mapping[str, object], name: str) -> str | None:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError(f"{name!r} of a message must be a text, got {value!r:.80}")
    return value


def _call(given: object) -> ToolCall:
    if isinstance(given, ToolCall):
        return given
    fields = _object("tool_calls", given, {"id", "type", "function", "index"})
    function = _object("tool_calls", fields.get("function"), {"name", "arguments"})
    name, arguments = function.get("name"), function.get("arguments")
    if not isinstance(name, str) or not isinstance(arguments, str):
        raise RequestError(
            f"tool_calls: a call has a name and arguments as text, got {given!r:.120}"
        )
    return ToolCall(id=str(fields.get("id", "")), name=name, arguments=arguments)


def _joined(parts: list[object]) -> str | None:
    """Join parts of text, the form {"type": "text", "text": …}; None: there is another part."""
    texts: list[str] = []
    for part in parts:
        fields = cast("Mapping[str, object]", part) if isinstance(part, Mapping) else {}
        text = fields.get("text") if fields.get("type") == "text" else None
        if not isinstance(text, str):
            return None
        texts.append(text)
    return "".join(texts)


def _whole(pieces: list[CallPiece]) -> tuple[ToolCall, ...]:
    """Return calls of which all pieces are there."""
    return tuple(
        ToolCall(
            id=piece.id,
            name=piece.name,
            arguments="".join(one.arguments for one in pieces if one.index == piece.index),
        )
        for piece in pieces
        if piece.name
    )
