"""What `/v1/responses` writes: items of an answer, and the events that tell of them."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from octavo.server import sse
from octavo.server.failures import ApiError

Progress: TypeAlias = Literal["in_progress", "completed", "incomplete"]
Scores: TypeAlias = tuple[msgspec.Raw, ...]
"""Log-probabilities of tokens, each as JSON: they are written once, and told several times."""


class TextPart(msgspec.Struct, tag="output_text", frozen=True):
    """A text of a message."""

    text: str
    annotations: tuple[()] = ()
    logprobs: Scores = ()


class ReasoningPart(msgspec.Struct, tag="reasoning_text", frozen=True):
    """A text of what was thought."""

    text: str


class MessageItem(msgspec.Struct, tag="message", frozen=True):
    """What the model says."""

    id: str
    status: Progress
    content: tuple[TextPart, ...] = ()
    role: str = "assistant"


class ReasoningItem(msgspec.Struct, tag="reasoning", frozen=True):
    """What the model thinks."""

    id: str
    status: Progress
    content: tuple[ReasoningPart, ...] = ()
    summary: tuple[()] = ()


class CallItem(msgspec.Struct, tag="function_call", frozen=True):
    """A call that the model makes."""

    id: str
    status: Progress
    call_id: str
    name: str
    arguments: str = ""


Item: TypeAlias = MessageItem | ReasoningItem | CallItem


class Event(msgspec.Struct, tag_field="type", frozen=True, kw_only=True):
    """Something that happens to a response; its tag is its kind."""

    sequence_number: int

    @property
    def written(self) -> bytes:
        """The event as a stream has it."""
        return sse.named(str(self.__struct_config__.tag), self)


class _OfResponse(Event, frozen=True, kw_only=True):
    response: dict[str, Any]


class Created(_OfResponse, tag="response.created", frozen=True):
    """It has been taken in."""


class Queued(_OfResponse, tag="response.queued", frozen=True):
    """It waits for its turn."""


class InProgress(_OfResponse, tag="response.in_progress", frozen=True):
    """The model is at it."""


class Completed(_OfResponse, tag="response.completed", frozen=True):
    """It has come to its end."""


class Incomplete(_OfResponse, tag="response.incomplete", frozen=True):
    """It has been cut."""


class Failed(_OfResponse, tag="response.failed", frozen=True):
    """Something went wrong."""


class Broken(Event, tag="error", frozen=True, kw_only=True):
    """No more can be told, whatever has become of the response."""

    code: str | None
    message: str
    param: str | None

    @classmethod
    def of(cls, error: ApiError, number: int) -> Broken:
        """Return what ends a stream in place of an event."""
        return cls(sequence_number=number, code=error.code, message=error.detail, param=error.param)


class _OfItem(Event, frozen=True, kw_only=True):
    output_index: int
    item: Item


class ItemAdded(_OfItem, tag="response.output_item.added", frozen=True):
    """An item begins."""


class ItemDone(_OfItem, tag="response.output_item.done", frozen=True):
    """An item has come to its end."""


class _OfContent(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int
    content_index: int = 0


class _OfPart(_OfContent, frozen=True, kw_only=True):
    part: TextPart | ReasoningPart


class PartAdded(_OfPart, tag="response.content_part.added", frozen=True):
    """A text of an item begins."""


class PartDone(_OfPart, tag="response.content_part.done", frozen=True):
    """A text of an item has come to its end."""


class TextDelta(_OfContent, tag="response.output_text.delta", frozen=True, kw_only=True):
    """A message goes on."""

    delta: str
    logprobs: Scores = ()


class TextDone(_OfContent, tag="response.output_text.done", frozen=True, kw_only=True):
    """The text of a message is all there."""

    text: str
    logprobs: Scores = ()


class ReasoningDelta(_OfContent, tag="response.reasoning_text.delta", frozen=True, kw_only=True):
    """The model thinks on."""

    delta: str


class ReasoningDone(_OfContent, tag="response.reasoning_text.done", frozen=True, kw_only=True):
    """What it thought is all there."""

    text: str


class _OfArguments(Event, frozen=True, kw_only=True):
    item_id: str
    output_index: int


class ArgumentsDelta(
    _OfArguments, tag="response.function_call_arguments.delta", frozen=True, kw_only=True
):
    """Arguments of a call go on."""

    delta: str


class ArgumentsDone(
    _OfArguments, tag="response.function_call_arguments.done", frozen=True, kw_only=True
):
    """Arguments of a call are all there."""

    name: str
    arguments: str
