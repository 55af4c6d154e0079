"""A client for many streams at once: HTTP/1.1 on asyncio alone, a few microseconds a piece.

Its time is taken from the server's where both share a machine, so nothing is parsed that is not
needed: status, length or chunks, and whether the connection may be used again.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from octavo.errors import ConfigError

Take = Callable[[bytes, float], None]
"""Gets pieces of a body and the time at which each came, on `time.monotonic`."""

_UNTIL_CLOSED = -1
_LONGEST_HEAD = 1 << 16


class ConnectionLost(Exception):
    """The server closed a connection, or never took it."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens."""

    host: str
    port: int
    prefix: str = ""
    """Of every path, without a slash at its end."""
    tls: ssl.SSLContext | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Sent with every request."""

    def request(self, method: str, path: str, body: bytes) -> bytes:
        """Return a request as it is sent."""
        lines = [f"{method} {self.prefix}{path} HTTP/1.1", f"host: {self.host}:{self.port}"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        if body:
            lines.append("content-type: application/json")
        lines += [f"content-length: {len(body)}", "", ""]
        return "\r\n".join(lines).encode("latin-1", "replace") + body


def read_address(
    url: str,
    headers: Mapping[str, str] | None = None,
    *,
    verify: bool = True,
    flag: str = "--base-url",
) -> Address:
    """Read an address such as http://127.0.0.1:8000. flag: gave it. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise ConfigError(f"{flag} {url!r} cannot be read: {error}") from None
    if parts.scheme not in ("http", "https") or not host:
        raise ConfigError(f"{flag} must be like http://127.0.0.1:8000, got {url!r}")
    for name, value in (headers or {}).items():
        if any(sign in name + value for sign in "\r\n"):
            raise ConfigError(f"--header {name!r} has a line break in it")
    tls = None
    if parts.scheme == "https":
        tls = ssl.create_default_context()
        if not verify:
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    prefix = parts.path.rstrip("/")
    return Address(host, port or (443 if tls else 80), prefix, tls, dict(headers or {}))


@dataclass(slots=True)
class Reply:
    """What a server answered."""

    status: int
    reusable: bool
    events: bool
    """The body is a stream of events."""
    body: bytearray = field(default_factory=bytearray)
    """Of a reply that nobody takes piece by piece."""


