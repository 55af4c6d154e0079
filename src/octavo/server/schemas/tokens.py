"""Bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from octavo.server.chat_request import ChatRequest
from octavo.server.schemas.chat import FunctionTool, Message, chat_request
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
    documents: Annotated[list[dict[str, Any]], ONE_MISTAKE] | None = None
    tools: Annotated[list[FunctionTool], ONE_MISTAKE] | None = None
    return_token_strs: bool | None = None

    def conversation(self) -> ChatRequest | None:
        """Return what is to be rendered, None: a text is. Raises ApiError or RequestError."""
        return None if self.messages is None else chat_request(self, self.messages)


class DetokenizeBody(Body):
    """Token ids to be turned into text."""

    model: str | None = None
    tokens: Annotated[list[Whole], ONE_MISTAKE]
