"""`/v1/completions`."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from octavo.server.answers import Answer
from octavo.server.body import bounded_route
from octavo.server.completion_form import CompletionForm
from octavo.server.generate import Generation
from octavo.server.logprobs import TokenNames
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter, prompts_of
from octavo.server.sampling import completion_sampling
from octavo.server.schemas.completions import CompletionBody
from octavo.server.schemas.replies import CompletionReply, replies

PATH = "/v1/completions"


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Continue texts."""
    generation = Generation(parts, prompter, PATH, "cmpl")
    route = bounded_route(parts.settings.bounds, first=generation.look)
    routes = APIRouter(tags=["generation"], route_class=route)
    names = TokenNames(parts.model.tokenizer)

    @routes.post(
        PATH,
        responses=replies(CompletionReply, streams=True),
        summary="Continue a text, or several",
    )
    async def create_completion(body: CompletionBody, request: Request) -> Response:
        return await generation.counted(request, prepare(body, request))

    async def prepare(body: CompletionBody, request: Request) -> Answer:
        came_s = time.monotonic()
        terms = body.terms(
            silent=bool(body.echo) and body.max_tokens == 0,
            # One that echoes asks for them by its logprobs.
            scores_field="logprobs" if body.prompt_logprobs is None else "prompt_logprobs",
        )
        head = generation.head(terms)
        params = completion_sampling(body, parts.model.defaults, parts.settings.bounds)
        answers = len(prompts_of(body)) * params.choices
        generation.look(request, terms.priority, answers=answers)
        prompts = await prompter.completion(body)
        form = CompletionForm(body, head, names)
        return await generation.answer(request, terms, prompts, params, form, came_s)

    return routes
