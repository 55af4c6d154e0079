"""From exceptions to the error bodies that clients of the OpenAI API read."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from octavo.contract.sampling import SamplingParams
from octavo.errors import EngineGone, OverLimit, RequestError
from octavo.server.callers import path_of, request_id_of, tenant_of, was_asked
from octavo.server.parts import Parts

INVALID = "invalid_request_error"
JSON = "application/json"
ENGINE_GONE = "the engine has ended or is not ready yet: send it again later"

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    503: "overloaded_error",
}
"""`type` of an error whose raiser names none; other statuses: a request that is not valid."""

MESSAGES = "/v1/messages"
"""Whose errors, and those of the routes below, are those of Anthropic's API."""
_OVERLOADED = 529
_MESSAGE_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


class ApiError(HTTPException):
    """A request that is answered by an error, in the form that clients read."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(status, message, dict(headers or {}))
        self.param = param
        """Path of the field that is meant."""
        self.code = code

    @property
    def body(self) -> dict[str, object]:
        """The error as JSON would have it."""
        kind = _KINDS.get(self.status_code, "server_error" if self.status_code == 500 else INVALID)
        return {
            "error": {
                "message": self.detail,
                "type": kind,
                "param": self.param,
                "code": self.code,
            }
        }


def error_response(error: ApiError, path: str) -> Response:
    """Return an error as the API of a path writes it."""
    status, body = error.status_code, error.body
    if path == MESSAGES or path.startswith(MESSAGES + "/"):
        status, body = _OVERLOADED if status == 503 else status, message_error(error)
    return Response(
        msgspec.json.encode(body), status, media_type=JSON, headers=dict(error.headers or {})
    )


def message_error(error: ApiError) -> dict[str, object]:
    """Return an error as Anthropic's clients read it."""
    kind = _MESSAGE_KINDS.get(error.status_code)
    if kind is None:
        kind = "api_error" if error.status_code >= 500 else INVALID
    return {"type": "error", "error": {"type": kind, "message": error.detail}}


def as_api_error(error: Exception, *, retry_after_s: float = 1.0) -> ApiError:
    """Return what a client is told of an exception; of one that nobody foresaw, nothing.

    retry_after_s: when to try again, where the exception does not know.
    """
    match error:
        case ApiError():
            return error
        case HTTPException():
            return _of_framework(error)
        case RequestValidationError():
            return _of_schema(error)
        case RequestError():
            message = _in_words_of_http(str(error))
            param, code = _meant(message), None
            if _TOO_LONG.search(message):
                code = "context_length_exceeded"
            return ApiError(400, message, param=param, code=code)
        case OverLimit():
            status = 503 if error.of_server else 429
            return ApiError(status, str(error), headers=_later(error.retry_after_s))
        case EngineGone():
            # Its text may hold what the engine wrote last: that is for the log and administrators.
            return ApiError(503, ENGINE_GONE, code="engine_gone", headers=_later(retry_after_s))
        case _:
            return ApiError(500, "internal error")


def add_failures(app: FastAPI, parts: Parts) -> None:
    """Let an app answer every exception by an error body."""

    async def answer(request: Request, error: Exception) -> Response:
        failure = as_api_error(error, retry_after_s=parts.settings.retry_after_s)
        if not was_asked(request):
            tenant = tenant_of(request, parts)
            parts.meters.refused("" if tenant is None else tenant.name, failure.status_code)
        return error_response(failure, path_of(request.scope))

    async def answer_unforeseen(request: Request, error: Exception) -> Response:
        # Its text may hold anything: it is for the log alone, which whoever calls this writes.
        failure = ApiError(500, f"internal error, request id {request_id_of(request)}")
        return error_response(failure, path_of(request.scope))

    for kind in (HTTPException, RequestValidationError, RequestError, OverLimit, EngineGone):
        app.add_exception_handler(kind, answer)
    app.add_exception_handler(Exception, answer_unforeseen)


_TOO_LONG = re.compile(r"prompt (has|of|is) .*tokens")
_FIRST_WORD = re.compile(r"[a-z][a-z_]*[a-z]")


def _in_words_of_http(message: str) -> str:
    """Return a message with ways out that a client of a server has."""
    for call, route in _WAYS_OUT.items():
        message = message.replace(call, route)
    return message


_WAYS_OUT = {
    "unpin(name)": "DELETE /v1/cache/pins/NAME",
    "build the engine with pin_limit": "start the server with --pin-limit",
    "raise pin_limit": "let the server have a greater --pin-limit",
}


def _meant(message: str) -> str | None:
    """Return the option that an error message begins with, as ours do."""
    first = _FIRST_WORD.match(message)
    word = first.group() if first else ""
    return word if word in _OPTIONS else None


_OPTIONS = frozenset(
    (
        *SamplingParams.__struct_fields__,
        *("priority", "messages", "tools", "tool_choice", "continue_final_message"),
    )
)


def _later(seconds: float) -> dict[str, str]:
    return {"Retry-After": str(max(1, math.ceil(seconds)))}


def _of_framework(error: HTTPException) -> ApiError:
    message = {
        404: "there is no such route",
        405: "this route does not take this method",
    }.get(error.status_code, error.detail)
    return ApiError(error.status_code, message, headers=error.headers)


def _of_schema(error: RequestValidationError) -> ApiError:
    """Name the first field that is wrong. What was sent is not repeated: it may be anything."""
    found = [(_path(each["loc"]), str(each["msg"])) for each in error.errors()]
    param, message = found[0]
    if not param:
        if error.body and isinstance(error.body, bytes):  # nobody has read it
            return ApiError(
                400, "the body is not said to be JSON: send it with Content-Type: application/json"
            )
        return ApiError(400, f"the body must be a JSON object: {message}")
    # A field of several forms is wrong once for each of them.
    forms = dict.fromkeys(f"{path}: {message}" for path, message in found if param in path)
    return ApiError(400, "; or ".join([*forms][:4]), param=param)


def _path(steps: Iterable[str | int]) -> str:
    """Return where a value stands, as the client wrote it."""
    path = [str(step) for step in steps][1:]
    # What names one of several forms, such as list[int], is not the client's.
    return ".".join(step for step in path if step.isdigit() or _NAME.fullmatch(step))


_NAME = re.compile(r"(?!(str|int|float|bool|list|dict|literal)$)[A-Za-z_][A-Za-z_0-9]*")
