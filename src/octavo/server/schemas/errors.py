"""What every answer that is an error holds."""

from __future__ import annotations

from typing import Any, TypeAlias

from pydantic import BaseModel, Field

Documented: TypeAlias = dict[int | str, dict[str, Any]]


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="The value, the limit and the way out")
    type: str = Field(description="Who must act: invalid_request_error, rate_limit_error, …")
    param: str | None = Field(description="Path of the field that is meant")
    code: str | None = Field(description="For programs, such as context_length_exceeded")


class ErrorReply(BaseModel):
    """An error."""

    error: ErrorBody


FAILURES: Documented = {
    "4XX": {"model": ErrorReply, "description": "The request cannot be answered as it stands"},
    "5XX": {"model": ErrorReply, "description": "The server cannot answer now"},
}
"""Of every route."""