class _Connection(asyncio.Protocol):
    """One connection; one exchange at a time."""

    def __init__(self) -> None:
        self.open = True
        self.heard = False
        """Something of this exchange's reply has come."""
        self._transport: asyncio.Transport | None = None
        self._rest = b""
        self._reply: Reply | None = None
        self._chunked = False
        self._left = 0
        """Bytes of the body, or of the chunk, that are still to come."""
        self._ends = False
        """The last chunk has come; only what follows it is missing."""
        self._take: Take | None = None
        self._done: asyncio.Future[Reply] | None = None

    async def exchange(self, data: bytes, take: Take | None) -> Reply:
        """Send a request and wait for the end of its reply. Raises ConnectionLost."""
        assert self._done is None, "one exchange at a time"
        self.heard = False
        if not self.open or self._transport is None:
            raise ConnectionLost("the server closed the connection")
        self._reply, self._take, self._ends = None, take, False
        self._done = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        try:
            return await self._done
        except BaseException:
            self.close()
            raise
        finally:
            self._done = None

    def close(self) -> None:
        """Close it."""
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep what is written to."""
        # Not an instance where another event loop brings its own.
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: well if the body is as long as the connection, else badly."""
        self.open = False
        if self._reply is not None and self._left == _UNTIL_CLOSED:
            self._end()
        elif self._done is not None and not self._done.done():
            how = f": {exc}" if exc else " in the middle of a reply" if self.heard else ""
            self._done.set_exception(ConnectionLost(f"the server closed the connection{how}"))

    def data_received(self, data: bytes) -> None:
        """Take in bytes as they come."""
        now_s = time.monotonic()
        self.heard = True
        data = self._rest + data if self._rest else data
        try:
            self._rest = data[self._parse(data, now_s) :]
        except ValueError as error:
            if self._done is not None and not self._done.done():
                self._done.set_exception(ConnectionLost(f"this is no HTTP: {error}"))
            self.close()

    def _parse(self, data: bytes, now_s: float) -> int:
        """Take in what is complete; returns how many bytes that are."""
        at, size = 0, len(data)
        while at < size:
            if self._reply is None:
                end = data.find(b"\r\n\r\n", at)
                if end < 0:
                    if size - at > _LONGEST_HEAD:
                        raise ValueError("its head has no end")
                    break
                self._begin(data[at:end])
                at = end + 4
            elif self._left:
                part = data[at:] if self._left == _UNTIL_CLOSED else data[at : at + self._left]
                at += len(part)
                self._left -= 0 if self._left == _UNTIL_CLOSED else len(part)
                self._pass_on(part, now_s)
                if not self._left and not self._chunked:
                    self._end()
            else:
                end = data.find(b"\r\n", at)
                if end < 0:
                    break
                self._next_chunk(data[at:end])
                at = end + 2
        return at

    def _begin(self, head: bytes) -> None:
        first, _, lines = head.partition(b"\r\n")
        version, status = first.split(b" ", 2)[:2]
        headers = {
            name.strip().lower(): value.strip().lower()
            for name, _, value in (line.partition(b":") for line in lines.split(b"\r\n"))
        }
        number = int(status)
        if 100 <= number < 200:
            return
        reusable = version == b"HTTP/1.1" and headers.get(b"connection") != b"close"
        events = headers.get(b"content-type", b"").startswith(b"text/event-stream")
        self._chunked = b"chunked" in headers.get(b"transfer-encoding", b"")
        length = headers.get(b"content-length")
        self._reply = Reply(number, reusable, events)
        if self._chunked:
            self._left = 0
        elif length is not None or number in (204, 304):
            self._left = int(length or 0)
            if not self._left:
                self._end()
        else:
            self._reply.reusable = False
            self._left = _UNTIL_CLOSED

    def _next_chunk(self, line: bytes) -> None:
        """Read the line before a chunk, or one after the last."""
        if self._ends:
            if not line:
                self._end()
        elif line:  # empty: the end of the chunk before
            self._left = int(line.partition(b";")[0], 16)
            self._ends = not self._left

    def _pass_on(self, part: bytes, now_s: float) -> None:
        assert self._reply is not None
        if self._take is not None and self._reply.events:
            self._take(part, now_s)
        else:
            self._reply.body += part

    def _end(self) -> None:
        reply, self._reply, self._left = self._reply, None, 0
        assert reply is not None
        if self._done is not None and not self._done.done():
            self._done.set_result(reply)


class Client:
    """Keeps connections to one server. For use on one event loop."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[_Connection] = []

    async def send(
        self, method: str, path: str, body: bytes = b"", take: Take | None = None
    ) -> Reply:
        """Send a request, and wait for the end of its reply.

        take: gets the body of a stream of events as it comes. Raises ConnectionLost.
        """
        data = self.address.request(method, path, body)
        while self._idle:
            connection = self._idle.pop()
            # One that the server has just closed is no reason to fail.
            with suppress(ConnectionLost):
                return await self._exchange(connection, data, take)
            if connection.heard:
                raise ConnectionLost("the server closed the connection in the middle of a reply")
        return await self._exchange(await self._connect(), data, take)

    async def _exchange(self, connection: _Connection, data: bytes, take: Take | None) -> Reply:
        reply = await connection.exchange(data, take)
        if reply.reusable and connection.open:
            self._idle.append(connection)
        else:
            connection.close()
        return reply

    async def _connect(self) -> _Connection:
        address = self.address
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                _Connection, address.host, address.port, ssl=address.tls
            )
        except OSError as error:
            reason = error.strerror or str(error)
            raise ConnectionLost(f"cannot reach {address.host}:{address.port}: {reason}") from None
        return connection

    def close(self) -> None:
        """Close all connections."""
        while self._idle:
            self._idle.pop().close()
