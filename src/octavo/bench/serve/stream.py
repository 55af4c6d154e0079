"""One request to a server, and when each piece of its answer came."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from octavo.bench.serve.http import Client, ConnectionLost, Reply
from octavo.errors import ConfigError

BACKENDS = {"openai": "/v1/completions", "openai-chat": "/v1/chat/completions"}
"""By name, the path where nothing else is said."""

_APPLIED = b": applied "
"""A comment in which a server tells when a step's result was there, on this host's clock."""
_DATA, _DONE = b"data:", b"[DONE]"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request."""

    text: str
    output_tokens: int
    prompt_tokens: int | None = None
    """As the data set says; None: nobody has counted."""
    arrival_s: float = 0.0
    """In a recorded trace, since its beginning."""


@dataclass(slots=True)
class Outcome:
    """What became of a request. Times are of `time.monotonic`."""

    start_s: float
    end_s: float = 0.0
    first_s: float | None = None
    """When the first text came."""
    gaps_s: list[float] = field(default_factory=list[float])
    """Between one piece with text and the next."""
    applied_s: list[float] = field(default_factory=list[float])
    """From when a step's result was there until its text came, where the server tells."""
    text: str = ""
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int | None = None
    """None: the server does not say."""
    finish: str | None = None
    status: int = 0
    error: str = ""
    """Empty: it went well."""

    @property
    def ttft_s(self) -> float:
        """Seconds to the first text."""
        return (self.first_s or self.end_s) - self.start_s

    @property
    def e2e_s(self) -> float:
        """Seconds to the end."""
        return self.end_s - self.start_s

    @property
    def tpot_s(self) -> float | None:
        """Mean seconds for a token after the first; None: there is no other."""
        later = self.output_tokens - 1
        return (self.e2e_s - self.ttft_s) / later if later > 0 else None


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int | None = 0
    prompt_tokens_details: _Details | None = None


class _Error(msgspec.Struct):
    message: str = ""


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = msgspec.field(default_factory=list[_Choice])
    usage: _Usage | None = None
    error: _Error | str | None = None


class _ErrorBody(msgspec.Struct):
    error: _Error | str | None = None
    message: str = ""
    detail: object = None


_chunks = msgspec.json.Decoder(_Chunk)


class _Listener:
    """Reads the events of one answer."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._rest = b""
        self._last_s = 0.0
        self._pieces: list[str] = []
        self._tells_usage = False

    def take(self, data: bytes, now_s: float) -> None:
        """Take in bytes of the stream."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if line.startswith(_DATA):
                payload = line[len(_DATA) :].strip()
                if payload != _DONE:
                    self._event(payload, now_s)
            elif line.startswith(_APPLIED):
                self._outcome.applied_s.append(now_s - float(line[len(_APPLIED) :]))

    def _event(self, payload: bytes, now_s: float) -> None:
        outcome = self._outcome
        try:
            chunk = _chunks.decode(payload)
        except msgspec.MsgspecError as error:
            outcome.error = outcome.error or f"an event cannot be read: {error}"
            return
        if chunk.error is not None:
            error = chunk.error
            outcome.error = error if isinstance(error, str) else error.message or "an error"
        for choice in chunk.choices:
            outcome.finish = choice.finish_reason or outcome.finish
            text = choice.text
            if choice.delta is not None:
                delta = choice.delta
                text = delta.content or delta.reasoning or delta.reasoning_content
            if text or choice.token_ids:
                self._piece(text or "", now_s)
        if chunk.usage is not None:
            self._usage(chunk.usage)

    def _piece(self, text: str, now_s: float) -> None:
        outcome = self._outcome
        if outcome.first_s is None:
            outcome.first_s = now_s
        else:
            outcome.gaps_s.append(now_s - self._last_s)
        self._last_s = now_s
        self._pieces.append(text)

    def _usage(self, usage: _Usage) -> None:
        outcome = self._outcome
        self._tells_usage = True
        outcome.prompt_tokens = usage.prompt_tokens
        outcome.output_tokens = usage.completion_tokens or 0
        if usage.prompt_tokens_details is not None:
            outcome.cached_tokens = usage.prompt_tokens_details.cached_tokens

    def end(self, ask: Ask) -> None:
        """Settle what the stream did not say: without usage a piece counts as a token."""
        outcome = self._outcome
        outcome.text = "".join(self._pieces)
        if not self._tells_usage:
            outcome.prompt_tokens = ask.prompt_tokens or 0
            outcome.output_tokens = len(self._pieces)


class Sender:
    """Sends requests of one kind to one server.

    backend: a name of `BACKENDS`; options: further fields of every body. by_id: texts are token
    ids, as numbers, and are sent and answered as such. Raises ConfigError for another name, and
    for conversations by id.
    """

    def __init__(
        self,
        client: Client,
        model: str,
        *,
        backend: str = "openai",
        endpoint: str | None = None,
        options: Mapping[str, object] | None = None,
        by_id: bool = False,
        timeout_s: float = 3600.0,
    ) -> None:
        if backend not in BACKENDS:
            raise ConfigError(f"--backend {backend!r} is not one of {', '.join(BACKENDS)}")
        self._client = client
        self._model = model
        self._chat = backend == "openai-chat"
        if self._chat and by_id:
            raise ConfigError(
                "--backend openai-chat needs a tokenizer, which the server does not have: give "
                "--backend openai, which sends token ids"
            )
        self._by_id = by_id
        self._path = endpoint or BACKENDS[backend]
        self._options = dict(options or {})
        self._timeout_s = timeout_s

    def body(self, ask: Ask, first_line: str = "") -> bytes:
        """Return the body of a request."""
        text = first_line + ask.text
        content: dict[str, object] = {"prompt": text, "max_tokens": ask.output_tokens}
        if self._by_id:
            ids = [int(word) for word in text.split()]
            # Without text a stream is silent, but for the ids of its tokens.
            content |= {"prompt": ids, "return_token_ids": True}
        if self._chat:
            content = {
                "messages": [{"role": "user", "content": text}],
                "max_completion_tokens": ask.output_tokens,
            }
        return msgspec.json.encode(
            {"model": self._model}
            | content
            | {"stream": True, "stream_options": {"include_usage": True}}
            | self._options
        )

    async def send(self, ask: Ask, first_line: str = "") -> Outcome:
        """Send a request and return what became of it; raises nothing but being cancelled."""
        body = self.body(ask, first_line)
        outcome = Outcome(time.monotonic())
        listener = _Listener(outcome)
        try:
            async with asyncio.timeout(self._timeout_s):
                reply = await self._client.send("POST", self._path, body, listener.take)
        except TimeoutError:
            outcome.error = f"no end after {self._timeout_s:g} s"
        except ConnectionLost as error:
            outcome.error = str(error)
        else:
            outcome.status = reply.status
            if not outcome.error:
                outcome.error = _refusal(reply)
        outcome.end_s = time.monotonic()
        listener.end(ask)
        return outcome


def _refusal(reply: Reply) -> str:
    """Say why a reply is no stream of events; empty: it is one."""
    if reply.status == 200 and reply.events:
        return ""
    return f"status {reply.status}: {error_message(bytes(reply.body))}"


def error_message(body: bytes) -> str:
    """Return what a body says of an error, shortened."""
    try:
        found = msgspec.json.decode(body, type=_ErrorBody)
    except msgspec.MsgspecError:
        return body[:300].decode("utf-8", "replace")
    error = found.error
    text = error if isinstance(error, str) else error.message if error else ""
    return (text or found.message or str(found.detail or ""))[:300]
