"""Answers of the engine as ASGI responses, in one piece or as a stream.

A client that leaves ends its request; one that reads slowly keeps only itself waiting, since what
it has not read is put together in its own answer.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

import msgspec
from fastapi import Response
from starlette.requests import HTTPConnection
from starlette.types import Receive, Scope, Send

from octavo.server import sse
from octavo.server.ask import Ask
from octavo.server.cache_usage import CacheUsage
from octavo.server.callers import mark_asked, note_tokens, request_id_of
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError, as_api_error
from octavo.server.gate import Place
from octavo.server.parts import Parts
from octavo.server.tenants import Tenant

log = logging.getLogger("octavo.server")

QUICK_SCORED = 200
"""Tokens whose log-probabilities are written at once; more of them beside the event loop."""

Written = TypeVar("Written")


class Usage(msgspec.Struct, frozen=True):
    """What a request has used; a prompt counts once for all answers to it."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: dict[str, int]
    completion_tokens_details: dict[str, int] | msgspec.UnsetType = msgspec.UNSET
    """Where there was reasoning."""
    cache: CacheUsage | msgspec.UnsetType = msgspec.UNSET
    """If it was asked for."""

    @classmethod
    def of(cls, asks: list[Ask]) -> Usage:
        """Count what there is so far."""
        prompt = sum(len(ask.prompt.ids) for ask in asks)
        output = sum(ask.output_tokens for ask in asks)
        cached = sum(ask.cached_tokens for ask in asks)
        told = any(ask.tells_cache for ask in asks)
        cache = CacheUsage.of(asks) if told else msgspec.UNSET
        thought = sum(choice.thought for ask in asks for choice in ask.choices)
        details = {"reasoning_tokens": thought} if thought else msgspec.UNSET
        return cls(prompt, output, prompt + output, {"cached_tokens": cached}, details, cache)

    @property
    def reasoning_tokens(self) -> int:
        """Of the completion, what was thought."""
        details = self.completion_tokens_details
        return 0 if isinstance(details, msgspec.UnsetType) else details["reasoning_tokens"]


class Form(Protocol):
    """How a route writes answers."""

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        """Return the answer in one piece, as JSON has it."""
        ...

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        """Return news of one answer as an event; empty: there is nothing to tell."""
        ...

    def end(self, usage: Usage | None) -> bytes:
        """Return what ends a stream. usage: to be told in it, if it was asked for."""
        ...

    def broken(self, error: ApiError) -> bytes:
        """Return what ends a stream whose answer has failed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What an HTTP request asks of its answer, beside the text."""

    route: str
    tenant: Tenant
    priority: int
    came_s: float
    stream: bool
    usage: bool
    """A stream ends in it."""
    usage_always: bool
    """Each chunk tells it."""
    headers: dict[str, str]
    max_tokens: int | None
    """Of each answer, as it was asked for; None: as many as there is room for."""


