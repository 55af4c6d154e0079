"""Bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from octavo.server.chat_request import ChatRequest
from octavo.server.schemas.chat import Message
from octavo.server.schemas.common import ONE_MISTAKE, Body, Whole


class TokenizeBody(Body):
    """A text, or a conversation, to be turned into token ids."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_strs: bool | None = None

    def conversation(self) -> ChatRequest | None:
        """Return what is to be rendered, None: a text is. Raises ApiError."""
        if self.messages is None:
            return None
        return ChatRequest(
            turns=tuple(message.turn() for message in self.messages),
            variables=self.chat_template_kwargs or {},
            add_generation_prompt=self.add_generation_prompt,
            continue_final_turn=bool(self.continue_final_message),
        )


class DetokenizeBody(Body):
    """Token ids to be turned into text."""

    model: str | None = None
    tokens: Annotated[list[Whole], ONE_MISTAKE]
