"""`octavo serve` as a user starts it: in a process of its own, with a real model."""

from __future__ import annotations

import json
import re
import signal
import socket
import ssl
from contextlib import closing
from http.client import HTTPConnection, HTTPSConnection

from commands import octavo_serve

from octavo.testing.fake_server import children_of, gone


def ask(connection, path, key, body=None):
    """Return the status of an answer and its JSON."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    connection.request("POST" if body else "GET", path, body and json.dumps(body), headers)
    reply = connection.getresponse()
    return reply.status, json.loads(reply.read())


class UnixConnection(HTTPConnection):
    def __init__(self, path):
        super().__init__("localhost", timeout=10)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)


def test_it_answers_at_a_socket_and_ends_without_leaving_anything(tiny_gguf, tmp_path):
    path = tmp_path / "socket"
    file = tmp_path / "serve.yaml"
    file.write_text("api-key: secret\nswap-space: 4\nseed: 5\n")
    with octavo_serve(tiny_gguf, "--uds", path, "--config", file) as (process, address):
        assert address == f"unix:{path}"
        engine = children_of(process.pid)
        with closing(UnixConnection(str(path))) as connection:
            status, reply = ask(connection, "/v1/models", "secret")
            assert status == 200
            assert [card["id"] for card in reply["data"]] == ["tiny.gguf"]
            status, reply = ask(
                connection, "/v1/completions", "secret", {"prompt": "hello", "max_tokens": 3}
            )
            assert status == 200
            assert reply["usage"]["completion_tokens"] in (1, 2, 3)
            status, info = ask(connection, "/server_info", "boss")
            assert status == 200
            assert info["ignored"].keys() == {"--swap-space"}
            assert info["engine"]["settings"]["seed"] == 5
            share = 128 if info["engine"]["device"] == "cpu" else 512
            assert info["engine"]["long_prefill_token_threshold"] == share
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert engine
        assert gone(engine)
    assert not path.exists()


def test_it_speaks_https(tiny_gguf, tls_files):
    key, certificate = tls_files
    tls = ("--ssl-keyfile", key, "--ssl-certfile", certificate)
    with octavo_serve("--model", tiny_gguf, "--port", "0", *tls) as (process, address):
        found = re.fullmatch(r"https://127\.0\.0\.1:(\d+)", address)
        assert found, address
        context = ssl.create_default_context(cafile=str(certificate))
        with closing(HTTPSConnection("127.0.0.1", int(found[1]), context=context)) as connection:
            status, reply = ask(connection, "/health", "")
            assert (status, reply) == (200, {"status": "ok"})
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
