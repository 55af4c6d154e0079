"""What stands before a body is bounded: nobody has shown a key by then."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl

import pytest

from octavo.server.http import MOST_HEADER_BYTES
from octavo.server.lifecycle import Ending, Place, serve
from octavo.server.listen import Tls, listen
from octavo.server.parts import Parts, ServedModel
from octavo.server.settings import ConnectionTimes, ServerSettings
from octavo.testing.near_core import NearCore, fake_loop


def with_socket(test, *, tls=None, **times):
    """Run a test with the port of a server that speaks HTTP in the same event loop."""

    async def run():
        core = NearCore(fake_loop)
        parts = Parts(
            core=core,
            model=ServedModel(names=("fake",), root="fake", tokenizer=None, created_s=0),
            settings=ServerSettings(stats_every_s=0, times=ConnectionTimes(**times)),
        )
        place = Place(socket=listen("127.0.0.1", 0), tls=tls)
        ending, ready = Ending(), asyncio.Event()
        serving = asyncio.create_task(
            serve(core, lambda: parts, place, ready=lambda parts: ready.set(), ending=ending)
        )
        await asyncio.wait_for(ready.wait(), 10)
        try:
            await asyncio.wait_for(test(place.socket.getsockname()[1]), 10)
        finally:
            ending.hear(15)
            assert await asyncio.wait_for(serving, 10) == 0

    asyncio.run(run())


async def send(port, *pieces):
    """Return the answer to some bytes; what is refused may be cut off while it is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    with contextlib.suppress(ConnectionError):
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


def test_headers_that_do_not_end_are_refused():
    async def test(port):
        begin = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n"
        for piece in (b"x-a: " + b"b" * 1000 + b"\r\n", b"c" * 1000):
            pieces = [begin, *[piece] * (2 * MOST_HEADER_BYTES // 1000)]
            answer = await send(port, *pieces)
            assert answer.startswith(b"HTTP/1.1 400 ") or not answer

    with_socket(test)


def test_a_long_body_is_no_long_header():
    async def test(port):
        user = b"u" * 3 * MOST_HEADER_BYTES
        body = b'{"prompt": [1, 2], "max_tokens": 2, "user": "' + user + b'"}'
        head = (
            b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body)
        )
        answer = await send(port, head, *(body[i : i + 9999] for i in range(0, len(body), 9999)))
        assert answer.startswith(b"HTTP/1.1 200 ")

    with_socket(test)


def test_headers_of_a_usual_length_are_read():
    async def test(port):
        cookie = b"Cookie: " + b"c" * (MOST_HEADER_BYTES // 2) + b"\r\n"
        request = b"GET /version HTTP/1.1\r\nHost: x\r\n" + cookie + b"Connection: close\r\n\r\n"
        assert (await send(port, request)).startswith(b"HTTP/1.1 200 ")

    with_socket(test)


@pytest.mark.parametrize("piece", [b"", b"GET /version HTTP/1.1\r\nHost: x\r\n"])
def test_headers_that_do_not_come_are_not_waited_for(piece):
    async def test(port):
        answer = await send(port, piece)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"took more than 0.1 s" in answer
        request = b"GET /version HTTP/1.1\r\nHost: x\r\n\r\n"
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(request)
            answer = await reader.readuntil(b"}")
            assert answer.startswith(b"HTTP/1.1 200 "), "a connection that is kept may be silent"
            await asyncio.sleep(0.15)
        writer.write(request[:-2])
        assert b"took more" in await reader.read()
        writer.close()

    with_socket(test, header_s=0.1)


HEAD = (
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    b"Content-Length: 40\r\n\r\n"
)


def test_a_body_that_comes_a_byte_at_a_time_is_not_waited_for():
    async def test(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD)
        for _ in range(10):
            writer.write(b" ")
            await asyncio.sleep(0.02)
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 408 ")
        assert b"the body took more than 0.5 s (--body-timeout)" in answer
        writer.close()

    with_socket(test, body_s=0.5)


def test_over_tls_a_body_that_does_not_come_ends_its_request_though_the_client_stays(
    tls_files, caplog
):
    key, certificate = tls_files
    context = ssl.create_default_context(cafile=certificate)

    def dribble(port):
        line = context.wrap_socket(
            socket.create_connection(("127.0.0.1", port)), server_hostname="localhost"
        )
        line.sendall(HEAD)
        return line, line.recv(100)

    async def test(port):
        line, answer = await asyncio.to_thread(dribble, port)
        assert answer.startswith(b"HTTP/1.1 408 ")
        while "POST /v1/completions" not in caplog.text:
            await asyncio.sleep(0.01)
        line.close()

    caplog.set_level("INFO")
    with_socket(test, tls=Tls(certfile=certificate, keyfile=key), body_s=0.2)


def test_a_body_to_which_nobody_listens_ends_too():
    async def test(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HEAD.replace(b"/v1/completions", b"/nowhere"))
        with contextlib.suppress(ConnectionError):
            assert (await reader.read()).startswith(b"HTTP/1.1 404 ")
        writer.close()

    with_socket(test, body_s=0.2)


def test_a_body_that_has_come_may_be_answered_later_than_that():
    async def test(port):
        body = b'{"prompt": [1, 2], "max_tokens": 200}'.ljust(40)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(2):
            writer.write(HEAD + body)
            assert (await reader.readuntil(b"}}}")).startswith(b"HTTP/1.1 200 ")
            await asyncio.sleep(0.1)
        writer.close()

    with_socket(test, body_s=0.05)
