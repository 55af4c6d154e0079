"""Bodies of `/tokenize` and `/detokenize`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

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


class DetokenizeBody(Body):
    """Token ids to be turned into text."""

    model: str | None = None
    tokens: Annotated[list[Whole], ONE_MISTAKE]
