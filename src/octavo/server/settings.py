"""Settings of a server: frozen, checked once. The engine's own are in `octavo.config`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields

from octavo.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestBounds:
    """What one request may ask for at most; beyond it, it is refused before anything runs.

    Raises ConfigError for a bound below 1.
    """

    max_body_bytes: int = 16 << 20
    """Of the HTTP body."""
    max_prompts: int = 256
    """Prompts of one request to `/v1/completions`."""
    max_token_ids: int = 1 << 20
    """That stand for prompts, or are to become text."""
    max_n: int = 128
    """Answers to one prompt; beams too."""
    max_answers: int = 1024
    """Of one request: its prompts times n."""
    max_stop: int = 16
    """Stop strings."""
    max_stop_chars: int = 1000
    """Of each of them."""
    max_logit_bias: int = 1024
    """Tokens with a bias; also those that are allowed, stop an answer, or are banned."""
    max_logprobs: int = 20
    """Likely tokens told for each position."""
    max_prompt_logprobs: int = 1 << 18
    """Told of prompts: their tokens times their likely tokens and themselves times answers."""
    max_messages: int = 4096
    """Of a conversation, and parts in all of them."""
    max_tools: int = 256
    """That an answer may call; documents too."""
    max_tool_chars: int = 1 << 20
    """Of all tools, counted like variables; of all documents too."""
    max_template_chars: int = 1 << 16
    """Of all variables of a template; each of their values and names counts one more."""

    def __post_init__(self) -> None:
        for bound in fields(self):
            value: object = getattr(self, bound.name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(
                    f"{bound.name} must be a whole number of at least 1, got {value!r}"
                )


def _seconds(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    return 0 <= value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTimes:
    """How long a client may take over its side of a connection, in seconds; 0: for ever.

    Raises ConfigError for a time that is none.
    """

    header_s: float = 30.0
    """In which a request's headers must have come; a new connection must begin to send in it."""
    body_s: float = 60.0
    """In which all of a body must have come after them."""
    send_s: float = 60.0
    """A client that takes nothing of its answer for so long is cut off."""

    def __post_init__(self) -> None:
        for time in fields(self):
            if not _seconds(getattr(self, time.name)):
                flag = time.name.removesuffix("_s") + "_timeout"
                raise ConfigError(
                    f"{flag} must be 0 or more seconds, got {getattr(self, time.name)!r}"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class CorsSettings:
    """What pages of other places may do in a browser. Raises ConfigError for what none allows."""

    origins: tuple[str, ...]
    """Such as https://chat.example.com; * is all."""
    methods: tuple[str, ...] = ("*",)
    headers: tuple[str, ...] = ("*",)
    credentials: bool = False
    """They may send cookies along."""

    def __post_init__(self) -> None:
        if self.credentials and "*" in self.origins:
            raise ConfigError(
                "pages of any place (*) cannot have credentials: name the origins, or leave "
                "credentials out"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """How requests are taken, waited for and told of.

    Raises ConfigError for a value that no server could use.
    """

    bounds: RequestBounds = RequestBounds()
    times: ConnectionTimes = ConnectionTimes()
    max_queued_requests: int = 4096
    """Answers, beside those that are given, for which requests may wait; more are refused."""
    prefix_caching: bool = True
    """False: no prompt finds anything in memory, not even its own tenant's."""
    force_usage: bool = False
    """Streams end in their usage whether asked to or not."""
    stream_interval: int = 1
    """Tokens of a choice that are sent together, if the request names no number."""
    keep_alive_s: float = 10.0
    """A stream that has been silent for so long sends a comment."""
    drain_timeout_s: float = 30.0
    """How long requests may go on once the server is told to end."""
    core_timeout_s: float = 300.0
    """An engine that says nothing for so long while it has work is started again; 0: never."""
    retry_after_s: float = 1.0
    """What a refused client is told where nothing better is known."""
    log_requests: bool = False
    """Log prompts and options too."""
    log_outputs: bool = False
    """Log answers too."""
    log_chars: int | None = None
    """Characters of a text that are logged; None: all."""
    log_access: bool = True
    """A line in the log for each request."""
    quiet_paths: frozenset[str] = frozenset()
    """Paths without such a line."""
    stats_every_s: float = 10.0
    """While there is work, a line in the log as often as this tells of the engine; 0: never."""
    request_id_headers: bool = True
    """Answers carry the id of their request."""
    open_metrics: bool = False
    """/metrics needs no key."""
    show_block_texts: bool = False
    """A server that needs no key tells everybody the texts in its memory."""
    page: bool = True
    """The page that shows the memory is served."""
    open_page: bool = False
    """Its files, which hold no data, need no key."""
    document: bool = True
    """The OpenAPI document is served."""
    cors: CorsSettings | None = None
    """Web pages that may call the server; None: those of no other place."""
    tool_call_parser: str = "auto"
    """A row of `TOOL_FORMATS`; auto: as the model's template says; none: tools are refused."""
    reasoning_parser: str = "auto"
    """A row of `REASONING_FORMATS`; auto: as the template says; none: reasoning is content."""
    chat_variables: Mapping[str, object] = field(default_factory=dict[str, object])
    """Variables of the chat template that requests may replace."""
    response_role: str = "assistant"
    """Of the messages that chats are answered with."""
    tell_applied: bool = False
    """Each piece of a stream comes with a comment that says when its step was applied, on the
    clock that all processes of a host share. For measuring."""

    def __post_init__(self) -> None:
        for name, least in (("max_queued_requests", 0), ("stream_interval", 1), ("log_chars", 0)):
            value: object = getattr(self, name)
            if name == "log_chars" and value is None:
                continue
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise ConfigError(
                    f"{name} must be a whole number of at least {least}, got {value!r}"
                )
        for name in ("messages", "add_generation_prompt"):
            if name in self.chat_variables:
                raise ConfigError(f"chat_variables has {name!r}, which is a field of each request")
        for name in (
            "keep_alive_s",
            "drain_timeout_s",
            "core_timeout_s",
            "retry_after_s",
            "stats_every_s",
        ):
            if not _seconds(getattr(self, name)):
                raise ConfigError(f"{name} must be 0 or more seconds, got {getattr(self, name)!r}")
        if not self.keep_alive_s:
            raise ConfigError("keep_alive_s must be above 0: silence is what it ends")
