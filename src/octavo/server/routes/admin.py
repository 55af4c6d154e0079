"""The administrator's routes; without an administrator's key there are none of them."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from fastapi import APIRouter, Query, Response

from octavo.errors import EngineGone
from octavo.server.core import CoreState
from octavo.server.parts import Parts
from octavo.server.release import VERSION
from octavo.server.replies import json_response

_LONGEST_DRAIN_S = 3600.0


def router(parts: Parts) -> APIRouter:
    """Make the routes; `middleware.ADMIN_PATHS` names them for whoever looks at the keys."""
    routes = APIRouter(tags=["administration"])
    if parts.keys.admin(None) is None:
        return routes
    _add_engine_routes(routes, parts)
    _add_door_routes(routes, parts)

    @routes.get("/server_info", summary="What runs here: engine, flags, tenants and their limits")
    async def server_info() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        return json_response(_info(parts))

    return routes


def _add_engine_routes(routes: APIRouter, parts: Parts) -> None:
    @routes.post("/reset_prefix_cache", summary="Forget all cached texts that nobody uses")
    @routes.post("/flush_cache", include_in_schema=False)
    async def reset_prefix_cache() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        return json_response({"blocks": await parts.core.reset_prefix_cache()})

    @routes.post("/check", summary="Recompute every count of the memory")
    async def check() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        checked = await parts.core.check()
        return json_response(
            {
                "ok": not checked.error,
                "error": checked.error or None,
                "checks": msgspec.to_builtins(checked.checks),
            }
        )


def _add_door_routes(routes: APIRouter, parts: Parts) -> None:
    @routes.post("/pause", summary="Compute nothing; requests are still taken, and wait")
    async def pause(  # pyright: ignore[reportUnusedFunction] (a route)
        mode: Annotated[
            Literal["keep", "abort"],
            Query(description="abort: what runs and waits ends, with finish_reason abort"),
        ] = "keep",
    ) -> Response:
        await parts.core.pause(abort=mode == "abort")
        return json_response({"paused": True})

    @routes.post("/resume", summary="End a pause, or a drain")
    async def resume() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        parts.doors.open()
        with suppress(EngineGone):  # the next one is not paused
            await parts.core.resume()
        return json_response({"paused": False, "draining": parts.doors.draining})

    @routes.get("/is_paused", summary="Whether it is paused, or draining")
    async def is_paused() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        return json_response(
            {
                "paused": parts.core.state is CoreState.PAUSED,
                "draining": parts.doors.draining,
                "inside": parts.doors.inside,
            }
        )

    @routes.post("/drain", summary="Refuse new requests and wait for those that run")
    async def drain(  # pyright: ignore[reportUnusedFunction] (a route)
        timeout_s: Annotated[
            float | None,
            Query(ge=0, le=_LONGEST_DRAIN_S, description="How long to wait for them"),
        ] = None,
    ) -> Response:
        wait_s = parts.settings.drain_timeout_s if timeout_s is None else timeout_s
        left = await parts.doors.drain(wait_s)
        return json_response({"draining": True, "left": left})


def _info(parts: Parts) -> dict[str, object]:
    core = parts.core
    try:
        facts: object = msgspec.to_builtins(core.facts)
    except EngineGone:
        facts = None
    return {
        "version": VERSION,
        "model": parts.model.name,
        "state": core.state.value,
        "restarts": core.restarts,
        "last_words": core.last_words,
        "faults": parts.faults.names,
        "silent_s": max(0.0, time.monotonic() - core.last_heard_s) if core.last_heard_s else None,
        "engine": facts,
        "tenants": [
            {
                "name": tenant.name,
                "namespace": tenant.namespace,
                "guaranteed": tenant.guaranteed,
                "maximum": tenant.maximum,
                "limits": msgspec.to_builtins(tenant.limits),
            }
            for tenant in parts.keys.tenants
        ],
        **parts.about,
    }
