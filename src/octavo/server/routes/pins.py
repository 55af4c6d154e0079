"""`/v1/cache/pins`: texts that a tenant keeps in memory."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from octavo.contract.retention import PinFacts
from octavo.contract.sampling import SamplingParams
from octavo.server.answers import Answer, Unheard, Usage
from octavo.server.ask import Ask
from octavo.server.body import bounded_route
from octavo.server.callers import is_admin, known_tenant, tenant_of
from octavo.server.choice import Choice, Piece
from octavo.server.failures import ApiError
from octavo.server.generate import Generation
from octavo.server.parts import Parts
from octavo.server.prompting import Prompt, Prompter
from octavo.server.replies import json_response
from octavo.server.routes.models import known_model
from octavo.server.schemas.common import wish_of
from octavo.server.schemas.completions import CompletionBody
from octavo.server.schemas.pins import (
    MadePinReply,
    PinBody,
    PinListReply,
    UnpinReply,
)
from octavo.server.schemas.replies import replies
from octavo.server.terms import Terms
from octavo.server.unheard import write_unheard

PATH = "/v1/cache/pins"


def router(parts: Parts, prompter: Prompter) -> APIRouter:
    """Make, tell of and end pins, each tenant's own."""
    generation = Generation(parts, prompter, PATH, "pin")
    route = bounded_route(parts.settings.bounds, first=generation.look)
    routes = APIRouter(tags=["memory"])
    making = APIRouter(tags=["memory"], route_class=route)

    @making.post(
        PATH,
        responses=replies(MadePinReply),
        summary="Keep a text in memory ahead of time",
    )
    async def create_pin(body: PinBody, request: Request) -> Response:
        if tenant_of(request, parts) is None:
            raise ApiError(403, "a pin is a tenant's: make it with the tenant's key")
        form = _PinForm()
        answer = await generation.counted(request, prepare(body, request, form))
        if isinstance(answer, Unheard):
            return answer
        await write_unheard(answer, request.scope)
        pin = await find(request, body.name)
        if pin is None:
            raise _no_pin(body, form.tokens, min(parts.core.facts.block_sizes))
        told = {"tokens": form.tokens, "cached_tokens": form.cached}
        return json_response({**_told(pin), **told})

    routes.include_router(making)

    @routes.get(PATH, responses=replies(PinListReply), summary="All pins")
    async def list_pins(request: Request) -> Response:
        admin = is_admin(request)
        pins = await parts.core.pins(None if admin else known_tenant(request, parts).name)
        told = [_told(pin) | ({"tenant": pin.tenant} if admin else {}) for pin in pins]
        return json_response({"object": "list", "data": told})

    @routes.delete(PATH + "/{name:path}", responses=replies(UnpinReply), summary="End a pin")
    async def delete_pin(
        name: str,
        request: Request,
        tenant: Annotated[
            str | None, Query(description="Whose it is: for administrators alone")
        ] = None,
    ) -> Response:
        whose = _holder(request, parts, tenant)
        if not any(pin.name == name for pin in await parts.core.pins(whose)):
            raise ApiError(404, f"there is no pin {name!r:.80} (GET {PATH})", param="name")
        blocks = await parts.core.unpin(name, whose)
        told = {"object": "cache.pin", "name": name, "deleted": True, "blocks": blocks}
        return json_response(told)

    async def find(request: Request, name: str) -> PinFacts | None:
        pins = await parts.core.pins(known_tenant(request, parts).name)
        return next((pin for pin in pins if pin.name == name), None)

    async def prepare(body: PinBody, request: Request, form: _PinForm) -> Answer:
        came_s = time.monotonic()
        known_model(parts, body.model)
        wish = wish_of("pin", body.name, body.ttl_s, body.priority)
        prompt = await _prompt(prompter, body)
        terms = Terms(model=body.model, cache_salt=body.cache_salt, wish=wish)
        # The text is computed with the token after it, which nobody hears of.
        params = SamplingParams(max_tokens=1, temperature=0.0, detokenize=False)
        return await generation.answer(request, terms, [prompt], params, form, came_s)

    return routes


def _no_pin(body: PinBody, tokens: int, size: int) -> ApiError:
    """Say why there is no pin of a text that has been computed. size: tokens of a block."""
    if tokens < size:
        return ApiError(
            400,
            f"prompt: it has {tokens} tokens, and a pin holds whole blocks of {size}: "
            "pin a longer text",
            param="prompt" if body.messages is None else "messages",
        )
    return ApiError(409, f"name: the pin {body.name!r:.80} has ended already", param="name")


def _holder(request: Request, parts: Parts, tenant: str | None) -> str:
    """Return whose pin is meant. tenant: as an administrator names it. Raises ApiError."""
    own = tenant_of(request, parts)
    if tenant is not None:
        if is_admin(request):
            return tenant
        raise ApiError(400, "tenant: it is for administrators alone", param="tenant")
    if own is None:
        raise ApiError(400, "tenant: name the one whose pin it is", param="tenant")
    return own.name


async def _prompt(prompter: Prompter, body: PinBody) -> Prompt:
    if (body.prompt is None) == (body.messages is None):
        raise ApiError(400, "prompt: give either prompt or messages", param="prompt")
    chat = body.conversation()
    if chat is not None:
        special = bool(body.add_special_tokens)
        return await prompter.conversation(chat, special=special, max_tokens=1)
    text = CompletionBody.model_construct(
        prompt=body.prompt, add_special_tokens=body.add_special_tokens, max_tokens=1
    )
    (prompt,) = await prompter.completion(text)
    return prompt


def _told(pin: PinFacts) -> dict[str, object]:
    return {
        "object": "cache.pin",
        "name": pin.name,
        "blocks": pin.blocks,
        "requests": pin.requests,
        "expires_in_s": pin.left_s,
    }


class _PinForm:
    """A `Form` of which nothing is read but how much of the text was there."""

    tokens = cached = 0

    def whole(self, asks: list[Ask], usage: Usage) -> object:
        self.tokens = usage.prompt_tokens
        self.cached = usage.prompt_tokens_details["cached_tokens"]
        return None

    def chunk(self, ask: Ask, choice: Choice, piece: Piece, usage: Usage | None) -> bytes:
        return b""

    def end(self, usage: Usage | None) -> bytes:
        return b""

    def broken(self, error: ApiError) -> bytes:
        return b""