class Answer(Response):
    """Asks the engine, and writes what comes.

    Its request has come in by the doors, and goes out when it has been answered. make: builds the
    asks, given the bell to ring. told: hears of them when they have ended.
    """

    def __init__(
        self,
        parts: Parts,
        wanted: Wanted,
        form: Form,
        make: Callable[[Callable[[Choice | None], None]], list[Ask]],
        told: Callable[[list[Ask]], None],
    ) -> None:
        super().__init__()
        self._parts = parts
        self._wanted = wanted
        self._form = form
        self._told = told
        self._news = asyncio.Event()
        self._unsent: deque[Choice] = deque()
        self._gone = False
        self._entered: Place | None = None
        self._place: Place | None = None
        """Once the engine has been asked."""
        self._asks = make(self._ring)
        self._of = {choice.index: ask for ask in self._asks for choice in ask.choices}
        self._request_id = ""
        self._sent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer. Raises what the engine says before the first byte has been sent."""
        parts, wanted = self._parts, self._wanted
        self._request_id = request_id_of(HTTPConnection(scope))
        listening = asyncio.create_task(self._listen(receive))
        try:
            place = self.enter()
            try:
                if await self._turn(place):
                    mark_asked(scope)
                    await self._submit(place)
                if not self._gone:
                    await (self._stream(send) if wanted.stream else self._whole(send))
            finally:
                self._tell_meters()
                usage = Usage.of(self._asks)
                note_tokens(scope, usage.prompt_tokens, usage.completion_tokens)
                place.leave()
                self._told(self._asks)
        finally:
            listening.cancel()
            if self._timer is not None:
                self._timer.cancel()
            parts.doors.go_out()

    def enter(self) -> Place:
        """Take its place among all requests, which it leaves when it has been called.

        Raises OverLimit; it must not be called then. A second time: no effect.
        """
        if self._entered is None:
            wanted = self._wanted
            self._entered = self._parts.gate.enter(
                wanted.tenant,
                sum(len(ask.prompt.ids) for ask in self._asks),
                wanted.priority,
                answers=sum(len(ask.choices) for ask in self._asks),
            )
        return self._entered

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _tell_meters(self) -> None:
        """End what has not ended, and tell what became of each prompt."""
        parts, wanted = self._parts, self._wanted
        for ask in self._asks:
            ask.leave()
            if ask.submitted and not ask.refused:
                record = ask.record(wanted.route)
                parts.meters.ended(record)
                if parts.traces is not None:
                    parts.traces.ended(record)
        if any(ask.refused for ask in self._asks):
            parts.meters.refused(wanted.tenant.name, 400)

    def _ring(self, choice: Choice | None = None) -> None:
        if choice is not None and not choice.waits:
            choice.waits = True
            self._unsent.append(choice)
        self._news.set()
        ends = choice is None or choice.finish is not None
        if ends and self._place is not None and not self._open:
            # What is still to be sent takes nothing of the engine.
            self._place.leave()

    async def _heard(self) -> None:
        """Return when something has happened since the last time."""
        await self._news.wait()
        self._news.clear()

    async def _listen(self, receive: Receive) -> None:
        """Wait for the client to leave, and end what it asked for at once."""
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception:
            # Nobody would hear it leave.
            log.exception("the client of request %s cannot be heard: it is ended", self._request_id)
        self._gone = True
        for ask in self._asks:
            ask.leave()
        self._news.set()

    async def _turn(self, place: Place) -> bool:
        """Return True when it may ask the engine; False: the client has left."""
        turn = asyncio.ensure_future(place.turn())
        turn.add_done_callback(lambda _: self._news.set())
        try:
            while not turn.done() and not self._gone:
                await self._heard()
        finally:
            if not turn.done():
                turn.cancel()
        if turn.done():
            turn.result()
        return not self._gone

    async def _submit(self, place: Place) -> None:
        """Ask the engine; returns when it has taken all prompts. Raises why it refuses one."""
        self._place = place
        for ask in self._asks:
            ask.submit(self._parts.core, place, self._parts.meters, self._wanted.came_s)
        while not self._gone and any(ask.max_tokens is None for ask in self._asks):
            self._raise_loss()
            await self._heard()

    def _raise_loss(self) -> None:
        for ask in self._asks:
            if ask.error is not None:
                raise ask.error

    @property
    def _open(self) -> bool:
        return any(ask.open for ask in self._asks)

    async def _whole(self, send: Send) -> None:
        while self._open and not self._gone:
            await self._heard()
        if self._gone:
            return
        self._raise_loss()
        failed = self._failure()
        if failed is not None and all(
            choice.finish == "error" for ask in self._asks for choice in ask.choices
        ):
            raise failed
        scored = sum(ask.scored_tokens for ask in self._asks)
        body = await _written(self._write_whole, scored)
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            *self._own_headers(),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _write_whole(self) -> bytes:
        return msgspec.json.encode(self._form.whole(self._asks, Usage.of(self._asks)))

    def _own_headers(self) -> list[tuple[bytes, bytes]]:
        headers, asked = dict(self._wanted.headers), self._wanted.max_tokens
        least = min((ask.max_tokens or 0 for ask in self._asks), default=0)
        if asked is not None and least < asked:
            # Nothing is cut without a word.
            headers["x-octavo-max-tokens"] = str(least)
        return [(name.encode(), value.encode()) for name, value in headers.items()]

    async def _stream(self, send: Send) -> None:
        headers = [*sse.HEADERS, *self._own_headers()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        self._sent_s = time.monotonic()
        self._watch_silence()
        while not self._gone:
            # What comes while something is being sent goes with the next piece.
            more = self._open
            body = await self._take()
            if body:
                await send({"type": "http.response.body", "body": body, "more_body": True})
                self._sent_s = time.monotonic()
            if not more and not self._unsent:
                break
            if not self._unsent:
                await self._heard()
        if not self._gone:
            await send({"type": "http.response.body", "body": self._ending()})

    async def _take(self) -> bytes:
        """Return all news as events; a comment, if nothing was said for too long."""
        usage = Usage.of(self._asks) if self._wanted.usage_always and self._unsent else None
        news: list[tuple[Choice, Piece]] = []
        scored, newest = 0, 0.0
        while self._unsent:
            choice = self._unsent.popleft()
            choice.waits = False
            piece = choice.take()
            if piece:
                news.append((choice, piece))
                newest = max(newest, piece.applied_s)
                scored += len(piece.logprobs)
                if piece.first:
                    scored += len(self._of[choice.index].prompt_logprobs or ())
        chunks = await _written(lambda: self._write_news(news, usage), scored)
        if chunks and self._parts.settings.tell_applied:
            chunks.append(sse.applied(newest))
        if not chunks and time.monotonic() - self._sent_s >= self._parts.settings.keep_alive_s:
            chunks.append(sse.KEEP_ALIVE)
        return b"".join(chunks)

    def _write_news(self, news: list[tuple[Choice, Piece]], usage: Usage | None) -> list[bytes]:
        written = [
            self._form.chunk(self._of[choice.index], choice, piece, usage) for choice, piece in news
        ]
        return [chunk for chunk in written if chunk]

    def _watch_silence(self) -> None:
        """Ring when a comment is due, and again after that."""
        wait_s = self._sent_s + self._parts.settings.keep_alive_s - time.monotonic()
        if wait_s <= 0:
            self._news.set()
            wait_s = self._parts.settings.keep_alive_s
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(max(wait_s, 0.001), self._watch_silence)

    def _ending(self) -> bytes:
        failed = self._failure()
        if failed is not None:
            return self._form.broken(failed)
        return self._form.end(Usage.of(self._asks) if self._wanted.usage else None)

    def _failure(self) -> ApiError | None:
        """Return the first error that ended an answer."""
        for ask in self._asks:
            if ask.error is not None:
                return as_api_error(ask.error, retry_after_s=self._parts.settings.retry_after_s)
            for choice in ask.choices:
                if choice.error is not None:
                    if choice.refused:
                        message = f"the answer ended in an error: {choice.error}"
                        return ApiError(400, message, code="no_answer_possible")
                    name = self._request_id
                    log.error("an answer of request %s ended in an error: %s", name, choice.error)
                    return ApiError(500, f"the answer ended in an error, request id {name}")
        return None


class Unheard(Response):
    """The answer to a client that has left: none."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send nothing."""


async def _written(write: Callable[[], Written], scored: int) -> Written:
    """Return what is written. scored: tokens whose log-probabilities stand in it.

    What it is made from must not change meanwhile.
    """
    return write() if scored <= QUICK_SCORED else await asyncio.to_thread(write)
