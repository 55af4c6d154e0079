"""Reads the stream of a server's memory: connects, splits events, and says what went wrong."""

from __future__ import annotations

import http.client
import json
from base64 import b64decode
from collections.abc import Generator, Iterable
from typing import Any, cast

from octavo.bench.serve.http import read_address
from octavo.errors import ConfigError, EngineGone

Told = dict[str, Any]
"""An object as JSON has it."""

_PATIENCE_S = 30.0
"""A server sends something at least every ten seconds."""
_SIZES = {
    "seq": ("i", 4),
    "phase": ("B", 1),
    "tokens": ("I", 4),
    "computed": ("I", 4),
    "blocks": ("I", 4),
    "preemptions": ("H", 2),
    "paused": ("B", 1),
}
PHASES = ("waiting", "loading", "running", "parked")


def events(
    url: str, key: str | None, query: str, *, verify: bool = True
) -> Generator[tuple[str, Told], None, None]:
    """Yield (kind, data) of a server's events until it ends the stream.

    Raises ConfigError for an address that is none and for what the server refuses, EngineGone if
    it cannot be reached, or is gone.
    """
    connection, prefix = _connection(url, verify=verify)
    headers = {"Accept": "text/event-stream"}
    if key:
        headers["Authorization"] = f"Bearer {key}"
    path = f"{prefix}/v1/debug/memory/events?{query}"
    try:
        try:
            connection.request("GET", path, headers=headers)
            response = connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            why = getattr(error, "strerror", None) or str(error) or type(error).__name__
            raise EngineGone(
                f"{url} cannot be reached: {why}; start one with octavo serve, or give --url"
            ) from None
        if response.status != 200:
            raise _refusal(url, response.status, response.read(1 << 16))
        try:
            yield from _split(response)
        except (OSError, http.client.HTTPException):
            raise EngineGone(f"{url} has ended, or says nothing any more") from None
    finally:
        connection.close()


def _connection(url: str, *, verify: bool) -> tuple[http.client.HTTPConnection, str]:
    at = read_address(url, verify=verify, flag="--url")
    if at.tls is None:
        return http.client.HTTPConnection(at.host, at.port, timeout=_PATIENCE_S), at.prefix
    made = http.client.HTTPSConnection(at.host, at.port, timeout=_PATIENCE_S, context=at.tls)
    return made, at.prefix


def _refusal(url: str, status: int, body: bytes) -> ConfigError | EngineGone:
    try:
        said = str(cast("Told", json.loads(body))["error"]["message"])
    except (ValueError, KeyError, TypeError):
        said = body.decode("utf-8", "replace").strip()[:200]
    if status == 401:
        return ConfigError(f"{url}: {said or 'it needs a key'}: give --api-key")
    if status == 404:
        return ConfigError(f"{url} shows no memory: it is no octavo, or one of an older version")
    if status in (429, 503):
        return EngineGone(f"{url}: {said or status}")
    return ConfigError(f"{url} answered {status}: {said}")


def _split(lines: Iterable[bytes]) -> Generator[tuple[str, Told], None, None]:
    kind, data = "message", b""
    for line in lines:
        line = line.rstrip(b"\r\n")
        if line.startswith(b"event:"):
            kind = line[6:].strip().decode()
        elif line.startswith(b"data:"):
            data += line[5:].strip()
        elif not line and data:
            yield kind, json.loads(data)
            kind, data = "message", b""


class Requests:
    """The requests that a stream has told of."""

    def __init__(self) -> None:
        self._facts: dict[int, Told] = {}

    def take_in(self, frame: Told) -> list[Told]:
        """Take in a frame; returns a row for each live sequence."""
        if frame["type"] == "snapshot":
            self._facts.clear()
        told = frame["requests"]
        for one in told["new"]:
            self._facts[one["seq"]] = one
        for one in told["gone"]:
            self._facts.pop(one["seq"], None)
        columns = {name: _numbers(name, text) for name, text in told["live"].items()}
        rows: list[Told] = []
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            row["phase"] = PHASES[row["phase"]]
            rows.append(self._facts.get(row["seq"], {}) | row)
        return rows


def _numbers(name: str, text: str) -> list[int]:
    """Read a column of numbers."""
    code, size = _SIZES.get(name, ("B", 1))
    data = b64decode(text)
    signed = code == "i"
    return [
        int.from_bytes(data[at : at + size], "little", signed=signed)
        for at in range(0, len(data), size)
    ]
