"""HTTP as it comes from a socket, with a bound on what stands before a body."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MOST_HEADER_BYTES = 64 << 10
"""Of a request's first line and headers, about: keys are looked at only after them."""


class BoundedHttp(HttpToolsProtocol):
    """Refuses a request whose headers do not end."""

    _head_bytes: int | None = None
    """Of the request whose headers are being read; None: of no request."""

    def data_received(self, data: bytes) -> None:
        """Bytes have come."""
        super().data_received(data)
        if self._head_bytes is None:
            return
        self._head_bytes += len(data)
        if self._head_bytes > MOST_HEADER_BYTES and not self.transport.is_closing():
            self.send_400_response(f"The headers have more than {MOST_HEADER_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """A request begins."""
        self._head_bytes = 0
        super().on_message_begin()  # pyright: ignore[reportUnknownMemberType] (it has no types)

    def on_headers_complete(self) -> None:
        """All headers have come."""
        self._head_bytes = None
        super().on_headers_complete()
