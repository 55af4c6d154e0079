"""Answers that are one piece of JSON."""

from __future__ import annotations

import msgspec
from fastapi import Response


def json_response(value: object, headers: dict[str, str] | None = None) -> Response:
    """Write a value as an answer. Numbers must be finite: JSON has no others."""
    return Response(msgspec.json.encode(value), media_type="application/json", headers=headers)
