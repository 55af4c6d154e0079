"""What answers hold: for the document alone, since they are written without a detour."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field

from octavo.contract.misses import MissReason
from octavo.server.schemas.errors import Documented

Finish: TypeAlias = Literal["stop", "length", "abort", "error"]


class Reply(BaseModel):
    """A JSON object with these fields and no others."""

    model_config = ConfigDict(extra="forbid", strict=True)


class MissReply(Reply):
    """Why one prompt was computed from one of its tokens on."""

    prompt: int
    reason: MissReason
    position: int
    tokens: int
    policy: str | None
    age_s: float | None
    evicted_since: int | None
    changed: str | None = Field(description="Of a conversation: which message is not as it was")


class CacheReply(Reply):
    """Tokens of all prompts by where their KV came from, if `include_cache` asks for it."""

    matched: int
    loaded: int
    computed: int
    misses: list[MissReply]


class UsageReply(Reply):
    """What a request has used; a prompt counts once for all answers to it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[Literal["cached_tokens"], int] = Field(
        description="cached_tokens: of the prompts, what was in memory"
    )
    completion_tokens_details: dict[Literal["reasoning_tokens"], int] | None = Field(
        None, description="Where there was reasoning"
    )
    cache: CacheReply | None = None


class PromptLogprob(Reply):
    """How likely a token of the prompt was."""

    logprob: float
    rank: int
    decoded_token: str


PromptLogprobs: TypeAlias = list[dict[str, PromptLogprob] | None]
"""By token id, for each token; nothing is known of the first."""


class CompletionLogprobsReply(Reply):
    """Four lists, a token in each."""

    text_offset: list[int]
    token_logprobs: list[float | None]
    tokens: list[str]
    top_logprobs: list[dict[str, float] | None]


class Ending(Reply):
    """Of an answer."""

    index: int
    finish_reason: Finish
    stop_reason: str | int | None = Field(description="The stop string or stop token that ended it")
    token_ids: list[int] | None = None


class CompletionChoice(Ending):
    """One answer to a prompt."""

    text: str
    logprobs: CompletionLogprobsReply | None
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class Beginning(Reply):
    """Of every reply."""

    id: str
    created: int
    model: str
    system_fingerprint: str | None


class CompletionReply(Beginning):
    """Answers to all prompts, in their order."""

    object: Literal["text_completion"]
    choices: list[CompletionChoice]
    usage: UsageReply


class LikelyToken(Reply):
    """A token and how likely it was."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatToken(LikelyToken):
    """A token of an answer."""

    top_logprobs: list[LikelyToken]


class ChatLogprobsReply(Reply):
    """Token by token."""

    content: list[ChatToken]
    refusal: None


class CalledReply(Reply):
    """What the model calls."""

    name: str
    arguments: str = Field(description="JSON as text; incomplete if the answer was cut")


class CallReply(Reply):
    """A call of a tool."""

    id: str
    type: Literal["function"]
    function: CalledReply


class ChatMessage(Reply):
    """What the model says."""

    role: str
    content: str | None = Field(description="null: it is nothing but calls")
    refusal: None
    reasoning: str | None = None
    tool_calls: list[CallReply] | None = None


class ChatChoice(Ending):
    """One answer to a conversation."""

    finish_reason: Finish | Literal["tool_calls"]  # pyright: ignore[reportIncompatibleVariableOverride]
    message: ChatMessage
    logprobs: ChatLogprobsReply | None


class ChatReply(Beginning):
    """All answers."""

    object: Literal["chat.completion"]
    choices: list[ChatChoice]
    usage: UsageReply
    prompt_token_ids: list[int] | None = None
    prompt_logprobs: PromptLogprobs | None = None


class TokensReply(Reply):
    """A text as tokens."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class TextReply(Reply):
    """Tokens as a text."""

    prompt: str


class ModelCard(Reply):
    """The model by one of its names."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    root: str
    parent: str | None = Field(description="Its first name, if this is another")
    max_model_len: int
    vocab_size: int


class ModelList(Reply):
    """The model by all of its names."""

    object: Literal["list"]
    data: list[ModelCard]


class VersionReply(Reply):
    """Which release this is."""

    version: str


def replies(kind: type[Reply], *, streams: bool = False) -> Documented:
    """Return what the document says of a route's answers. streams: it can send events too."""
    documented: Documented = {200: {"model": kind, "description": "The answer"}}
    if streams:
        documented[200]["content"] = {"text/event-stream": {}}
    return documented
