"""Looks at the engine's memory for all who watch it, as often as the most curious of them wants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager, suppress

from octavo.errors import EngineGone, OverLimit
from octavo.server import sse
from octavo.server.core import CoreClient, CoreState
from octavo.server.faults import Faults
from octavo.server.watch.mirror import Mirror
from octavo.server.watch.view import Told, View
from octavo.server.watch.wants import MOST_HZ, Wants

MOST_STREAMS = 32
"""Of all clients together."""
HEARTBEAT_S = 1.0
"""With nothing new, a frame is sent so often."""
_AGAIN_S = 0.25
"""Without an engine, so often it is looked whether there is one."""
_PATIENCE_S = 30.0
"""An engine that is in a longer step is asked once more: what it answers then is thrown away."""


class Feed:
    """One mirror of the engine's memory, kept up to date while anybody watches.

    It asks for the next frame once the last one has been taken in: a server that has no time asks
    less often, and the engine does nothing for nobody. For use on one event loop.
    """

    def __init__(self, core: CoreClient, faults: Faults | None = None) -> None:
        """faults: told if it fails."""
        self._core = core
        self._faults = faults or Faults()
        self._mirror: Mirror | None = None
        self._watching: list[int] = []
        """Frames a second, of each stream."""
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    @property
    def mirror(self) -> Mirror | None:
        """The memory of the engine that is there; None: nothing has been seen of it."""
        mirror = self._mirror
        there = mirror is not None and mirror.shown is not None
        return mirror if there and self._lives(mirror) else None

    def check_room(self) -> None:
        """Raise OverLimit if too many watch for one more."""
        if len(self._watching) >= MOST_STREAMS:
            raise OverLimit(
                f"{MOST_STREAMS} streams of the memory are open already: close one, or come later",
                retry_after_s=10.0,
            )

    @contextmanager
    def watched(self, hz: int) -> Generator[None, None, None]:
        """Keep the mirror up to date meanwhile. hz: frames a second, at most."""
        self._watching.append(hz)
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            self._faults.watch("the stream of the memory", self._task)
        try:
            yield
        finally:
            self._watching.remove(hz)
            self._rest()

    def _rest(self) -> None:
        """Look no more once nobody watches."""
        if not self._watching and self._task is not None:
            self._task.cancel()
            self._task = None

    async def news(self, timeout_s: float) -> None:
        """Return once another frame has been taken in, or the engine's state may have changed."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), timeout_s)

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _lives(self, mirror: Mirror | None) -> bool:
        return (
            mirror is not None
            and mirror.epoch == self._core.restarts
            and self._core.state.takes_requests
        )

    async def _run(self) -> None:
        """Look again and again; the first look shows everything."""
        self._mirror = None
        clock = asyncio.get_running_loop().time
        while True:
            began_s = clock()
            try:
                await self._look()
            except (EngineGone, TimeoutError):
                self._ring()
                await asyncio.sleep(_AGAIN_S)
                continue
            self._ring()
            hz = max(self._watching, default=MOST_HZ)
            await asyncio.sleep(max(0.0, began_s + 1 / hz - clock()))

    async def _look(self) -> None:
        core, mirror = self._core, self._mirror
        epoch = core.restarts
        if mirror is None or mirror.epoch != epoch:
            mirror = Mirror(core.facts.block_sizes, epoch)
        shown = await asyncio.wait_for(core.look(mirror.number), _PATIENCE_S)
        if core.restarts != epoch:
            raise EngineGone("another engine has come meanwhile")
        mirror.take_in(shown)
        self._mirror = mirror

    def _ring(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Stream:
    """The events of one stream. words: what an engine that has ended said last may be told."""

    def __init__(
        self, feed: Feed, core: CoreClient, model: str, wants: Wants, *, words: bool = False
    ) -> None:
        self._feed = feed
        self._core = core
        self._model = model
        self._wants = wants
        self._words = words
        self._view: View | None = None
        self._state: CoreState = CoreState.READY
        """As it was told, or as whoever is told nothing expects it."""

    async def events(
        self, *, once: bool = False, keep_alive_s: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield events, until the server stops or nobody reads. once: one snapshot, and the end.

        keep_alive_s: a stream that has been silent for so long sends a comment.
        """
        clock = asyncio.get_running_loop().time
        sent_s = clock()
        with self._feed.watched(self._wants.hz):
            while True:
                if self._core.state is not self._state:
                    self._state, sent_s = self._core.state, clock()
                    yield self._stated()
                if self._state is CoreState.STOPPED:
                    return
                view = self._current()
                if view is not None and (view.late or clock() - sent_s >= HEARTBEAT_S):
                    sent_s = clock()
                    yield _event(view.frame())
                    if once:
                        return
                    # However long that took to be read: not more often than this.
                    await asyncio.sleep(max(0.0, sent_s + 1 / self._wants.hz - clock()))
                    continue
                if clock() - sent_s >= keep_alive_s:
                    sent_s = clock()
                    yield sse.KEEP_ALIVE
                await self._feed.news(HEARTBEAT_S)

    def _current(self) -> View | None:
        """Return the view of the engine that is there; None: nothing has been seen of it."""
        mirror = self._feed.mirror
        if mirror is None:
            return None
        if self._view is None or self._view.mirror is not mirror:
            self._view = View(mirror, self._core.facts, self._model, self._wants)
        return self._view

    def _stated(self) -> bytes:
        told: dict[str, str] = {"state": self._state.value}
        gone = self._state in (CoreState.RESTARTING, CoreState.FAILED)
        if self._words and gone:
            told["words"] = self._core.last_words
        return sse.named("state", told)


def _event(told: Told) -> bytes:
    number = f"{told['epoch']}.{told['seq']}"
    return b"id: %b\n%b" % (number.encode(), sse.named(str(told["type"]), told))
