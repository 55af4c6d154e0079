"""The route that load balancers and orchestrators ask; it needs no key."""

from __future__ import annotations

from fastapi import APIRouter, Response

from octavo.server.parts import Parts
from octavo.server.replies import json_response


def router(parts: Parts) -> APIRouter:
    """Make the route, and its other name."""
    routes = APIRouter(tags=["health"])

    @routes.get("/health", summary="200 if requests are taken, 503 with the reason if not")
    @routes.head("/health", include_in_schema=False)
    @routes.get("/ping", include_in_schema=False)
    @routes.head("/ping", include_in_schema=False)
    async def health() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        core = parts.core
        if not core.state.takes_requests:
            status = core.state.value
        elif parts.doors.draining:
            status = "draining"
        elif parts.faults.names:
            status = "fault"
        else:
            return json_response({"status": "ok"})
        # What a process said last may hold paths: /server_info tells it to administrators.
        reply = json_response({"status": status, "restarts": core.restarts})
        reply.status_code = 503
        return reply

    return routes
