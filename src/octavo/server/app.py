"""The HTTP application: all routes of a server, over its parts."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from octavo.server.failures import add_failures
from octavo.server.middleware import add_guards
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter
from octavo.server.release import VERSION
from octavo.server.routes import (
    admin,
    chat,
    completions,
    embeddings,
    health,
    memory,
    messages,
    metrics,
    models,
    page,
    pins,
    responses,
    tokens,
)
from octavo.server.schemas.errors import FAILURES

PROMPTED: tuple[Callable[[Parts, Prompter], APIRouter], ...] = (
    completions.router,
    embeddings.router,
    chat.router,
    responses.router,
    messages.router,
    pins.router,
    tokens.router,
)
"""Those whose requests hold prompts."""

ROUTERS: tuple[Callable[[Parts], APIRouter], ...] = (
    models.router,
    metrics.router,
    memory.router,
    health.router,
    admin.router,
    page.router,
)
"""Those of which each needs nothing but the parts, in the order of the document."""


def build_app(parts: Parts) -> FastAPI:
    """Return the application; whoever runs it starts the engine first, and stops it."""
    app = FastAPI(
        title="octavo",
        version=VERSION,
        description="A language model behind the API that clients of OpenAI's use.",
        # Their pages load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Spans of the framework's own may hold what a request says; ours are in `traces`.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
        openapi_url="/openapi.json" if parts.settings.document else None,
        generate_unique_id_function=_name,
        responses=FAILURES,
    )
    prompter = Prompter(parts)
    for router in PROMPTED:
        app.include_router(router(parts, prompter))
    for plain in ROUTERS:
        app.include_router(plain(parts))
    add_failures(app, parts)
    add_guards(app, parts)
    return app


def _name(route: APIRoute) -> str:
    return route.name
