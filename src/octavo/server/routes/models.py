"""What is served: `/v1/models` and `/version`."""

from __future__ import annotations

from fastapi import APIRouter, Response

from octavo.server.failures import ApiError
from octavo.server.parts import Parts
from octavo.server.release import VERSION
from octavo.server.replies import json_response
from octavo.server.schemas.replies import ModelCard, ModelList, VersionReply, replies


def router(parts: Parts) -> APIRouter:
    """Tell of the model and of the program."""
    routes = APIRouter(tags=["models"])

    def card(name: str) -> dict[str, object]:
        model = parts.model
        return {
            "id": name,
            "object": "model",
            "created": model.created_s,
            "owned_by": "octavo",
            "root": model.root,
            "parent": None if name == model.name else model.name,
            "max_model_len": parts.core.facts.longest_text,
            "vocab_size": parts.core.facts.vocab_size,
        }

    @routes.get("/v1/models", responses=replies(ModelList), summary="All names of the model")
    async def list_models() -> Response:
        return json_response({"object": "list", "data": [card(name) for name in parts.model.names]})

    @routes.get(
        "/v1/models/{name:path}",
        responses=replies(ModelCard),
        summary="The model by one of its names",
    )
    async def show_model(name: str) -> Response:
        return json_response(card(known_model(parts, name)))

    @routes.get("/version", responses=replies(VersionReply), summary="The version of this program")
    async def version() -> Response:
        return json_response({"version": VERSION})

    return routes


def known_model(parts: Parts, name: str | None) -> str:
    """Return the model's name as the request has it; None: its first. Raises ApiError."""
    if name is None:
        return parts.model.name
    if name not in parts.model.names:
        served = ", ".join(parts.model.names)
        raise ApiError(
            404,
            f"the model {name!r:.200} is not served here; there is {served}",
            param="model",
            code="model_not_found",
        )
    return name
