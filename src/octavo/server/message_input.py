"""From the blocks of `/v1/messages` to turns of a conversation."""

from __future__ import annotations

import json
from collections.abc import Mapping

from octavo.server.cache_wishes import CacheMark
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.schemas.messages import (
    CacheControl,
    CountTokensBody,
    MessageGiven,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from octavo.text.conversation import ToolCall, Turn

MOST_MARKS = 4
"""Of a request, as the API has it."""
THINKS = "enable_thinking"
"""The variable by which templates are told whether to let the model think."""


def conversation_of(body: CountTokensBody, known: Mapping[str, object]) -> ChatRequest:
    """Return what is to be continued. known: variables that the server gives the template.

    Raises ApiError.
    """
    turns = _Turns()
    for tool in body.tools or ():
        turns.mark(tool.cache_control, at=0)
    if body.system is not None:
        turns.system(body.system)
    for message in body.messages:
        turns.add(message)
    turns.mark(body.cache_control, at=len(turns.all))
    last = turns.all[-1]
    if last.role == "assistant" and last.calls:
        raise ApiError(
            400,
            f"messages: the last is the call {last.calls[-1].id!r:.80}: send what came of it",
            param="messages",
        )
    return ChatRequest(
        turns=tuple(turns.all),
        tools=tuple(tool.tool() for tool in body.tools or ()),
        tool_choice=body.choice,
        parallel_calls=body.parallel,
        variables={**_thinks(body, known), **(body.chat_template_kwargs or {})},
        continue_final_turn=last.role == "assistant",
        marks=turns.marks(),
    )


def _thinks(body: CountTokensBody, known: Mapping[str, object]) -> dict[str, object]:
    if body.thinking is None:
        # As the API has it, unless whoever runs the server says otherwise.
        return {} if THINKS in known else {THINKS: False}
    return {THINKS: body.thinking.type != "disabled"}


class _Turns:
    def __init__(self) -> None:
        self.all: list[Turn] = []
        self._marks: dict[int, CacheMark] = {}

    def marks(self) -> tuple[CacheMark, ...]:
        """Return them by place. Raises ApiError for too many."""
        if len(self._marks) > MOST_MARKS:
            raise ApiError(
                400,
                f"cache_control: at most {MOST_MARKS} places of a request, got {len(self._marks)}",
                param="cache_control",
            )
        return tuple(self._marks[place] for place in sorted(self._marks))

    def mark(self, control: CacheControl | None, *, at: int) -> None:
        if control is not None:
            self._marks[at] = CacheMark(at, control.wish())

    def system(self, given: str | list[TextBlock]) -> None:
        blocks = [] if isinstance(given, str) else given
        text = given if isinstance(given, str) else "\n\n".join(block.text for block in given)
        if text:
            self.all.append(Turn(role="system", content=text))
        for block in blocks:
            self.mark(block.cache_control, at=len(self.all))

    def add(self, message: MessageGiven) -> None:
        if isinstance(message.content, str):
            self.all.append(Turn(role=message.role, content=message.content))
        elif not message.content:
            raise ApiError(400, "messages: content is empty", param="messages")
        elif message.role == "user":
            self._ask(message)
        else:
            self._answer(message)

    def _ask(self, message: MessageGiven) -> None:
        """What came of calls is a turn each; texts that follow one another are one."""
        text = list[str]()
        marked: CacheControl | None = None

        def end() -> None:
            nonlocal marked
            if text:
                self.all.append(Turn(role=message.role, content="".join(text)))
                text.clear()
                self.mark(marked, at=len(self.all))
                marked = None

        for block in message.content:
            match block:
                case TextBlock():
                    text.append(block.text)
                    marked = block.cache_control or marked
                case ToolResultBlock():
                    end()
                    said = _text(block.content)
                    self.all.append(Turn(role="tool", content=said, call_id=block.tool_use_id))
                    self.mark(block.cache_control, at=len(self.all))
                case _:
                    raise _misplaced(message)
        end()

    def _answer(self, message: MessageGiven) -> None:
        text, thought, calls = list[str](), list[str](), list[ToolCall]()
        marked: CacheControl | None = None
        for block in message.content:
            match block:
                case TextBlock():
                    text.append(block.text)
                case ThinkingBlock():
                    thought.append(block.thinking)
                    continue
                case ToolUseBlock():
                    # As a call's arguments came: in the order of the client.
                    arguments = json.dumps(block.input, ensure_ascii=False)
                    calls.append(ToolCall(id=block.id, name=block.name, arguments=arguments))
                case _:
                    raise _misplaced(message)
            marked = block.cache_control or marked
        self.all.append(
            Turn(
                role=message.role,
                content="".join(text),
                reasoning="".join(thought) or None,
                calls=tuple(calls),
            )
        )
        self.mark(marked, at=len(self.all))


def _text(content: str | list[TextBlock] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "".join(block.text for block in content)


def _misplaced(message: MessageGiven) -> ApiError:
    return ApiError(
        400,
        "messages: calls and thoughts are the assistant's, and what came of calls is the user's: "
        f"a message of {message.role} has another's",
        param="messages",
    )
