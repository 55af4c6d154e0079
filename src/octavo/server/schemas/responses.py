"""Bodies of `/v1/responses`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeAlias, cast

from pydantic import Discriminator, Field, Tag, model_validator

from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.schemas.common import (
    ONE_MISTAKE,
    StreamOptions,
    Strict,
    Whole,
    type_of,
    within,
)
from octavo.server.schemas.drawn import DrawnBody
from octavo.server.terms import Terms
from octavo.text.conversation import AUTOMATIC, Tool, ToolChoice, Turn

_NO_PART_OF_A_PROMPT = frozenset(
    ("id", "status", "annotations", "logprobs", "phase", "encrypted_content")
)
"""Fields of what a response held, which come back in histories."""


_TEXT = "input_text"
_SCORES = "message.output_text.logprobs"


class Returned(Strict):
    """What may have stood in a response: fields that no model reads are taken, and ignored.

    So are empty ones that are not known: clients have names for more than there is.
    """

    @model_validator(mode="before")
    @classmethod
    def _sift(cls, given: Any) -> Any:  # any JSON value
        if not isinstance(given, Mapping):
            return given
        fields = cast("Mapping[str, object]", given)
        known = cls.model_fields
        return {
            name: value
            for name, value in fields.items()
            if name in known or not (value is None or name in _NO_PART_OF_A_PROMPT)
        }


class TextContent(Returned):
    """A text of a message, a call's output or a thought."""

    type: Literal["input_text", "output_text", "text", "reasoning_text", "summary_text"]
    text: str

    @model_validator(mode="before")
    @classmethod
    def _text_alone(cls, given: Any) -> Any:  # any JSON value
        kind = type_of(given)
        if isinstance(kind, str) and kind.startswith(("input_", "refusal")) and kind != _TEXT:
            raise ApiError(
                400,
                f"input: a part of type {kind:.80}: prompts are text; leave it out",
                param="input",
            )
        return cast("object", given)


Contents: TypeAlias = str | Annotated[list[TextContent], ONE_MISTAKE]


class InputMessage(Returned):
    """One message."""

    type: Literal["message"] | None = None
    role: Literal["user", "assistant", "system", "developer"]
    content: Contents


class InputCall(Returned):
    """A call that the model made."""

    type: Literal["function_call"]
    call_id: Annotated[str, Field(max_length=256)]
    name: Annotated[str, Field(max_length=256)]
    arguments: str


class InputCallOutput(Returned):
    """What came of a call."""

    type: Literal["function_call_output"]
    call_id: Annotated[str, Field(max_length=256)]
    output: Contents


class InputReasoning(Returned):
    """What the model thought."""

    type: Literal["reasoning"]
    content: Annotated[list[TextContent], ONE_MISTAKE] | None = None
    summary: Annotated[list[TextContent], ONE_MISTAKE] | None = None


_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def _kind(given: Any) -> str:  # any JSON value
    kind = type_of(given)
    if kind is None:
        kind = "message"
    if not isinstance(kind, str) or kind not in _ITEMS:
        raise ApiError(
            400,
            f"input: an item of type {kind!r:.80} is none of {', '.join(_ITEMS)}",
            param="input",
        )
    # A name that no error shows, since nobody has written it.
    return f"of:{kind}"


InputItem: TypeAlias = Annotated[
    Annotated[InputMessage, Tag("of:message")]
    | Annotated[InputCall, Tag("of:function_call")]
    | Annotated[InputCallOutput, Tag("of:function_call_output")]
    | Annotated[InputReasoning, Tag("of:reasoning")],
    Discriminator(_kind),
]


class FunctionTool(Strict):
    """A function that the model may call."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None

    def tool(self) -> Tool:
        """Return it as every API has it."""
        return Tool(
            name=self.name,
            description=self.description or "",
            parameters=self.parameters or {},
            strict=bool(self.strict),
        )


class NamedTool(Strict):
    """The function that the model must call."""

    type: Literal["function"]
    name: Annotated[str, Field(min_length=1, max_length=256)]


class TextFormat(Strict):
    """What the text of the answer looks like."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(Strict):
    """How the text of the answer is written."""

    format: TextFormat | None = None
    verbosity: str | None = Field(None, description="Without effect")


class ReasoningOptions(Strict):
    """How much is thought: models have no measure for it here."""

    effort: str | None = Field(None, description="Without effect")
    summary: str | None = Field(None, description="Without effect")
    generate_summary: str | None = Field(None, description="Without effect")


class ResponsesBody(DrawnBody):
    """A conversation to be continued, and whether it is kept."""

    input: str | Annotated[list[InputItem], ONE_MISTAKE]
    instructions: str | None = Field(None, description="A system message that is not kept")
    max_output_tokens: Whole | None = within(minimum=1)
    stop: str | Annotated[list[str], ONE_MISTAKE] | None = None
    stream_options: StreamOptions | None = None
    store: bool | None = Field(None, description="Left out: true")
    background: bool | None = Field(
        None, description="Answered at once, to be fetched by its id; with stream, by its events"
    )
    previous_response_id: Annotated[str, Field(max_length=256)] | None = None
    tools: Annotated[list[FunctionTool], Field(max_length=512, fail_fast=True)] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    metadata: Annotated[dict[str, str], Field(max_length=16)] | None = None
    truncation: Literal["disabled"] | None = None
    include: (
        Annotated[
            list[Literal["reasoning.encrypted_content", "message.output_text.logprobs"]],
            ONE_MISTAKE,
        ]
        | None
    ) = Field(None, description="What else is told; the former is without effect")
    top_logprobs: Whole | None = within(
        minimum=0, maximum=20, about="Likely tokens told beside each, where they are included"
    )

    def conversation(self, turns: tuple[Turn, ...]) -> ChatRequest:
        """Return what is to be continued: turns behind the instructions. Raises ApiError."""
        first = () if self.instructions is None else (_system(self.instructions),)
        choice = self.tool_choice
        if isinstance(choice, NamedTool):
            chosen = ToolChoice("named", choice.name)
        else:
            chosen = AUTOMATIC if choice is None else ToolChoice(choice)
        return ChatRequest(
            turns=(*first, *turns),
            tools=tuple(tool.tool() for tool in self.tools or ()),
            tool_choice=chosen,
            parallel_calls=self.parallel_tool_calls is not False,
            variables=self.chat_template_kwargs or {},
        )

    def terms(self) -> Terms:
        """Return what is asked beside text and sampling. Raises ApiError. See `Terms`."""
        # Nobody reads it as it comes, but whoever fetches it sees what there is.
        stream = bool(self.stream or self.background)
        return replace(super().terms(), stream=stream, scored=self.likely is not None)

    @property
    def likely(self) -> int | None:
        """How many likely tokens are told beside each of a text; None: nothing is. Raises ApiError.

        Whether there may be so many is looked at by who knows the limit.
        """
        if _SCORES in (self.include or ()):
            return self.top_logprobs or 0
        if self.top_logprobs:
            raise ApiError(
                400, f"top_logprobs: it needs {_SCORES} in include", param="top_logprobs"
            )
        return None

    @property
    def kept(self) -> bool:
        """Whether the response is kept. Raises ApiError for one that nobody could fetch."""
        if self.background and self.store is False:
            raise ApiError(
                400,
                "background: it is answered at once and fetched by its id: leave out store, or "
                "background",
                param="background",
            )
        return self.store is not False


def _system(text: str) -> Turn:
    return Turn(role="system", content=text)
