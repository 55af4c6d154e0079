"""Answers that are written while nobody is at their socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from starlette.types import Message, Scope

from octavo.server.answers import Answer


async def write_unheard(
    answer: Answer,
    scope: Scope,
    leaving: asyncio.Event | None = None,
    *,
    written: Callable[[], None] | None = None,
) -> None:
    """Let an answer be written that nobody reads. Raises what it raises before its first byte.

    scope: of the request that asked for it. leaving: ends it, when it is set. written: called
    whenever more of it has been.
    """

    async def receive() -> Message:
        await (asyncio.Event() if leaving is None else leaving).wait()
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        """Nobody listens."""
        if written is not None:
            written()

    # What is noted of that request has been told when that was answered.
    own: Scope = {**scope, "state": dict(scope.get("state", {}))}
    await answer(own, receive, send)
