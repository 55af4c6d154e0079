"""Bodies of requests: bounded, and read by a parser that takes nothing but JSON."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request, Response
from fastapi.routing import APIRoute

from octavo.server.failures import ApiError
from octavo.server.settings import RequestBounds
from octavo.server.sizes import check_sizes


def bounded_route(
    bounds: RequestBounds, *, first: Callable[[Request], None] | None = None
) -> type[APIRoute]:
    """Return a kind of route whose requests have bodies within bounds.

    first: raises for a request whose body is not to be read at all.
    """

    class BoundedRequest(Request):
        """Reads its body once, up to its bound."""

        async def body(self) -> bytes:
            if not hasattr(self, "_body"):
                self._body = await _read(self, bounds.max_body_bytes)
            return self._body

        async def json(self) -> Any:  # any JSON value
            value = read_json(await self.body())
            check_sizes(value, bounds)
            return value

    class BoundedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle = super().get_route_handler()

            async def bounded(request: Request) -> Response:
                if first is not None:
                    first(request)
                return await handle(BoundedRequest(request.scope, request.receive))

            return bounded

    return BoundedRoute


def read_json(body: bytes) -> object:
    """Read a body. Raises ApiError where it is no JSON, such as NaN or half a character."""
    try:
        return msgspec.json.decode(body)
    except RecursionError:
        raise ApiError(400, "the body is nested too deeply") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ApiError(400, f"the body is not valid JSON: {error}") from None


async def _read(request: Request, most: int) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced) > most:
        raise _too_large(most)
    chunks: list[bytes] = []
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > most:
            raise _too_large(most)
        chunks.append(chunk)
    return b"".join(chunks)


def _too_large(most: int) -> ApiError:
    # What is left of the body is not read, so that the connection is of no use any more.
    return ApiError(
        413,
        f"the body is larger than {most} bytes, the most that this server reads "
        "(max_body_bytes): send less",
        headers={"Connection": "close"},
    )
