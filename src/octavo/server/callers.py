"""Who sends a request, and what it is called."""

from __future__ import annotations

import uuid

from starlette.requests import HTTPConnection
from starlette.types import Scope

from octavo.server.parts import Parts
from octavo.server.tenants import Tenant

REQUEST_ID = "x-request-id"


def tenant_of(connection: HTTPConnection, parts: Parts) -> Tenant | None:
    """Return whose request it is: as the keys were read, or the one who needs none."""
    known: object = getattr(connection.state, "tenant", None)
    return known if isinstance(known, Tenant) else parts.keys.tenant(None)


def known_tenant(connection: HTTPConnection, parts: Parts) -> Tenant:
    """Return whose request it is, which has passed the guard."""
    tenant = tenant_of(connection, parts)
    assert tenant is not None, "the guard lets nobody through without a key"
    return tenant


def is_admin(connection: HTTPConnection) -> bool:
    """True if the request came with an administrator's key."""
    return getattr(connection.state, "admin", False) is True


def request_id_of(connection: HTTPConnection) -> str:
    """Return the id that whoever sent it chose, or the one that it was given first."""
    known: object = getattr(connection.state, "request_id", None)
    if not isinstance(known, str):
        known = connection.headers.get(REQUEST_ID) or uuid.uuid4().hex
        connection.state.request_id = known
    return known


def mark_asked(scope: Scope) -> None:
    """Note that the engine has been asked: what comes of it is no refusal any more."""
    scope.setdefault("state", {})["asked"] = True


def was_asked(connection: HTTPConnection) -> bool:
    """True once the engine has been asked."""
    return getattr(connection.state, "asked", False)


def note_tokens(scope: Scope, prompt: int, output: int) -> None:
    """Note what a request has used, for the log."""
    scope.setdefault("state", {})["tokens"] = (prompt, output)


def path_of(scope: Scope) -> str:
    """Return the path of a request below the server's root path."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root + "/") else path
