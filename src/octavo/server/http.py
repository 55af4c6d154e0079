"""HTTP as it comes from a socket, with bounds on what stands before a body."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADER_BYTES = 64 << 10
"""Of a request's first line and headers, about: keys are looked at only after them."""

HEADERS_S = 30.0
"""In which they must have come; a new connection must begin to send in as long."""


class BoundedHttp(HttpToolsProtocol):
    """Refuses a request whose headers do not end, in bytes or in time.

    A request that comes before the one ahead of it has been answered is not taken, nor is anything
    after it: the connection ends with that answer, and its client sends the rest again. Were it
    queued, nothing could be read, and nobody would hear that the client has left.
    """

    headers_s = HEADERS_S
    _head_bytes: int | None = 0
    """Of the request whose headers are awaited; None: of none."""
    _deadline: asyncio.TimerHandle | None = None
    _deaf = False
    """What comes is not looked at: the connection ends with the answer that is being given."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody has connected."""
        super().connection_made(transport)
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self._stop_waiting()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        if self._deaf:
            return
        super().data_received(data)
        if self._head_bytes is None:
            self._stop_waiting()
            return
        self._head_bytes += len(data)
        if self._deadline is None:
            self._wait()
        if self._head_bytes > MOST_HEADER_BYTES:
            self._refuse(f"The headers have more than {MOST_HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A request begins."""
        if self.cycle and not self.cycle.response_complete:  # there is none before the first
            self._deaf, self._head_bytes = True, None
            self.cycle.keep_alive = False
        else:
            self._head_bytes = 0
        super().on_message_begin()  # pyright: ignore[reportUnknownMemberType] (it has no types)

    def on_headers_complete(self) -> None:
        """All headers have come."""
        self._head_bytes = None
        if not self._deaf:
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body has come."""
        if not self._deaf:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """A request has come."""
        if not self._deaf:
            super().on_message_complete()  # pyright: ignore[reportUnknownMemberType] (it has no types)

    def _wait(self) -> None:
        self._deadline = self.loop.call_later(
            self.headers_s, self._refuse, f"The headers took more than {self.headers_s:g} s."
        )

    def _stop_waiting(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _refuse(self, why: str) -> None:
        self._stop_waiting()
        if not self.transport.is_closing():
            self.send_400_response(why)
