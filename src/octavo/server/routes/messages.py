"""`/v1/messages` and `/v1/messages/count_tokens`."""

from __future__ import annotations

import time
import uuid

from fastapi import APIRouter, Request, Response

from octavo.server.answers import Answer
from octavo.server.body import bounded_route
from octavo.server.chat_answers import prepare_chat
from octavo.server.forms_of_answers import message_form
from octavo.server.generate import Generation
from octavo.server.message_input import conversation_of
from octavo.server.messages_form import MessagesForm
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter
from octavo.server.replies import json_response
from octavo.server.routes.models import known_model
from octavo.server.sampling import drawn_sampling
from octavo.server.schemas.message_replies import CountReply, MessageReply, message_replies
from octavo.server.schemas.messages import CountTokensBody, MessagesBody

PATH = "/v1/messages"


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Continue conversations of Anthropic's clients."""
    generation = Generation(parts, prompter, PATH, "msg")
    route = bounded_route(parts.settings.bounds, first=generation.look)
    routes = APIRouter(tags=["generation"], route_class=route)
    known = parts.settings.chat_variables

    @routes.post(
        PATH,
        responses=message_replies(MessageReply, streams=True),
        summary="Continue a conversation, as Anthropic's API has it",
    )
    async def create_message(body: MessagesBody, request: Request) -> Response:
        return await generation.counted(request, prepare(body, request))

    @routes.post(
        PATH + "/count_tokens",
        responses=message_replies(CountReply),
        summary="How many tokens a conversation has",
    )
    async def count_tokens(body: CountTokensBody) -> Response:
        known_model(parts, body.model)
        ids = await prompter.encode(
            await prompter.render(conversation_of(body, known)), special=False
        )
        return json_response({"input_tokens": len(ids)})

    async def prepare(body: MessagesBody, request: Request) -> Answer:
        came_s, terms = time.monotonic(), body.terms()
        name = known_model(parts, body.model)
        chat = conversation_of(body, known)
        stops, most, bounds = body.stop_sequences, body.max_tokens, parts.settings.bounds
        params = drawn_sampling(
            body, stops, most, parts.model.defaults, bounds, message_form(body.output_config)
        )
        generation.look(request, terms.priority)
        ready = await prepare_chat(prompter, chat, terms, params)
        message_id = f"msg_{body.request_id or uuid.uuid4().hex}"
        form = MessagesForm(message_id, name, marked=ready.marked)
        return await generation.answer(
            request, ready.terms, [ready.prompt], ready.params, form, came_s
        )

    return routes
