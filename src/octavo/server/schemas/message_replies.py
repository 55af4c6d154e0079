"""What `/v1/messages` answers: for the document alone, as in `schemas.replies`."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel

from octavo.server.schemas.errors import Documented
from octavo.server.schemas.replies import CacheReply, Reply, replies


class TextBlockReply(Reply):
    """What the model says."""

    type: Literal["text"]
    text: str


class ThinkingBlockReply(Reply):
    """What the model thinks. Nothing is signed."""

    type: Literal["thinking"]
    thinking: str
    signature: Literal[""]


class ToolUseReply(Reply):
    """A call that the model makes."""

    type: Literal["tool_use"]
    id: str
    name: str
    input: dict[str, Any]


class MessageUsage(Reply):
    """What a message has used: the three of the input are together the prompt."""

    input_tokens: int
    cache_read_input_tokens: int
    cache_creation_input_tokens: int
    output_tokens: int
    cache: CacheReply | None = None


class MessageReply(Reply):
    """An answer."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    model: str
    content: list[TextBlockReply | ThinkingBlockReply | ToolUseReply]
    stop_reason: Literal["end_turn", "max_tokens", "stop_sequence", "tool_use"]
    stop_sequence: str | None
    usage: MessageUsage


class CountReply(Reply):
    """How many tokens a prompt has."""

    input_tokens: int


class MessageErrorBody(BaseModel):
    """What went wrong."""

    type: str
    message: str


class MessageErrorReply(BaseModel):
    """An error."""

    type: Literal["error"]
    error: MessageErrorBody


def message_replies(kind: type[Reply], *, streams: bool = False) -> Documented:
    """Return what the document says of a route's answers. streams: it can send events too."""
    error = {"model": MessageErrorReply, "description": "The request cannot be answered"}
    return {**replies(kind, streams=streams), "4XX": error, "5XX": error}
