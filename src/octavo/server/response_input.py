"""From the items of `/v1/responses` to turns of a conversation."""

from __future__ import annotations

import msgspec

from octavo.server.schemas.responses import (
    Contents,
    InputCall,
    InputCallOutput,
    InputItem,
    InputMessage,
    InputReasoning,
    TextContent,
)
from octavo.text.conversation import ToolCall, Turn


def turns_of(given: str | list[InputItem]) -> tuple[Turn, ...]:
    """Return what the items say.

    What a model thought, said and called before it was answered is one turn.
    """
    if isinstance(given, str):
        return (Turn(role="user", content=given),)
    turns = _Turns()
    for item in given:
        turns.add(item)
    return turns.end()


class _Turns:
    def __init__(self) -> None:
        self._turns: list[Turn] = []
        self._thought = ""
        """What has been thought ahead of the next item."""

    def add(self, item: InputItem) -> None:
        match item:
            case InputMessage():
                self._say(item)
            case InputReasoning():
                self._thought += _text(item.content or item.summary or [])
            case InputCall():
                self._call(item)
            case InputCallOutput():
                self._end_thought()
                said = _text(item.output)
                self._turns.append(Turn(role="tool", content=said, call_id=item.call_id))

    def end(self) -> tuple[Turn, ...]:
        self._end_thought()
        return tuple(self._turns)

    def _say(self, item: InputMessage) -> None:
        # Templates know it by its older name.
        role = "system" if item.role == "developer" else item.role
        if role != "assistant":
            self._end_thought()
        turn = Turn(role=role, content=_text(item.content), reasoning=self._thought or None)
        self._thought = ""
        self._turns.append(turn)

    def _call(self, item: InputCall) -> None:
        call = ToolCall(id=item.call_id, name=item.name, arguments=item.arguments)
        last = self._turns[-1] if self._turns else None
        if last is None or last.role != "assistant" or self._thought:
            last = Turn(role="assistant", reasoning=self._thought or None)
            self._thought = ""
            self._turns.append(last)
        self._turns[-1] = msgspec.structs.replace(last, calls=(*last.calls, call))

    def _end_thought(self) -> None:
        """The answer was cut before anything was said."""
        if self._thought:
            self._turns.append(Turn(role="assistant", reasoning=self._thought))
            self._thought = ""


def _text(content: Contents | list[TextContent]) -> str:
    return content if isinstance(content, str) else "".join(part.text for part in content)
