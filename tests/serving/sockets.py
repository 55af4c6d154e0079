"""A server's application on a socket, in the test's own event loop, and a client by hand."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import threading
from functools import partial

import uvicorn

from octavo.server.http import BoundedHttp
from octavo.server.settings import ConnectionTimes


class _Server(uvicorn.Server):
    def capture_signals(self):
        """Leave signals to the test."""
        return contextlib.nullcontext()


@contextlib.asynccontextmanager
async def listening(app, *, send_buffer: int | None = None, times: ConnectionTimes | None = None):
    """Serve an app on a free port; yields the port. send_buffer: bytes that the kernel keeps."""
    with socket.socket() as sock:
        if send_buffer:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        sock.bind(("127.0.0.1", 0))
        sock.listen(128)
        config = uvicorn.Config(
            app,
            http=partial(BoundedHttp, times=times),
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
        )
        server = _Server(config)
        task = asyncio.create_task(server.serve([sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            server.should_exit = True
            server.force_exit = True
            await task


class Line:
    """A connection that sends one POST and reads when it is told to."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def post(
        cls, port: int, path: str, *, limit: int = 2**16, keep: bool = False, **body
    ) -> Line:
        """Send a request. limit: bytes that are read before they are asked for.

        keep: the connection is to stay.
        """
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, limit)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=sock, limit=limit)
        line = cls(reader, writer)
        await line.send(path, keep=keep, **body)
        return line

    async def send(self, path: str, *, keep: bool = False, **body) -> None:
        """Send another request, which the connection must have been kept for."""
        data, after = json.dumps(body).encode(), "keep-alive" if keep else "close"
        head = (
            f"POST {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(data)}\r\nConnection: {after}\r\n\r\n"
        )
        self.writer.write(head.encode() + data)
        await self.writer.drain()

    async def piece(self) -> bytes:
        """Read what is there, or wait for it."""
        return await self.reader.read(2**16)

    async def rest(self) -> bytes:
        """Read up to the end, and close it."""
        data = await self.reader.read()
        self.leave()
        return data

    def leave(self) -> None:
        """Close it, whatever is still to come."""
        self.writer.transport.abort()


@contextlib.contextmanager
def in_a_thread(opened):
    """Serve in a thread of its own, for clients that wait; yields the address.

    opened: a context that holds, when it is entered, what has an `app`, such as `near_server(…)`.
    """
    started, found = threading.Event(), dict[str, object]()

    async def run():
        end = found["end"] = asyncio.Event()
        found["loop"] = asyncio.get_running_loop()
        async with opened as server, listening(server.app) as port:
            found["url"] = f"http://127.0.0.1:{port}"
            started.set()
            await end.wait()

    thread = threading.Thread(target=asyncio.run, args=(run(),))
    thread.start()
    assert started.wait(30)
    try:
        yield found["url"]
    finally:
        found["loop"].call_soon_threadsafe(found["end"].set)
        thread.join(10)
