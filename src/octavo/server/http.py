"""HTTP as it comes from a socket, with bounds on headers and on how long clients take."""

from __future__ import annotations

import asyncio
import logging
from enum import Enum
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from octavo.server.failures import JSON, ApiError, error_response
from octavo.server.settings import ConnectionTimes

MOST_HEADER_BYTES = 64 << 10
"""Of a request's first line and headers, about: keys are looked at only after them."""

LOOKS = 4
"""Times that a reader is found to have taken nothing, evenly over the time that it has."""

LOG = logging.getLogger("octavo.server")


class _Awaited(Enum):
    """What a connection waits for from its client."""

    HEADERS = "headers"
    BODY = "body"
    NOTHING = "nothing"


class BoundedHttp(HttpToolsProtocol):
    """Refuses a request whose headers do not end, in bytes or in time, or whose body does not.

    A client that takes nothing of its answer for too long is cut off; one that is slow is not.

    A request that comes before the one ahead of it has been answered is not taken, nor is anything
    after it: the connection ends with that answer, and its client sends the rest again. Were it
    queued, nothing could be read, and nobody would hear that the client has left.
    """

    def __init__(
        self,
        *args: Any,  # uvicorn's
        times: ConnectionTimes | None = None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self._times = times or ConnectionTimes()
        self._awaited = _Awaited.HEADERS
        self._head_bytes = 0
        """Of the request whose headers are awaited."""
        self._timed = _Awaited.NOTHING
        """What the deadline is for."""
        self._deadline: asyncio.TimerHandle | None = None
        self._deaf = False
        """What comes is not looked at: the connection ends with the answer that is given."""
        self._look: asyncio.TimerHandle | None = None
        """At whether the client has taken anything."""
        self._untaken = 0
        """Bytes that it had not taken when it was last looked at."""
        self._idle_looks = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._await(_Awaited.NOTHING)
        if self._look is not None:
            self._look.cancel()
        super().connection_lost(exc)

    def eof_received(self) -> None:
        """The client sends nothing more; one that waits for its answer would keep the line open."""
        if self.cycle and not self.cycle.response_complete:  # there is none before the first
            # Closed, it would stay until somebody reads what is unsent, and nobody would know.
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._deaf:
            return
        super().data_received(data)
        if self._awaited is not self._timed:
            self._set_deadline()
        if self._awaited is _Awaited.HEADERS:
            self._head_bytes += len(data)
            if self._head_bytes > MOST_HEADER_BYTES:
                self._refuse(f"The headers have more than {MOST_HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A request begins."""
        if self.cycle and not self.cycle.response_complete:
            self._deaf, self._awaited = True, _Awaited.NOTHING
            self.cycle.keep_alive = False
        else:
            self._awaited, self._head_bytes = _Awaited.HEADERS, 0
        super().on_message_begin()  # pyright: ignore[reportUnknownMemberType] (it has no types)

    def on_headers_complete(self) -> None:
        """All headers have come."""
        if not self._deaf:
            self._awaited = _Awaited.BODY
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come."""
        if not self._deaf:
            self._awaited = _Awaited.NOTHING
            super().on_message_complete()  # pyright: ignore[reportUnknownMemberType] (it has no types)

    def on_response_complete(self) -> None:
        """All of an answer has been handed over, though its client may not have taken it."""
        super().on_response_complete()  # pyright: ignore[reportUnknownMemberType] (it has no types)
        if self._unsent():
            self._watch_reader()

    def pause_writing(self) -> None:
        """More is unsent than there is room for."""
        super().pause_writing()
        self._watch_reader()

    # ── what a client must send ───────────────────────────────────────────────────────────

    def _await(self, what: _Awaited) -> None:
        self._awaited = what
        self._set_deadline()

    def _set_deadline(self) -> None:
        self._timed = self._awaited
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None
        times = {_Awaited.HEADERS: self._times.header_s, _Awaited.BODY: self._times.body_s}
        seconds = times.get(self._awaited, 0.0)
        if seconds:
            self._deadline = self.loop.call_later(seconds, self._expire, seconds)

    def _expire(self, seconds: float) -> None:
        self._deadline = None
        if self._awaited is _Awaited.HEADERS:
            self._refuse(f"The headers took more than {seconds:g} s.")
        elif self.transport.is_closing() or self.cycle.response_started:
            self.transport.abort()
        else:
            self._answer(
                ApiError(408, f"the body took more than {seconds:g} s (--body-timeout): send less")
            )

    def _answer(self, error: ApiError) -> None:
        """Answer in place of the application, which hears that the client has left."""
        said = error_response(error, str(self.scope["path"]))
        body = bytes(said.body)
        head = b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n"
        self.transport.write(
            STATUS_LINE[said.status_code] + head % (JSON.encode(), len(body)) + body
        )
        # Over TLS the end of a connection waits for the client, who may never agree to it.
        self.cycle.disconnected = True
        self.cycle.message_event.set()
        self.transport.close()
        self._watch_reader()

    def _refuse(self, why: str) -> None:
        self._await(_Awaited.NOTHING)
        if not self.transport.is_closing():
            self.send_400_response(why)
            self._watch_reader()

    # ── what it must take ─────────────────────────────────────────────────────────────────

    def _watch_reader(self) -> None:
        """Look from time to time whether what is unsent becomes less."""
        if self._look is None and self._times.send_s:
            self._untaken, self._idle_looks = self._unsent(), 0
            self._look_later()

    def _look_later(self) -> None:
        self._look = self.loop.call_later(self._times.send_s / LOOKS, self._look_at_reader)

    def _look_at_reader(self) -> None:
        self._look = None
        unsent = self._unsent()
        # Else more is being added, and less does not tell what was taken.
        nothing_is_added = self.flow.write_paused or self.transport.is_closing()
        nothing_is_added = nothing_is_added or not self.cycle or self.cycle.response_complete
        if not unsent or not nothing_is_added:
            return
        self._idle_looks = self._idle_looks + 1 if unsent >= self._untaken else 0
        self._untaken = unsent
        if self._idle_looks < LOOKS:
            self._look_later()
            return
        LOG.info("a client took nothing of its answer for %g s and is cut off", self._times.send_s)
        self.transport.abort()

    def _unsent(self) -> int:
        return self.transport.get_write_buffer_size()
