"""What every request passes before any route: its id, its key, the doors, a line in the log.

Plain ASGI: nothing is read of a body, and nothing stands between a stream and its socket.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable

from fastapi import FastAPI
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from octavo.errors import OverLimit
from octavo.server.callers import path_of
from octavo.server.failures import ApiError, as_api_error, error_response
from octavo.server.logs import AccessLog, Passed
from octavo.server.parts import Parts
from octavo.server.routes.page import page_paths

HEALTH_PATHS = frozenset(("/health", "/ping"))
"""They need no key, and are answered while the doors are closed."""
METRICS_PATHS = frozenset(("/metrics",))
"""They tell of all tenants, and no tenant of several may read them."""
ADMIN_PATHS = frozenset(
    (
        "/reset_prefix_cache",
        "/flush_cache",
        "/pause",
        "/resume",
        "/is_paused",
        "/drain",
        "/check",
        "/server_info",
    )
)
"""They need an administrator's key, and are not there where nobody has one."""
SHARED_PATHS = ("/v1/debug/memory/", "/v1/cache/pins")
"""What begins like this tells a tenant of its own, and administrators of all."""
WATCHED_PATHS = "/v1/debug/memory/"
"""They are answered while the doors are closed: whoever watches sees how they close."""
TOTAL_PATHS = METRICS_PATHS | {"/v1/debug/memory/history"}
"""They tell of all tenants together."""
NOBODY = "_nobody"
"""Who is counted for requests whose key is nobody's."""
_LONGEST_ID = 128


def add_guards(app: FastAPI, parts: Parts) -> None:
    """Put everything that requests must pass before an application."""
    if parts.traces is not None:
        app.add_middleware(parts.traces.around)
    app.add_middleware(Guard, parts=parts, told=AccessLog(parts.settings))
    cors = parts.settings.cors
    if cors is not None:
        # Outside: browsers ask whether they may before they send a key.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=cors.origins,
            allow_methods=cors.methods,
            allow_headers=cors.headers,
            allow_credentials=cors.credentials,
        )


class Guard:
    """Stands before an application. told: hears of every request once it has been answered."""

    def __init__(self, app: ASGIApp, parts: Parts, told: Callable[[Passed], None]) -> None:
        self._app = app
        self._parts = parts
        self._told = told
        self._id_headers = parts.settings.request_id_headers
        no_key = TOTAL_PATHS if parts.settings.open_metrics else frozenset[str]()
        shown = parts.settings.page and parts.settings.open_page
        page = page_paths() if shown else frozenset[str]()
        self._open = HEALTH_PATHS | page | no_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            raise RuntimeError(f"a server for HTTP got a connection of type {scope['type']}")
        headers = Headers(scope=scope)
        request_id = _chosen_id(headers) or uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state["request_id"] = request_id
        began_s, status = time.monotonic(), 0

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                if self._id_headers:
                    MutableHeaders(scope=message).setdefault("X-Request-Id", request_id)
            await send(message)

        try:
            refusal = self._refusal(scope, headers)
            if refusal is None:
                await self._app(scope, receive, send_on)
            else:
                self._parts.meters.refused(_name_of(scope) or NOBODY, refusal.status_code)
                answer = error_response(refusal, path_of(scope))
                await answer(scope, receive, send_on)
        except Exception:
            status = status or 500  # it is answered outside
            raise
        finally:
            self._told(
                Passed(
                    request_id,
                    _name_of(scope),
                    scope["method"],
                    path_of(scope),
                    status,
                    time.monotonic() - began_s,
                    tokens=state.get("tokens"),
                )
            )

    def _refusal(self, scope: Scope, headers: Headers) -> ApiError | None:
        """Note whose a request is; returns what to answer if it may not pass."""
        path, state, keys = path_of(scope), scope["state"], self._parts.keys
        key = _key_in(headers)
        tenant, admin = keys.tenant(key), keys.admin(key)
        if tenant is not None:
            state["tenant"] = tenant
        if path in self._open:
            return None
        if path in ADMIN_PATHS and admin is not None:
            return None if admin else _not_an_administrator(key, known=tenant is not None)
        if admin and path.startswith(SHARED_PATHS):
            state["admin"] = True
        elif tenant is None and not (admin and path in METRICS_PATHS):
            return _no_key(key)
        if path in TOTAL_PATHS and not admin and len(keys.tenants) > 1:
            return ApiError(
                403,
                "this route tells of all tenants: it needs an administrator's key "
                "(--admin-api-key), or a server that shows it to everybody (--open-metrics)",
            )
        watches = path in METRICS_PATHS or path.startswith(WATCHED_PATHS)
        if self._parts.doors.draining and not watches:
            wait_s = self._parts.settings.retry_after_s
            return as_api_error(
                OverLimit("the server is closing", retry_after_s=wait_s, of_server=True)
            )
        return None


def _name_of(scope: Scope) -> str | None:
    tenant = scope["state"].get("tenant")
    return None if tenant is None else tenant.name


def _key_in(headers: Headers) -> str | None:
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    return headers.get("x-api-key")


def _chosen_id(headers: Headers) -> str | None:
    """Return the id that a client gives; one that could break a log is not taken."""
    given = headers.get("x-request-id", "")
    fits = 0 < len(given) <= _LONGEST_ID and given.isascii() and given.isprintable()
    return given if fits and " " not in given else None


def _no_key(key: str | None) -> ApiError:
    message = (
        "this server needs a key: send it as `Authorization: Bearer KEY`"
        if key is None
        else "the key is not known here"
    )
    return ApiError(401, message, code="invalid_api_key", headers={"WWW-Authenticate": "Bearer"})


def _not_an_administrator(key: str | None, *, known: bool) -> ApiError:
    if key is None or not known:
        return _no_key(key)
    return ApiError(403, "this route needs an administrator's key")
