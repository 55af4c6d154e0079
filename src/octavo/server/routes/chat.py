"""`/v1/chat/completions`."""

from __future__ import annotations

import time

from fastapi import APIRouter, Request, Response

from octavo.server.answers import Answer
from octavo.server.body import bounded_route
from octavo.server.chat_form import ChatForm
from octavo.server.generate import Generation
from octavo.server.logprobs import TokenNames
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter
from octavo.server.sampling import chat_sampling
from octavo.server.schemas.chat import ChatBody
from octavo.server.schemas.replies import ChatReply, replies

PATH = "/v1/chat/completions"


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Continue conversations."""
    generation = Generation(parts, prompter, PATH, "chatcmpl")
    route = bounded_route(parts.settings.bounds, first=generation.look)
    routes = APIRouter(tags=["generation"], route_class=route)
    names = TokenNames(parts.model.tokenizer)

    @routes.post(
        PATH, responses=replies(ChatReply, streams=True), summary="Continue a conversation"
    )
    async def create_chat_completion(body: ChatBody, request: Request) -> Response:
        return await generation.counted(request, prepare(body, request))

    async def prepare(body: ChatBody, request: Request) -> Answer:
        came_s = time.monotonic()
        terms = body.terms()
        head = generation.head(terms)
        params = chat_sampling(body, parts.model.defaults, parts.settings.bounds)
        generation.look(request, terms.priority, answers=params.choices)
        chat = body.conversation()
        prompt = await prompter.chat(body, chat)
        params, terms = prompter.read(chat, prompt, params, terms)
        form = ChatForm(body, head, names, role=parts.settings.response_role)
        return await generation.answer(request, terms, [prompt], params, form, came_s)

    return routes
