"""`/v1/debug/memory`: what the KV memory holds, as it changes."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import StreamingResponse

from octavo.contract.memory_view import BlockFacts
from octavo.server.callers import is_admin, known_tenant
from octavo.server.failures import ApiError
from octavo.server.parts import Parts
from octavo.server.replies import json_response
from octavo.server.schemas.memory import BlockReply, HistoryReply
from octavo.server.schemas.replies import replies
from octavo.server.sse import HEADERS
from octavo.server.watch.feed import Feed, Stream
from octavo.server.watch.wants import MOST_CELLS, MOST_FOLLOWED, MOST_HZ, MOST_NODES, Wants

PREFIX = "/v1/debug/memory"
HISTORY = PREFIX + "/history"
_OPTIONS = frozenset(("hz", "cells", "first", "count", "follow", "tree", "once"))
_LONGEST_FOLLOW = 1024


def router(parts: Parts) -> APIRouter:
    """Show the memory, one block, and the last hour."""
    routes = APIRouter(tags=["memory"])
    feed = Feed(parts.core, parts.faults)

    @routes.get(
        PREFIX + "/events",
        response_class=StreamingResponse,
        responses={
            200: {"content": {"text/event-stream": {}}, "description": "Server-sent events"}
        },
        summary="What the KV memory holds, as it changes",
    )
    async def memory_events(
        request: Request,
        hz: Annotated[int, Query(ge=1, le=MOST_HZ, description="Frames a second, at most")] = 10,
        cells: Annotated[
            Literal["all", "none"], Query(description="Whether each block is told of")
        ] = "all",
        first: Annotated[int, Query(ge=0, description="The first block that is shown")] = 0,
        count: Annotated[int, Query(ge=1, le=MOST_CELLS, description="How many")] = MOST_CELLS,
        follow: Annotated[
            str, Query(max_length=_LONGEST_FOLLOW, description="Requests whose tables are told")
        ] = "",
        tree: Annotated[int, Query(ge=0, le=MOST_NODES, description="Nodes of prefixes")] = 0,
        once: Annotated[bool, Query(description="One snapshot, and the end")] = False,
    ) -> Response:
        _check_options(request, _OPTIONS)
        wants = Wants(
            hz=hz,
            cells=cells == "all",
            first=first,
            count=count,
            follow=_followed(follow),
            tree=tree,
            tenant=_limited_to(request, parts),
        )
        feed.check_room()
        stream = Stream(feed, parts.core, parts.model.name, wants, words=is_admin(request))
        headers = {name.decode(): value.decode() for name, value in HEADERS}
        return StreamingResponse(
            stream.events(once=once, keep_alive_s=parts.settings.keep_alive_s), headers=headers
        )

    _add_block_route(routes, parts)
    _add_history_route(routes, parts)
    return routes


def _add_block_route(routes: APIRouter, parts: Parts) -> None:
    @routes.get(
        PREFIX + "/blocks/{block}",
        responses=replies(BlockReply),
        summary="One block of the KV memory, and its text",
    )
    async def memory_block(  # pyright: ignore[reportUnusedFunction] (a route)
        request: Request,
        block: int,
        prefix: Annotated[bool, Query(description="With the text before it")] = False,
    ) -> Response:
        _check_options(request, frozenset(("prefix",)))
        facts = await parts.core.show_block(block, prefix=prefix)
        if facts is None:
            most = parts.core.facts.num_blocks - 1
            raise ApiError(404, f"there is no block {block}: they are 0 to {most}", param="block")
        tenant = _limited_to(request, parts)
        if tenant is not None and tenant not in facts.tenants:
            told = {"block": block, "state": facts.state.name.lower(), "mine": False}
            return json_response(told)
        return json_response(_told(facts, parts, shows_text=_shows_text(request, parts)))


def _add_history_route(routes: APIRouter, parts: Parts) -> None:
    @routes.get(HISTORY, responses=replies(HistoryReply), summary="The last hour, in numbers")
    async def memory_history(  # pyright: ignore[reportUnusedFunction] (a route)
        request: Request,
        step: Annotated[int, Query(description="Seconds between points: 1 or 10")] = 10,
        since: Annotated[float, Query(ge=0, description="Seconds since 1970")] = 0.0,
    ) -> Response:
        _check_options(request, frozenset(("step", "since")))
        series = parts.history.series(step)
        if series is None:
            raise ApiError(400, f"step: {step} is neither 1 nor 10", param="step")
        return json_response(series.told(since))


def _check_options(request: Request, known: frozenset[str]) -> None:
    for name in request.query_params:
        if name not in known:
            raise ApiError(
                400, f"{name!r:.80} is no option here; there is {', '.join(sorted(known))}"
            )


def _followed(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(name for name in text.split(",") if name))
    if len(names) > MOST_FOLLOWED:
        raise ApiError(
            400,
            f"follow: {len(names)} requests are more than {MOST_FOLLOWED}: open another stream",
            param="follow",
        )
    return names


def _limited_to(request: Request, parts: Parts) -> str | None:
    """Return the tenant that sees its own alone; None: whoever asks sees everything."""
    if is_admin(request) or len(parts.keys.tenants) < 2:
        return None
    return known_tenant(request, parts).name


def _shows_text(request: Request, parts: Parts) -> bool:
    """True if texts may be told: to keys, or to everybody where the server was told so."""
    needs_key = parts.keys.tenant(None) is None
    return needs_key or is_admin(request) or parts.settings.show_block_texts


def _told(facts: BlockFacts, parts: Parts, *, shows_text: bool) -> dict[str, object]:
    tokenizer, tokens = parts.model.tokenizer, facts.tokens
    told: dict[str, object] = {
        "block": facts.block,
        "state": facts.state.name.lower(),
        "mine": True,
        "group": facts.group,
        "refs": facts.refs,
        "hits": facts.hits,
        "used_s": facts.used_s,
        "age_s": facts.age_s,
        "tokens_held": facts.filled,
        "key": None if facts.key is None else facts.key.hex(),
        "parent": None if facts.parent is None else facts.parent.hex(),
        "depth": facts.depth,
        "sequences": facts.sequences,
        "tokens": tokens if shows_text else None,
        "text": None,
        "prefix_tokens": facts.prefix if shows_text else None,
    }
    if shows_text and tokenizer is not None and tokens:
        told["text"] = tokenizer.decode(list(tokens), skip_special_tokens=False)
    return told
