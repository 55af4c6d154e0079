"""`GET /`: the page that shows the memory, and its files. They hold no data."""

from __future__ import annotations

from hashlib import sha256
from importlib import resources

from fastapi import APIRouter, Request, Response

from octavo.server.callers import path_of
from octavo.server.parts import Parts

INDEX = "index.html"
TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
"""Of the page's files, by the end of their names; there are no others."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Nothing comes from another place, nothing goes to one, and what is in a page runs nothing."""
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def page_files() -> dict[str, bytes]:
    """Return the page's files by their names."""
    folder = resources.files("octavo.server").joinpath("page")
    return {
        one.name: one.read_bytes()
        for one in folder.iterdir()
        if one.is_file() and one.name[one.name.rfind(".") :] in TYPES
    }


def page_paths() -> frozenset[str]:
    """Return the paths that need no key."""
    return frozenset({"/", *(f"/page/{name}" for name in page_files())})


def router(parts: Parts) -> APIRouter:
    """Serve the page, unless the server was told not to."""
    routes = APIRouter(include_in_schema=False)
    if not parts.settings.page:
        return routes
    answers = {"/page/" + name: (name, body) for name, body in page_files().items()}
    answers["/"] = answers["/page/" + INDEX]

    async def page_file(request: Request) -> Response:
        name, body = answers[path_of(request.scope)]
        tag = f'"{sha256(body).hexdigest()[:32]}"'
        headers = {**HEADERS, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=TYPES[name[name.rfind(".") :]])

    for path in answers:
        routes.add_api_route(path, page_file, methods=["GET", "HEAD"], name="page")
    return routes
