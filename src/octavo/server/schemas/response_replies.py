"""What `/v1/responses` answers: for the document alone, as in `schemas.replies`."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from octavo.server.schemas.replies import CacheReply, ChatToken, Reply

_Progress: TypeAlias = Literal["in_progress", "completed", "incomplete"]


class OutputText(Reply):
    """A text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[ChatToken]


class OutputMessage(Reply):
    """What the model says."""

    type: Literal["message"]
    id: str
    status: _Progress
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(Reply):
    """A text of what was thought."""

    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Reply):
    """What the model thinks."""

    type: Literal["reasoning"]
    id: str
    status: _Progress
    content: list[ReasoningText]
    summary: list[Any]


class OutputCall(Reply):
    """A call that the model makes."""

    type: Literal["function_call"]
    id: str
    status: _Progress
    call_id: str
    name: str
    arguments: str


class ResponseUsage(Reply):
    """What a response has used."""

    input_tokens: int
    input_tokens_details: dict[Literal["cached_tokens", "cache_write_tokens"], int]
    output_tokens: int
    output_tokens_details: dict[Literal["reasoning_tokens"], int]
    total_tokens: int
    cache: CacheReply | None = None


class ResponseReply(Reply):
    """A response, as far as it has come."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]
    error: dict[Literal["code", "message"], str] | None
    incomplete_details: dict[Literal["reason"], str] | None
    model: str
    output: list[OutputMessage | OutputReasoning | OutputCall]
    usage: ResponseUsage | None
    background: bool
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    parallel_tool_calls: bool
    previous_response_id: str | None
    reasoning: dict[str, None]
    store: bool
    temperature: float | None
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float | None
    truncation: Literal["disabled"]


class DeletedReply(Reply):
    """A response that has been forgotten."""

    id: str
    object: Literal["response"]
    deleted: bool
