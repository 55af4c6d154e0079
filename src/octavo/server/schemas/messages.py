"""Bodies of `/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import Discriminator, Field, Tag

from octavo.server.cache_wishes import CacheWish
from octavo.server.failures import ApiError
from octavo.server.schemas.common import ONE_MISTAKE, Body, Strict, Whole, type_of, within
from octavo.server.schemas.drawn import DrawnBody
from octavo.text.conversation import AUTOMATIC, Tool, ToolChoice

MARKED_PRIORITY = 60
"""Of what a cache_control keeps: above all that nobody asked to keep."""

_TIMES_S = {"5m": 300.0, "1h": 3600.0}


class CacheControl(Strict):
    """All up to here is kept for the next request that begins with it."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = Field(None, description="Left out: 5m")

    def wish(self) -> CacheWish:
        """Return it as every API has it."""
        return CacheWish(ttl_s=_TIMES_S[self.ttl or "5m"], priority=MARKED_PRIORITY)


class _Block(Strict):
    cache_control: CacheControl | None = None


class TextBlock(_Block):
    """A text."""

    type: Literal["text"]
    text: str
    citations: Annotated[list[Any], Field(max_length=0)] | None = None


def _known(given: object, kinds: tuple[str, ...]) -> str:
    kind = type_of(given)
    if not isinstance(kind, str) or kind not in kinds:
        raise ApiError(
            400,
            f"messages: a block of type {kind!r:.80} is none of {', '.join(kinds)}",
            param="messages",
        )
    # A name that no error shows, since nobody has written it.
    return f"of:{kind}"


def _text(given: Any) -> str:  # any JSON value
    return _known(given, ("text",))


_OnlyText: TypeAlias = Annotated[Annotated[TextBlock, Tag("of:text")], Discriminator(_text)]


class ThinkingBlock(Strict):
    """What the model thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = Field(None, description="Without effect")


class ToolUseBlock(_Block):
    """A call that the model made."""

    type: Literal["tool_use"]
    id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(max_length=256)]
    input: dict[str, Any]


class ToolResultBlock(_Block):
    """What came of a call."""

    type: Literal["tool_result"]
    tool_use_id: Annotated[str, Field(max_length=256)]
    content: str | Annotated[list[_OnlyText], ONE_MISTAKE] | None = None
    is_error: bool | None = Field(None, description="Without effect: its text must say so")


_BLOCKS = ("text", "thinking", "tool_use", "tool_result")


def _kind(given: Any) -> str:  # any JSON value
    return _known(given, _BLOCKS)


ContentBlock: TypeAlias = Annotated[
    Annotated[TextBlock, Tag("of:text")]
    | Annotated[ThinkingBlock, Tag("of:thinking")]
    | Annotated[ToolUseBlock, Tag("of:tool_use")]
    | Annotated[ToolResultBlock, Tag("of:tool_result")],
    Discriminator(_kind),
]


class MessageGiven(Strict):
    """One message."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[ContentBlock], ONE_MISTAKE]


class ToolGiven(_Block):
    """A function that the model may call."""

    type: Literal["custom"] | None = None
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    input_schema: dict[str, Any]
    strict: bool | None = None

    def tool(self) -> Tool:
        """Return it as every API has it."""
        return Tool(
            name=self.name,
            description=self.description or "",
            parameters=self.input_schema,
            strict=bool(self.strict),
        )


class ToolChoiceGiven(Strict):
    """Whether, and what, the model must call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None

    def choice(self) -> ToolChoice:
        """Return it as every API has it."""
        match self.type:
            case "any":
                return ToolChoice("required")
            case "tool":
                return ToolChoice("named", self.name or "")
            case _:
                return ToolChoice(self.type)


class Thinking(Strict):
    """Whether the model thinks first."""

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Whole | None = Field(None, description="Without effect: max_tokens ends it")
    display: str | None = Field(None, description="Without effect")


class OutputFormat(Strict):
    """What form the text of the answer has."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(Strict):
    """How the answer is written."""

    format: OutputFormat | None = None
    effort: str | None = Field(None, description="Without effect")


class CountTokensBody(Body):
    """A conversation."""

    model: str | None = Field(None, description="A name of the model; left out: the only one")
    messages: Annotated[list[MessageGiven], Field(min_length=1, fail_fast=True)]
    system: str | Annotated[list[TextBlock], ONE_MISTAKE] | None = None
    tools: Annotated[list[ToolGiven], Field(max_length=512, fail_fast=True)] | None = None
    tool_choice: ToolChoiceGiven | None = None
    thinking: Thinking | None = Field(None, description="Left out: disabled")
    cache_control: CacheControl | None = Field(None, description="Of the whole conversation")
    output_config: OutputConfig | None = None
    chat_template_kwargs: dict[str, Any] | None = Field(
        None, description="Variables of the model's template"
    )

    @property
    def choice(self) -> ToolChoice:
        """Whether a tool must be called."""
        return AUTOMATIC if self.tool_choice is None else self.tool_choice.choice()

    @property
    def parallel(self) -> bool:
        """Whether more than one may."""
        return not (self.tool_choice and self.tool_choice.disable_parallel_tool_use)


class MessagesBody(CountTokensBody, DrawnBody):
    """A conversation to be continued."""

    max_tokens: Whole = Field(json_schema_extra={"minimum": 1})
    stop_sequences: Annotated[list[str], ONE_MISTAKE] | None = within()
