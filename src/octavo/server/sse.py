"""Server-sent events, as bytes."""

from __future__ import annotations

import msgspec

DONE = b"data: [DONE]\n\n"
KEEP_ALIVE = b": keep-alive\n\n"
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
]
"""Proxies must pass on each event as it comes."""


def event(value: object) -> bytes:
    """Write a value as one event."""
    return b"data: %b\n\n" % msgspec.json.encode(value)


def named(name: str, value: object) -> bytes:
    """Write a value as one event of a kind."""
    return b"event: %b\ndata: %b\n\n" % (name.encode(), msgspec.json.encode(value))


def applied(at_s: float) -> bytes:
    """Write a comment that says when a step was applied."""
    return b": applied %.6f\n\n" % at_s
