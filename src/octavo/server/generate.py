"""What all routes that generate do with a request, once its prompts are tokens."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import Request

from octavo.contract.request import Request as Asked
from octavo.contract.sampling import SamplingParams
from octavo.engine.answer import stop_table
from octavo.server.answers import Answer, Form, Unheard, Wanted
from octavo.server.ask import Ask, Telling
from octavo.server.callers import request_id_of, tenant_of
from octavo.server.choice import Choice
from octavo.server.failures import ApiError
from octavo.server.head import Head
from octavo.server.parts import Parts
from octavo.server.prompting import Prompt, Prompter
from octavo.server.routes.models import known_model
from octavo.server.settings import RequestBounds
from octavo.server.tenants import Tenant
from octavo.server.terms import Terms
from octavo.server.text_log import TextLog

REQUESTS = "x-octavo-requests"
"""The header that says as what the engine knows a request's prompts, in their order."""
_MOST_NAMED = 64
NEVER = 2**63
"""Tokens: more than an answer has."""


class Generation:
    """Prepares answers of one route. kind: of answer, which its ids begin with."""

    def __init__(self, parts: Parts, prompter: Prompter, route: str, kind: str) -> None:
        self.parts = parts
        self._prompter = prompter
        self._route = route
        self._kind = kind
        self._log = TextLog(parts.settings)

    def look(self, request: Request, priority: int | None = None, *, answers: int = 1) -> None:
        """Raise OverLimit for a request that would be refused now; see `Gate.look`."""
        tenant = tenant_of(request, self.parts)
        if tenant is not None:
            self.parts.gate.look(tenant, priority, answers=answers)

    async def counted(
        self, request: Request, preparing: Coroutine[Any, Any, Answer]
    ) -> Answer | Unheard:
        """Let a request in by the doors; its answer, or the failure to prepare one, lets it out.

        What is being prepared for a client that leaves is given up.
        """
        self.parts.doors.come_in()
        work = asyncio.create_task(preparing)
        leaving = asyncio.create_task(_left(request))
        answered = False
        try:
            await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
            if not work.done():
                return Unheard()
            answer, answered = work.result(), True
            return answer
        finally:
            leaving.cancel()
            work.cancel()
            if not answered:
                self.parts.doors.go_out()

    def head(self, terms: Terms) -> Head:
        """Return what the objects of an answer begin with. Raises ApiError: unknown model."""
        model = self.parts.model
        known_model(self.parts, terms.model)
        return Head(
            f"{self._kind}-{terms.request_id or uuid.uuid4().hex[:24]}",
            int(time.time()),
            model.name if terms.model is None else terms.model,
            model.fingerprint,
            tells_usage=terms.stream and self._tells_usage(terms),
        )

    async def answer(
        self,
        request: Request,
        terms: Terms,
        prompts: list[Prompt],
        params: SamplingParams,
        form: Form,
        came_s: float,
        *,
        left: Callable[[list[Ask]], None] | None = None,
    ) -> Answer:
        """Return the answer to some prompts. Raises ApiError or RequestError.

        left: hears of the asks when they have ended, however they did.
        """
        tenant = tenant_of(request, self.parts)
        if tenant is None:
            raise ApiError(401, "this server needs a key", code="invalid_api_key")
        most = self.parts.settings.bounds.max_answers
        if len(prompts) * params.choices > most:
            raise ApiError(
                400,
                f"n: {len(prompts)} prompts with {params.choices} answers each are more than "
                f"{most} answers: send several requests",
                param="n",
            )
        _check_prompt_logprobs(terms, prompts, params, self.parts.settings.bounds)
        requests = await self._requests(tenant, terms, prompts, params)
        request_id = request_id_of(request)
        self._log.asked(request_id, terms, prompts)
        telling = self._telling(terms, params)

        def make(ring: Callable[[Choice | None], None]) -> list[Ask]:
            return [
                Ask(
                    one,
                    prompt,
                    self.parts.model.tokenizer,
                    first=number * params.choices,
                    telling=telling,
                    ring=ring,
                )
                for number, (one, prompt) in enumerate(zip(requests, prompts, strict=True))
            ]

        dropped = sum(prompt.dropped for prompt in prompts)
        wanted = Wanted(
            route=self._route,
            tenant=tenant,
            priority=terms.priority,
            came_s=came_s,
            stream=terms.stream,
            usage=self._tells_usage(terms),
            usage_always=terms.usage_always,
            headers={
                REQUESTS: ",".join(one.id for one in requests[:_MOST_NAMED]),
                **({"x-octavo-truncated": str(dropped)} if dropped else {}),
            },
            max_tokens=params.max_tokens,
        )

        def told(asks: list[Ask]) -> None:
            self._log.answered(request_id, asks)
            if left is not None:
                left(asks)

        return Answer(self.parts, wanted, form, make, told)

    async def _requests(
        self, tenant: Tenant, terms: Terms, prompts: list[Prompt], params: SamplingParams
    ) -> list[Asked]:
        """Return what the engine is asked. Raises RequestError."""
        salt = tenant.salt(terms.cache_salt)
        requests = await self._prompter.requests(
            prompts, params, priority=terms.priority, tenant=tenant.name, salt=salt
        )
        if terms.pooling is not None:
            pooling = terms.pooling
            requests = [msgspec.structs.replace(one, pooling=pooling) for one in requests]
        kept, hints = terms.retention, ()
        if terms.wish is not None:
            whole, hint = terms.wish.retention(), terms.wish.hint(tenant.name)
            if whole is not None and kept:
                raise ApiError(
                    400,
                    "cache_hint: cache_control says already what is kept: leave one out",
                    param="cache_hint",
                )
            kept = kept or (() if whole is None else (whole,))
            hints = () if hint is None else (hint,)
        if not (kept or hints):
            return requests
        return [msgspec.structs.replace(one, retention=kept, cache_hints=hints) for one in requests]

    def _telling(self, terms: Terms, params: SamplingParams) -> Telling:
        interval = terms.interval or self.parts.settings.stream_interval
        return Telling(
            silent=terms.silent,
            interval=interval if terms.stream else NEVER,
            kept=self._log.answers,
            stops=stop_table(params),
            cache=terms.tells_cache,
            parser=terms.parser,
            shown=terms.shown,
            scored=terms.scored,
        )

    def _tells_usage(self, terms: Terms) -> bool:
        return self.parts.settings.force_usage or terms.usage


async def _left(request: Request) -> None:
    """Return when the client has left; its body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _check_prompt_logprobs(
    terms: Terms, prompts: list[Prompt], params: SamplingParams, bounds: RequestBounds
) -> None:
    if params.prompt_logprobs is None:
        return
    tokens = sum(len(prompt.ids) for prompt in prompts)
    told = tokens * (params.prompt_logprobs + 1) * params.choices
    if told > bounds.max_prompt_logprobs:
        name = terms.scores_field
        raise ApiError(
            400,
            f"{name}: {told} of {tokens} prompt tokens, likely ones and all answers counted, are "
            f"more than {bounds.max_prompt_logprobs}: ask for fewer, or send shorter prompts",
            param=name,
        )
