"""One server from its start to its end: its engine, its sockets, the signals that end it.

The first signal closes the doors, lets those inside go on for a while, and ends with status 0. The
second one ends everything at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
from collections.abc import Callable, Coroutine, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from octavo.server.core import CoreClient
from octavo.server.http import BoundedHttp
from octavo.server.listen import BACKLOG, Tls, notice_vanished
from octavo.server.parts import Parts
from octavo.server.settings import ConnectionTimes
from octavo.server.stats_log import log_stats
from octavo.server.watch.history import keep_history

SIGNALS = (signal.SIGTERM, signal.SIGINT)
FAILED = 1
"""The exit status where the engine has ended for good, and another server may have better luck."""
LOG = logging.getLogger("octavo.server")
_CLOSE_S = 5
"""Answers that have not ended so long after the engine has are cut off."""
_LAST_WORDS_S = 0.1
"""In which answers may still say that their engine has ended, where all ends at once."""
_IDLE_S = 75
"""A connection without a request is kept for so long: longer than balancers keep theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where and how it listens."""

    socket: socket.socket
    tls: Tls | None = None
    root_path: str = ""
    """Path under which a proxy shows it."""


class Ending:
    """Counts the signals that ask for the end."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._insisted = asyncio.Event()
        self.last: int = 0
        """The signal that came last."""

    def hear(self, number: int) -> None:
        """A signal has come."""
        self.last = number
        (self._insisted if self._asked.is_set() else self._asked).set()

    async def asked(self) -> None:
        """Return at the first signal."""
        await self._asked.wait()

    async def insisted(self) -> None:
        """Return at the second."""
        await self._insisted.wait()

    @property
    def status(self) -> int:
        """The exit status of a process that ends by the last signal."""
        return 128 + self.last

    @contextlib.contextmanager
    def listening(self) -> Generator[None, None, None]:
        """Hear the signals of the process while the block runs."""
        loop = asyncio.get_running_loop()
        before = {number: signal.getsignal(number) for number in SIGNALS}
        for number in SIGNALS:
            loop.add_signal_handler(number, self.hear, number)
        try:
            yield
        finally:
            for number, handler in before.items():
                loop.remove_signal_handler(number)
                if handler is not None:  # one that is not Python's stays lost
                    signal.signal(number, handler)


async def serve(
    core: CoreClient,
    make_parts: Callable[[], Parts],
    place: Place,
    *,
    ready: Callable[[Parts], None],
    ending: Ending,
) -> int:
    """Serve until signals end it, or its engine for good; returns the exit status.

    make_parts: called while the engine is loading. ready: called once the engine is there; the
    sockets are open before that, and answer 503. Raises what building the engine raised.
    """
    starting = asyncio.create_task(core.start())
    await asyncio.sleep(0)  # its process is on its way, while more is loaded here
    serving: asyncio.Task[None] | None = None
    http: _Http | None = None
    parts: Parts | None = None
    stats: asyncio.Task[None] | None = None
    history: asyncio.Task[None] | None = None
    failing: asyncio.Task[str] | None = None
    try:
        parts = make_parts()
        notice_vanished(place.socket, parts.settings.times.send_s)
        http = _Http(_app_of(parts), place, parts.settings.times)
        serving = asyncio.create_task(http.serve(sockets=[place.socket]))
        if not await _unless(ending.asked, starting):
            return ending.status  # nothing was being answered yet
        starting.result()
        ready(parts)
        if parts.settings.stats_every_s:
            stats = asyncio.create_task(log_stats(parts, parts.settings.stats_every_s))
            parts.faults.watch("the line of statistics", stats)
        history = asyncio.create_task(keep_history(parts))
        parts.faults.watch("the history of the last hour", history)
        failing = asyncio.create_task(core.failed())
        if not await _unless(ending.asked, serving, failing):
            return await _close(parts, http, ending)
        if failing.done():
            LOG.error("the engine is not started again, and the server ends: %s", failing.result())
            return await _close(parts, http, ending) or FAILED
        serving.result()  # it does not end by itself: what it raised is the reason
        return await _close(parts, http, ending)
    finally:
        starting.cancel()
        for task in (stats, history, failing):
            if task is not None:
                task.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        await core.stop(at_once=True)  # without effect where it has stopped
        if http is not None and serving is not None:
            http.should_exit = True
            await asyncio.gather(serving, return_exceptions=True)
        if parts is not None and parts.traces is not None:
            await asyncio.to_thread(parts.traces.close)


async def _close(parts: Parts, http: _Http, ending: Ending) -> int:
    """Let requests go on for a while, then end the engine; returns the exit status."""
    core, patience_s = parts.core, parts.settings.drain_timeout_s
    LOG.info("closing: %d requests may go on for %g s", parts.doors.inside, patience_s)
    draining = asyncio.create_task(parts.doors.drain(patience_s, for_good=True))
    if not await _unless(ending.insisted, draining):
        draining.cancel()
        http.end_at_once()
        await core.stop(at_once=True)
        return ending.status
    if left := draining.result():
        LOG.warning("%d requests had not ended and are cut off", left)
    # Their answers say so before the connections are closed.
    stopping = asyncio.create_task(core.stop())
    if not await _unless(ending.insisted, stopping):
        http.end_at_once()
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        return ending.status
    return 0


def _app_of(parts: Parts) -> ASGIApp:
    # It loads what speaks HTTP, which takes a while.
    from octavo.server.app import build_app

    return build_app(parts)


async def _unless(
    interruption: Callable[[], Coroutine[Any, Any, None]], *tasks: asyncio.Task[Any]
) -> bool:
    """Wait for one of some tasks; False if the interruption came first. They go on in any case."""
    interrupting = asyncio.create_task(interruption())
    try:
        await asyncio.wait((*tasks, interrupting), return_when=asyncio.FIRST_COMPLETED)
    finally:
        interrupting.cancel()
    return any(task.done() for task in tasks)


class _Http(uvicorn.Server):
    """A server that leaves signals to whoever runs it."""

    def __init__(self, app: ASGIApp, place: Place, times: ConnectionTimes) -> None:
        tls = place.tls
        config = uvicorn.Config(
            app,
            http=cast("type[BoundedHttp]", partial(BoundedHttp, times=times)),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            use_colors=False,
            server_header=False,
            proxy_headers=False,
            backlog=BACKLOG,
            timeout_keep_alive=_IDLE_S,
            timeout_graceful_shutdown=_CLOSE_S,
            root_path=place.root_path,
            ssl_certfile=None if tls is None else tls.certfile,
            ssl_keyfile=None if tls is None else tls.keyfile,
            ssl_ca_certs=None if tls is None else tls.ca_certs,
            ssl_cert_reqs=0 if tls is None else tls.cert_reqs,
        )
        super().__init__(config)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Hear none."""
        yield

    def end_at_once(self) -> None:
        """Close all connections, whatever is being sent, when it shuts down."""
        self.force_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the sockets, and wait for those who are being answered."""
        if self.force_exit:
            await asyncio.sleep(_LAST_WORDS_S)
            if tasks := [*self.server_state.tasks]:
                LOG.warning("%d requests had not ended and are cut off", len(tasks))
            for task in tasks:
                task.cancel()
            for connection in [*self.server_state.connections]:
                connection.transport.abort()
        await super().shutdown(sockets)
