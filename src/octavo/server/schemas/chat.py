"""Bodies of `/v1/chat/completions`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Protocol, cast

from pydantic import Field, model_validator

from octavo.errors import RequestError
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.fields import NOT_IN_MESSAGES, asks_nothing
from octavo.server.schemas.common import ONE_MISTAKE, SamplingBody, Strict, Whole, within
from octavo.text.conversation import AUTOMATIC, MAX_NAME_CHARS, Tool, ToolCall, ToolChoice, Turn


class TextPart(Strict):
    """A part of a message."""

    type: Literal["text"]
    text: str


class CalledFunction(Strict):
    """What a model has called."""

    name: str
    arguments: Annotated[str, Field(description="A JSON object as text")]


class CallOfMessage(Strict):
    """A call that stands in a message."""

    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction
    index: Whole | None = Field(None, description="Without effect")

    def call(self) -> ToolCall:
        """Return it as every API has it."""
        function = self.function
        return ToolCall(id=self.id, name=function.name, arguments=function.arguments)


class Message(Strict):
    """One turn of a conversation."""

    role: Annotated[str, Field(min_length=1, max_length=100)]
    content: str | Annotated[list[TextPart], ONE_MISTAKE] | None = None
    name: str | None = None
    reasoning: str | None = Field(None, description="What the model thought before it answered")
    reasoning_content: str | None = Field(None, description="Another name of reasoning")
    tool_calls: Annotated[list[CallOfMessage], ONE_MISTAKE] | None = None
    tool_call_id: str | None = Field(None, description="Of a tool's result: what it answers")

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

    def turn(self, place: int) -> Turn:
        """Return it as every API has it. Raises ApiError for one that says nothing.

        place: among the messages.
        """
        if self.content is None and not self.tool_calls:
            param = f"messages.{place}.content"
            raise ApiError(400, f"{param}: a message has content, or calls", param=param)
        return Turn(
            role=self.role,
            content=self.text,
            name=self.name,
            reasoning=self.reasoning if self.reasoning is not None else self.reasoning_content,
            calls=tuple(call.call() for call in self.tool_calls or ()),
            call_id=self.tool_call_id,
        )

    @property
    def text(self) -> str:
        """All of its text."""
        if isinstance(self.content, str):
            return self.content
        return "".join(part.text for part in self.content or ())


class Function(Strict):
    """A function that a model may call."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME_CHARS)]
    description: str | None = None
    parameters: dict[str, Any] | None = Field(
        None, description="JSON Schema of its arguments; without it there are none"
    )
    strict: bool | None = Field(None, description="Arguments always fit the schema")


class FunctionTool(Strict):
    """A tool."""

    type: Literal["function"]
    function: Function

    def tool(self) -> Tool:
        """Return it as every API has it. Raises ApiError."""
        function = self.function
        try:
            return Tool(
                name=function.name,
                description=function.description or "",
                parameters=function.parameters or {},
                strict=bool(function.strict),
            )
        except RequestError as error:
            raise ApiError(400, str(error), param="tools") from None


class NamedFunction(Strict):
    """The function that must be called."""

    name: str


class NamedTool(Strict):
    """The tool that must be called."""

    type: Literal["function"]
    function: NamedFunction


class Rendered(Protocol):
    """What the bodies of all routes that render conversations have."""

    add_generation_prompt: bool | None
    continue_final_message: bool | None
    chat_template_kwargs: dict[str, Any] | None
    tools: list[FunctionTool] | None
    documents: list[dict[str, Any]] | None


def chat_request(
    body: Rendered,
    messages: list[Message],
    choice: ToolChoice = AUTOMATIC,
    *,
    parallel_calls: bool = True,
) -> ChatRequest:
    """Return what is to be rendered. Raises ApiError or RequestError."""
    return ChatRequest(
        turns=tuple(message.turn(place) for place, message in enumerate(messages)),
        tools=tuple(tool.tool() for tool in body.tools or ()),
        tool_choice=choice,
        parallel_calls=parallel_calls,
        documents=tuple(body.documents or ()),
        variables=body.chat_template_kwargs or {},
        add_generation_prompt=body.add_generation_prompt,
        continue_final_turn=bool(body.continue_final_message),
    )


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
    documents: Annotated[list[dict[str, Any]], ONE_MISTAKE] | None = Field(
        None, description="For templates that read them"
    )
    tools: Annotated[list[FunctionTool], ONE_MISTAKE] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = Field(
        None, description="Whether, and what, must be called; left out: auto"
    )
    parallel_tool_calls: bool | None = Field(
        None, description="False: at most one call in an answer"
    )

    def conversation(self) -> ChatRequest:
        """Return what is to be continued. Raises ApiError or RequestError."""
        choice = AUTOMATIC
        if isinstance(self.tool_choice, NamedTool):
            choice = ToolChoice("named", self.tool_choice.function.name)
        elif self.tool_choice is not None:
            choice = ToolChoice(self.tool_choice)
        parallel = self.parallel_tool_calls is not False
        return chat_request(self, self.messages, choice, parallel_calls=parallel)
