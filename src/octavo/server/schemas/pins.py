"""Bodies and replies of `/v1/cache/pins`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from octavo.server.chat_request import ChatRequest
from octavo.server.schemas.chat import FunctionTool, Message, chat_request
from octavo.server.schemas.common import MOST_PIN_CHARS, ONE_MISTAKE, Body, Whole, within
from octavo.server.schemas.replies import Reply


class PinBody(Body):
    """A text, or a conversation, that is to stay in memory."""

    name: Annotated[str, Field(min_length=1, max_length=MOST_PIN_CHARS)]
    model: str | None = Field(None, description="A name of the model; left out: the only one")
    prompt: str | Annotated[list[Whole], Field(min_length=1, fail_fast=True)] | None = None
    messages: Annotated[list[Message], Field(min_length=1, fail_fast=True)] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = Field(None, description="Left out: false")
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    documents: Annotated[list[dict[str, Any]], ONE_MISTAKE] | None = None
    tools: Annotated[list[FunctionTool], ONE_MISTAKE] | None = None
    ttl_s: float | None = within(exclusiveMinimum=0, about="Left out: an hour")
    priority: Whole | None = within(minimum=0, maximum=100, about="Once it is pinned no more")
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None

    def conversation(self) -> ChatRequest | None:
        """Return what is to be rendered, None: a text is. Raises ApiError or RequestError."""
        if self.messages is None:
            return None
        self.add_generation_prompt = bool(self.add_generation_prompt)
        return chat_request(self, self.messages)


class PinReply(Reply):
    """A pin as it stands."""

    object: Literal["cache.pin"]
    name: str
    blocks: int = Field(description="Blocks of text that it holds")
    requests: int = Field(description="Live ones that name it: it holds as long as they live")
    expires_in_s: float | None = Field(description="None: a request that names it lives")
    tenant: str | None = Field(None, description="Whose it is: told to administrators")


class MadePinReply(PinReply):
    """A pin that has just been made."""

    tokens: int = Field(description="Of the text; blocks hold whole ones alone")
    cached_tokens: int = Field(description="Of the text, what was in memory before")


class PinListReply(Reply):
    """All pins of a tenant."""

    object: Literal["list"]
    data: list[PinReply]


class UnpinReply(Reply):
    """A pin that holds no more."""

    object: Literal["cache.pin"]
    name: str
    deleted: Literal[True]
    blocks: int = Field(description="Blocks of text that it held")
