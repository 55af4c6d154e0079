"""The route that Prometheus reads."""

from __future__ import annotations

from fastapi import APIRouter, Response

from octavo.server.metrics.engine import CountsTenants, EngineView, TenantQueues
from octavo.server.metrics.exposition import CONTENT_TYPE, Page
from octavo.server.metrics.requests import RequestMeters
from octavo.server.metrics.values import MetricsSettings
from octavo.server.parts import Parts


def router(parts: Parts) -> APIRouter:
    """Make the route; without `RequestMeters` it tells of the engine alone."""
    api = APIRouter(tags=["metrics"])
    view = EngineView(parts.core)
    queues = TenantQueues(parts.gate) if isinstance(parts.gate, CountsTenants) else None
    meters = parts.meters if isinstance(parts.meters, RequestMeters) else None
    settings = meters.settings if meters is not None else MetricsSettings()

    @api.get("/metrics", summary="Counts, in Prometheus' text format", response_class=Response)
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction] (a route)
        await view.look()
        page = Page({"model_name": parts.model.name, "engine": "0"})
        view.write(page, waiting=parts.gate.waiting, vllm_names=settings.vllm_names)
        if queues is not None:
            queues.write(page)
        if meters is not None:
            meters.write(page)
        return Response(page.write(), media_type=CONTENT_TYPE)

    return api
