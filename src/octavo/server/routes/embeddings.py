"""`/v1/embeddings`."""

from __future__ import annotations

import time
from dataclasses import replace

from fastapi import APIRouter, Request, Response

from octavo.contract.sampling import SamplingParams
from octavo.errors import RequestError
from octavo.server.answers import Answer
from octavo.server.body import bounded_route
from octavo.server.embedding_form import EmbeddingForm
from octavo.server.failures import ApiError
from octavo.server.generate import Generation
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter, prompts_of
from octavo.server.schemas.embeddings import EmbeddingBody, EmbeddingReply
from octavo.server.schemas.replies import replies
from octavo.vectors import pooling_for

PATH = "/v1/embeddings"


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Turn texts into vectors."""
    generation = Generation(parts, prompter, PATH, "embd")
    route = bounded_route(parts.settings.bounds, first=generation.look)
    routes = APIRouter(tags=["generation"], route_class=route)

    @routes.post(PATH, responses=replies(EmbeddingReply), summary="Embed a text, or several")
    async def create_embedding(body: EmbeddingBody, request: Request) -> Response:
        return await generation.counted(request, prepare(body, request))

    async def prepare(body: EmbeddingBody, request: Request) -> Answer:
        came_s, terms = time.monotonic(), body.terms()
        head = generation.head(terms)
        try:
            pooling = pooling_for(
                parts.core.facts.pooling,
                normalize=body.normalize is not False,
                dimensions=body.dimensions,
            )
        except RequestError as error:
            about = "dimensions" if str(error).startswith("dimensions") else "model"
            raise ApiError(400, str(error), param=about) from None
        prompts = body.prompts()
        if not body.input:
            raise ApiError(400, "input: there is none", param="input")
        generation.look(request, terms.priority, answers=len(prompts_of(prompts)))
        form = EmbeddingForm(head, pooling, as_base64=body.encoding_format == "base64")
        terms = replace(terms, pooling=pooling)
        params = SamplingParams(max_tokens=1)
        ready = await prompter.completion(prompts)
        return await generation.answer(request, terms, ready, params, form, came_s)

    return routes
