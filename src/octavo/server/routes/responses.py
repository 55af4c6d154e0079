"""`/v1/responses`."""

from __future__ import annotations

import asyncio
import logging
import time
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Scope

from octavo.errors import OctavoError
from octavo.server.answers import Answer, Unheard
from octavo.server.body import bounded_route
from octavo.server.callers import known_tenant, request_id_of
from octavo.server.chat_answers import prepare_chat
from octavo.server.failures import ApiError, as_api_error
from octavo.server.forms_of_answers import text_form
from octavo.server.generate import Generation
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter
from octavo.server.replies import json_response
from octavo.server.response_input import turns_of
from octavo.server.responses_form import ResponsesForm, response_base
from octavo.server.routes.models import known_model
from octavo.server.sampling import drawn_sampling
from octavo.server.schemas.replies import replies
from octavo.server.schemas.response_replies import DeletedReply, ResponseReply
from octavo.server.schemas.responses import ResponsesBody
from octavo.server.stored_responses import StoredResponse, StoredResponses
from octavo.server.unheard import write_unheard
from octavo.text.conversation import Turn

PATH = "/v1/responses"
ONE = PATH + "/{response_id}"

log = logging.getLogger("octavo.server")


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Continue conversations, and keep the answers."""
    generation = Generation(parts, prompter, PATH, "resp")
    bounded = bounded_route(parts.settings.bounds, first=generation.look)
    routes = APIRouter(tags=["generation"])
    writer = _Writer(parts, prompter, generation)
    creating = APIRouter(route_class=bounded)

    @creating.post(
        PATH, responses=replies(ResponseReply, streams=True), summary="Continue a conversation"
    )
    async def create_response(body: ResponsesBody, request: Request) -> Response:
        return await writer.create(body, request)

    routes.include_router(creating)

    @routes.get(ONE, responses=replies(ResponseReply), summary="A response, as it stands")
    async def get_response(
        response_id: str,
        request: Request,
        stream: Annotated[bool, Query(description="Must be false: fetch it again later")] = False,
    ) -> Response:
        if stream:
            raise ApiError(
                400,
                "stream: what has been kept is told in one piece: fetch it until it has ended",
                param="stream",
            )
        return _written(writer.stored.get(known_tenant(request, parts).name, response_id))

    @routes.delete(ONE, responses=replies(DeletedReply), summary="Forget a response")
    async def delete_response(response_id: str, request: Request) -> Response:
        writer.stored.drop(known_tenant(request, parts).name, response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    @routes.post(
        ONE + "/cancel",
        responses=replies(ResponseReply),
        summary="End a response of the background",
    )
    async def cancel_response(response_id: str, request: Request) -> Response:
        return await writer.cancel(
            writer.stored.get(known_tenant(request, parts).name, response_id)
        )

    return routes


class _Writer:
    """Makes responses, and keeps those that are to be kept."""

    def __init__(self, parts: Parts, prompter: Prompter, generation: Generation) -> None:
        self.stored = StoredResponses()
        self._parts = parts
        self._prompter = prompter
        self._generation = generation
        self._behind = set[asyncio.Task[None]]()
        """What runs in the background: a task that nobody holds may vanish."""

    async def create(self, body: ResponsesBody, request: Request) -> Response:
        """Return the response, or what is known of one that runs in the background."""
        kept, tenant = body.kept, known_tenant(request, self._parts).name
        form, before = self._form(body), self._before(body, tenant)
        stored = StoredResponse(form, before) if kept else None
        if stored is not None:
            form.on_end = partial(self.stored.end, tenant, stored)
        preparing = self._prepare(body, request, form, before)
        answer = await self._generation.counted(request, preparing)
        if isinstance(answer, Unheard) or stored is None or not body.background:
            return answer
        leaving = asyncio.Event()
        stored.cancel = leaving.set
        self.stored.put(tenant, stored)
        task = asyncio.create_task(_run_behind(answer, form, request.scope, leaving))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return _written(stored)

    async def cancel(self, stored: StoredResponse) -> Response:
        """End a response; returns it as it is then. Raises ApiError for one that is waited for."""
        if stored.cancel is not None:
            stored.cancel()
        while not stored.ended:
            await asyncio.sleep(0.002)
        return _written(stored)

    def _form(self, body: ResponsesBody) -> ResponsesForm:
        name = known_model(self._parts, body.model)
        return ResponsesForm(response_base(body, name), behind=bool(body.background))

    def _before(self, body: ResponsesBody, tenant: str) -> tuple[Turn, ...]:
        """Return all turns but the instructions, which are not kept."""
        turns = turns_of(body.input)
        if body.previous_response_id is not None:
            name = "previous_response_id"
            previous = self.stored.get(tenant, body.previous_response_id, param=name)
            turns = (*previous.turns, *turns)
        if not turns:
            raise ApiError(400, "input: it is empty: it must have at least one item", param="input")
        return turns

    async def _prepare(
        self, body: ResponsesBody, request: Request, form: ResponsesForm, before: tuple[Turn, ...]
    ) -> Answer:
        came_s, terms = time.monotonic(), body.terms()
        model, settings = self._parts.model, self._parts.settings
        params = drawn_sampling(
            body,
            body.stop,
            body.max_output_tokens,
            model.defaults,
            settings.bounds,
            text_form(body.text.format if body.text is not None else None),
        )
        self._generation.look(request, terms.priority)
        ready = await prepare_chat(self._prompter, body.conversation(before), terms, params)
        answer = await self._generation.answer(
            request, ready.terms, [ready.prompt], ready.params, form, came_s, left=form.left
        )
        if body.background:
            # Refused now, or taken: nobody would hear of it later.
            answer.enter()
        return answer


async def _run_behind(
    answer: Answer, form: ResponsesForm, scope: Scope, leaving: asyncio.Event
) -> None:
    """Let a response be written in the background; leaving: ends it."""
    try:
        await write_unheard(answer, scope, leaving)
    except (OctavoError, HTTPException) as error:
        form.fail(as_api_error(error))
    except Exception:
        name = request_id_of(HTTPConnection(scope))
        log.exception("a response of request %s ended in an error", name)
        form.fail(ApiError(500, f"internal error, request id {name}"))
    finally:
        form.cancel()


def _written(stored: StoredResponse) -> Response:
    return Response(stored.body, media_type="application/json")
