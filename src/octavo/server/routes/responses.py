"""`/v1/responses`."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.types import Scope

from octavo.contract.batch import Logprobs
from octavo.errors import OctavoError
from octavo.server.answers import Answer, Unheard
from octavo.server.body import bounded_route
from octavo.server.callers import known_tenant, request_id_of
from octavo.server.chat_answers import prepare_chat
from octavo.server.event_log import EventLog
from octavo.server.failures import ApiError, as_api_error
from octavo.server.forms_of_answers import text_form
from octavo.server.generate import Generation
from octavo.server.logprobs import TokenNames, token_logprobs
from octavo.server.parts import Parts
from octavo.server.prompting import Prompter
from octavo.server.replies import json_response
from octavo.server.response_input import turns_of
from octavo.server.responses_form import ResponsesForm, response_base
from octavo.server.retold import Retold
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

    @routes.get(
        ONE,
        responses=replies(ResponseReply, streams=True),
        summary="A response, as it stands, or its events",
    )
    async def get_response(
        response_id: str,
        request: Request,
        stream: Annotated[
            bool, Query(description="Its events, if it was asked for with background and stream")
        ] = False,
        starting_after: Annotated[
            int | None, Query(ge=0, lt=2**63, description="Only events with a greater number")
        ] = None,
    ) -> Response:
        stored = writer.stored.get(known_tenant(request, parts).name, response_id)
        if stream:
            return writer.retell(stored, 0 if starting_after is None else starting_after + 1)
        if starting_after is not None:
            raise ApiError(
                400, "starting_after: it numbers events: set stream", param="starting_after"
            )
        return _written(stored)

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
        self._names = TokenNames(parts.model.tokenizer)
        self._behind = set[asyncio.Task[None]]()
        """What runs in the background: a task that nobody holds may vanish."""

    async def create(self, body: ResponsesBody, request: Request) -> Response:
        """Return the response, or what is known of one that runs in the background."""
        kept, tenant = body.kept, known_tenant(request, self._parts).name
        events = EventLog() if body.background and body.stream else None
        form, before = self._form(body, events), self._before(body, tenant)
        stored = StoredResponse(form, before, events) if kept else None
        if stored is not None:
            form.on_end = _on_this_loop(partial(self.stored.end, tenant, stored))
        preparing = self._prepare(body, request, form, before)
        answer = await self._generation.counted(request, preparing)
        if isinstance(answer, Unheard) or stored is None or not body.background:
            return answer
        leaving = asyncio.Event()
        stored.cancel = leaving.set
        self.stored.put(tenant, stored)
        grow = partial(self.stored.grow, tenant, stored)
        if events is not None:
            form.open()
            grow()
        task = asyncio.create_task(_run_behind(answer, form, request.scope, leaving, grow))
        self._behind.add(task)
        task.add_done_callback(self._behind.discard)
        return _written(stored) if events is None else self.retell(stored, 0)

    def retell(self, stored: StoredResponse, number: int) -> Response:
        """Return the events of a response from a number on. Raises ApiError if it has none."""
        if stored.events is None:
            raise ApiError(
                400,
                "stream: events are kept of responses that were asked for with background and "
                "stream: fetch this one without stream",
                param="stream",
            )
        parts = self._parts
        wait_s = parts.settings.keep_alive_s
        return Retold(stored.events, number, parts.doors, keep_alive_s=wait_s)

    async def cancel(self, stored: StoredResponse) -> Response:
        """End a response; returns it as it is then. Raises ApiError for one that is waited for."""
        if stored.cancel is not None:
            stored.cancel()
        while not stored.ended:
            await asyncio.sleep(0.002)
        return _written(stored)

    def _form(self, body: ResponsesBody, events: EventLog | None) -> ResponsesForm:
        base = response_base(body, known_model(self._parts, body.model))
        hear = None if events is None else events.write
        likely, names = body.likely, self._names

        def score(token: int, one: Logprobs) -> object:
            return token_logprobs(names, token, one, likely or 0)

        return ResponsesForm(
            base,
            behind=bool(body.background),
            hear=hear,
            score=None if likely is None else score,
        )

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
            likely=body.likely,
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
    answer: Answer,
    form: ResponsesForm,
    scope: Scope,
    leaving: asyncio.Event,
    grow: Callable[[], None],
) -> None:
    """Let a response be written in the background; leaving: ends it. grow: see `stored`."""
    try:
        await write_unheard(answer, scope, leaving, written=grow)
    except (OctavoError, HTTPException) as error:
        form.fail(as_api_error(error))
    except Exception:
        name = request_id_of(HTTPConnection(scope))
        log.exception("a response of request %s ended in an error", name)
        form.fail(ApiError(500, f"internal error, request id {name}"))
    finally:
        form.cancel()


def _on_this_loop(function: Callable[[], None]) -> Callable[[], None]:
    """Return what calls a function here at once; from another thread, as soon as may be.

    A long answer in one piece is written in a thread of its own.
    """
    loop, here = asyncio.get_running_loop(), threading.get_ident()

    def call() -> None:
        if threading.get_ident() == here:
            function()
        else:
            loop.call_soon_threadsafe(function)

    return call


def _written(stored: StoredResponse) -> Response:
    return Response(stored.body, media_type="application/json")
