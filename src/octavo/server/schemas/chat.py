"""Bodies of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, cast

from pydantic import Field, model_validator

from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.fields import NOT_IN_MESSAGES, asks_nothing
from octavo.server.schemas.common import ONE_MISTAKE, SamplingBody, Strict, Whole, within
from octavo.text.conversation import Turn


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class Message(Strict):
    """One turn of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=100)]
    content: str | Annotated[list[TextPart], ONE_MISTAKE]
    name: str | None = None
    reasoning: str | None = Field(None, description="What the model thought before it answered")
    reasoning_content: str | None = Field(None, description="Another name of reasoning")

    @model_validator(mode="before")
    @classmethod
    def _sift(cls, given: Any) -> Any:  # any JSON value
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, object]", given)
        for name, reason in NOT_IN_MESSAGES.items():
            if name in fields and not asks_nothing(fields[name]):
                raise ApiError(400, f"messages: {name}: {reason}; leave it out", param="messages")
        return {name: value for name, value in fields.items() if name not in NOT_IN_MESSAGES}

    def turn(self) -> Turn:
        """Return it as every API has it."""
        reasoning = self.reasoning if self.reasoning is not None else self.reasoning_content
        return Turn(role=self.role, content=self.text, name=self.name, reasoning=reasoning)

    @property
    def text(self) -> str:
        """All of its text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content)


class ChatBody(SamplingBody):
    """A conversation to be continued."""

    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)]
    max_completion_tokens: Whole | None = within(minimum=1, about="Wins over max_tokens")
    logprobs: bool | None = None
    top_logprobs: Whole | None = within(minimum=0, about="Likely tokens told for each position")
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = Field(
        None, description="The answer goes on with the last message"
    )
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the model's template"
    )

    def conversation(self) -> ChatRequest:
        """Return what is to be continued. Raises ApiError."""
        return ChatRequest(
            turns=tuple(message.turn() for message in self.messages),
            variables=self.chat_template_kwargs or {},
            add_generation_prompt=self.add_generation_prompt,
            continue_final_turn=bool(self.continue_final_message),
        )
