"""The engine as the server sees it: something in another process that may end at any time."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from octavo.contract.memory_view import BlockFacts
from octavo.contract.request import Request, Update
from octavo.contract.retention import PinFacts
from octavo.engine.messages import Checked, CoreFacts, MemoryShown, Snapshot
from octavo.errors import EngineGone, OverLimit, RequestError


class CoreState(StrEnum):
    """Whether it takes requests."""

    STARTING = "starting"
    READY = "ready"
    PAUSED = "paused"
    """It takes requests and computes none."""
    RESTARTING = "restarting"
    """Its process has ended, and another one is on its way."""
    FAILED = "failed"
    """It has ended, and nobody starts it again."""
    STOPPED = "stopped"

    @property
    def takes_requests(self) -> bool:
        """True if a request may be submitted."""
        return self in (CoreState.READY, CoreState.PAUSED)


class Listener(Protocol):
    """Hears of one request, on the event loop; must be quick and raise nothing."""

    def accepted(self, max_tokens: int) -> None:
        """It is in the queue. max_tokens: the effective maximum of its output."""
        ...

    def begun(self, at_s: float) -> None:
        """Its first step has been planned, at this time of `time.monotonic`."""
        ...

    def take_in(self, update: Update, applied_s: float) -> None:
        """One of its choices has news, from a step applied at this time."""
        ...

    def lose(self, error: RequestError | OverLimit | EngineGone) -> None:
        """It was refused, or the engine is gone: nothing more comes."""
        ...


class CoreClient(Protocol):
    """Submits requests to an engine and hears of them. For use on one event loop.

    Each call that waits for an answer raises EngineGone if the engine ends before it comes.
    """

    @property
    def state(self) -> CoreState:
        """Whether it takes requests."""
        ...

    @property
    def facts(self) -> CoreFacts:
        """What the engine says of itself; of the last one while another is starting.

        Raises EngineGone before the first is ready.
        """
        ...

    @property
    def last_heard_s(self) -> float:
        """When it last said anything, on `time.monotonic`."""
        ...

    @property
    def restarts(self) -> int:
        """Processes that have ended and were followed by another."""
        ...

    @property
    def last_words(self) -> str:
        """Why the last one ended; empty: none has."""
        ...

    async def failed(self) -> str:
        """Return why, once it has ended and nobody starts it again."""
        ...

    async def start(self) -> None:
        """Return once the engine is ready. Raises what building it raised."""
        ...

    async def stop(self, *, at_once: bool = False) -> None:
        """End it after its step, or at once; requests that are left are lost."""
        ...

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request, whose id nobody else uses. Raises EngineGone if there is no engine."""
        ...

    def finish(self, request_id: str, index: int) -> None:
        """End one choice, whose text is complete. Its listener may still hear of it."""
        ...

    def abort(self, request_id: str) -> None:
        """End a request; its listener hears no more. Unknown or ended: no effect."""
        ...

    async def snapshot(self) -> Snapshot:
        """Return all counts, as they are between two steps."""
        ...

    async def check(self) -> Checked:
        """Let it recompute every count of the memory plane."""
        ...

    async def look(self, seen: int) -> MemoryShown:
        """Show what has changed in the memory since frame `seen`; all, if that was not the last."""
        ...

    async def show_block(self, block: int, *, prefix: bool = False) -> BlockFacts | None:
        """Tell of one block; None: there is no such block. prefix: with the text before it."""
        ...

    async def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        ...

    async def unpin(self, name: str | None = None, tenant: str | None = None) -> int:
        """Let go of pins, None: of any name or tenant; returns the blocks they held."""
        ...

    async def pins(self, tenant: str | None = None) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all."""
        ...

    async def pause(self, *, abort: bool = False) -> None:
        """Plan no steps until `resume`, nor in an engine that follows this one.

        abort: end all requests that are there.
        """
        ...

    async def resume(self) -> None:
        """Go on; without an engine, the next one will. Raises EngineGone then."""
        ...
