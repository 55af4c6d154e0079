"""Answers as `/v1/messages` writes them."""

from __future__ import annotations

import json
from typing import Any, cast

import msgspec

from octavo.server import sse
from octavo.server.answers import Usage
from octavo.server.ask import Ask
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError, message_error
from octavo.server.outline import Outline, Part, Step


class TextBlock(msgspec.Struct, tag="text", frozen=True):
    """What the model says."""

    text: str = ""


class ThinkingBlock(msgspec.Struct, tag="thinking", frozen=True):
    """What the model thinks. Nothing is signed."""

    thinking: str = ""
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag="tool_use", frozen=True):
    """A call that the model makes."""

    id: str
    name: str
    input: dict[str, Any]


class BlockStart(msgspec.Struct, tag="content_block_start", frozen=True):
    """A block begins."""

    index: int
    content_block: TextBlock | ThinkingBlock | ToolUseBlock


class TextDelta(msgspec.Struct, tag="text_delta", frozen=True):
    """A text goes on."""

    text: str


class ThinkingDelta(msgspec.Struct, tag="thinking_delta", frozen=True):
    """The model thinks on."""

    thinking: str


class InputDelta(msgspec.Struct, tag="input_json_delta", frozen=True):
    """Arguments of a call go on."""

    partial_json: str


class BlockDelta(msgspec.Struct, tag="content_block_delta", frozen=True):
    """A block goes on."""

    index: int
    delta: TextDelta | ThinkingDelta | InputDelta


class BlockStop(msgspec.Struct, tag="content_block_stop", frozen=True):
    """A block has come to its end."""

    index: int


class MessagesForm:
    """A `Form`. model: as the client names it. marked: leading tokens that marks keep."""

    def __init__(self, message_id: str, model: str, *, marked: int = 0) -> None:
        self._id = message_id
        self._model = model
        self._marked = marked
        self._outline = Outline()
        self._stop: dict[str, object] = {"stop_reason": None, "stop_sequence": None}
        self._aborted = False

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        """Return the answer in one piece. Raises ApiError for one that was ended from outside."""
        (ask,) = asks
        self._take(ask.choices[0].take())
        if self._aborted:
            raise _ABORTED
        content = [_block(part) for part in self._outline.parts]
        return {**self._head(content), **self._stop, "usage": self._usage(usage)}

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return news of the answer as events; before the first, that it has begun."""
        opening = b""
        if piece.first:
            begun = {**self._head([]), **self._stop, "usage": self._usage(Usage.of([ask]))}
            opening = _event("message_start", message=begun)
        return opening + b"".join(self._take(piece))

    def end(self, usage: Usage | None) -> bytes:
        """Return the events that tell why it ended, and its usage."""
        assert usage is not None, "a message always tells its usage"
        if self._aborted:
            return self.broken(_ABORTED)
        told = _event("message_delta", delta=self._stop, usage=self._usage(usage))
        return told + _event("message_stop")

    def broken(self, error: ApiError) -> bytes:
        """Return what ends a stream that has failed."""
        return sse.named("error", message_error(error))

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _head(self, content: list[Any]) -> dict[str, object]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": content,
        }

    def _take(self, piece: Piece) -> list[bytes]:
        told = [self._step(step) for step in self._outline.take(piece)]
        if piece.finish is not None:
            told += [self._step(step) for step in self._outline.close()]
            self._end_by(piece)
        return told

    def _end_by(self, piece: Piece) -> None:
        stopped = piece.stop_reason if isinstance(piece.stop_reason, str) else None
        self._aborted = piece.finish == "abort"
        if piece.finish == "length":
            reason = "max_tokens"
        elif stopped is not None:
            reason = "stop_sequence"
        elif any(part.kind == "call" for part in self._outline.parts):
            reason = "tool_use"
        else:
            reason = "end_turn"
        self._stop = {"stop_reason": reason, "stop_sequence": stopped}

    def _step(self, step: Step) -> bytes:
        part = step.part
        match step.what:
            case "open":
                return _written(BlockStart(part.index, _block(part)))
            case "more":
                delta = {"text": TextDelta, "reasoning": ThinkingDelta, "call": InputDelta}
                return _written(BlockDelta(part.index, delta[part.kind](step.text)))
            case "close":
                return _written(BlockStop(part.index))

    def _usage(self, usage: Usage) -> dict[str, object]:
        read = usage.prompt_tokens_details["cached_tokens"]
        created = max(0, self._marked - read)
        told: dict[str, object] = {
            "input_tokens": usage.prompt_tokens - read - created,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": created,
            "output_tokens": usage.completion_tokens,
        }
        if usage.cache is not msgspec.UNSET:
            told["cache"] = usage.cache
        return told


_ABORTED = ApiError(503, "the answer was ended by whoever runs the server: send it again later")


def _event(name: str, **fields: object) -> bytes:
    return sse.named(name, {"type": name, **fields})


def _written(event: BlockStart | BlockDelta | BlockStop) -> bytes:
    return sse.named(str(event.__struct_config__.tag), event)


def _block(part: Part) -> TextBlock | ThinkingBlock | ToolUseBlock:
    match part.kind:
        case "text":
            return TextBlock(part.text)
        case "reasoning":
            return ThinkingBlock(part.text)
        case "call":
            return ToolUseBlock(part.call_id, part.name, _arguments(part.text))


def _arguments(text: str) -> dict[str, Any]:
    """Return a call's arguments; of one that was cut, none."""
    try:
        value: object = json.loads(text) if text else {}
    except ValueError:
        return {}
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
