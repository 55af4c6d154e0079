"""The events of a kept response, as an answer to whoever asks for them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from fastapi import Response
from starlette.types import Receive, Scope, Send

from octavo.server import sse
from octavo.server.doors import Doors
from octavo.server.event_log import EventLog
from octavo.server.failures import ApiError
from octavo.server.response_events import Broken


class Retold(Response):
    """Events from one of them on, up to the last that will come; it has come in by the doors.

    A client that leaves ends nothing but this. keep_alive_s: a comment is sent after such silence.
    Raises ApiError for events that are no longer there.
    """

    def __init__(self, log: EventLog, number: int, doors: Doors, *, keep_alive_s: float) -> None:
        super().__init__()
        log.check(number)
        self._log = log
        self._number = number
        self._doors = doors
        self._keep_alive_s = keep_alive_s
        self._gone = False
        doors.come_in()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send what there is, and what comes."""
        try:
            with self._log.listening() as bell:
                leaving = asyncio.create_task(self._listen(receive, bell))
                try:
                    await self._tell(send, bell)
                finally:
                    leaving.cancel()
        finally:
            self._doors.go_out()

    async def _tell(self, send: Send, bell: asyncio.Event) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": sse.HEADERS})
        while not self._gone:
            bell.clear()
            ended = self._log.ended
            try:
                body, self._number = self._log.read(self._number)
            except ApiError as error:
                body, ended = Broken.of(error, self._number).written, True
                self._number = self._log.next
            more = not ended or self._number < self._log.next
            if body or not more:
                await send({"type": "http.response.body", "body": body, "more_body": more})
            elif not await self._news(bell):
                body = sse.KEEP_ALIVE
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if not more:
                return

    async def _news(self, bell: asyncio.Event) -> bool:
        """Return True when something has changed, False after too long a silence."""
        with suppress(TimeoutError):
            await asyncio.wait_for(bell.wait(), self._keep_alive_s)
        return bell.is_set()

    async def _listen(self, receive: Receive, bell: asyncio.Event) -> None:
        """Wait for the client to leave."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        bell.set()
