"""The engine of a server, in a process of its own that is started again when it ends."""

from __future__ import annotations

import asyncio
import shutil
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import assert_never

import zmq

from octavo import errors
from octavo.contract.memory_view import BlockFacts
from octavo.contract.request import Request
from octavo.contract.retention import PinFacts
from octavo.engine.messages import (
    Abort,
    Accepted,
    BlockShown,
    Check,
    Checked,
    Command,
    CoreFacts,
    CoreSpec,
    Count,
    Counted,
    Failed,
    Finish,
    ListPins,
    LookAtMemory,
    MemoryShown,
    News,
    Pause,
    PinsListed,
    Ready,
    Refused,
    Report,
    ResetCache,
    Resume,
    Said,
    ShowBlock,
    Snapshot,
    Stop,
    Submit,
    TakeSnapshot,
    Unpin,
)
from octavo.engine.scheduling import CoreScheduling
from octavo.errors import EngineGone, OctavoError
from octavo.server.core import CoreState, Listener
from octavo.server.remote.backoff import Backoff
from octavo.server.remote.calls import Calls, Listeners
from octavo.server.remote.process import CoreProcess, private_folder

_GRACE_S = 10.0
"""A process that was told to stop and has not ended after this is killed."""

_MISSED = 3
"""Times that an engine may be found silent before it is ended."""

_STOPPING = "the server is stopping"

_OURS = ("ConfigError", "ModelError", "FetchError")
"""What building an engine raises on purpose."""


class ProcessCore:
    """A `CoreClient` of an engine in another process.

    report: told in words what the engine says, and each line of its stderr. timeout_s: an engine
    that has answered nothing for so long is ended and started again; 0: never. restart_limit: so
    often it is started again; 0: always. scheduling: a word of `CoreScheduling`. Raises ConfigError
    for another one.
    """

    def __init__(
        self,
        spec: CoreSpec,
        *,
        report: Callable[[str], None],
        timeout_s: float = 300.0,
        restart_limit: int = 0,
        scheduling: str = CoreScheduling.BATCH,
        backoff: Backoff | None = None,
    ) -> None:
        if scheduling not in list(CoreScheduling):
            raise errors.ConfigError(
                f"core_scheduling {scheduling!r} is not one of {', '.join(CoreScheduling)}"
            )
        self._spec = spec
        self._report = report
        self._timeout_s = timeout_s
        self._restart_limit = restart_limit
        self._scheduling = scheduling
        self._backoff = backoff or Backoff()
        self._facts: CoreFacts | None = None
        self._folder = Path()
        self._context: zmq.Context[zmq.Socket[bytes]] | None = None
        self._process: CoreProcess | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[OctavoError | None] | None = None
        """What the start of a process comes to."""
        self._calls = Calls()
        self._listeners = Listeners()
        self._paused = False
        self._failure = ""
        """What the process itself gave as the reason of its end."""
        self._failed = asyncio.Event()
        self.state = CoreState.STARTING
        self.last_heard_s = 0.0
        self.restarts = 0
        self.last_words = ""

    @property
    def facts(self) -> CoreFacts:
        """What the engine says of itself; of the last one while another is starting."""
        if self._facts is None:
            raise EngineGone("the engine has not started yet")
        return self._facts

    @property
    def pid(self) -> int | None:
        """Of the engine's process; None: there is none."""
        return None if self._process is None else self._process.pid

    async def failed(self) -> str:
        """Return why, once it has ended and nobody starts it again."""
        await self._failed.wait()
        return self.last_words

    async def start(self) -> None:
        """Return once the engine is ready. Raises what building it raised."""
        self._folder = private_folder()
        self._context = zmq.Context[zmq.Socket[bytes]]()
        try:
            await self._begin()
        except BaseException:
            await self.stop(at_once=True)
            raise
        self._supervisor = asyncio.create_task(self._supervise())

    async def stop(self, *, at_once: bool = False) -> None:
        """End it after its step, or at once; requests that are left are lost."""
        if self.state is CoreState.STOPPED:
            # Whoever asked before may have been too patient, and has been interrupted.
            if at_once and self._process is not None:
                self._process.kill()
                await self._bury(self._process)
                self._clean_up()
            return
        listens = self.state.takes_requests
        self.state = CoreState.STOPPED
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.gather(self._supervisor, return_exceptions=True)
        if self._process is not None:
            if listens and not at_once:
                self._process.send(Stop())
            else:
                self._process.kill()
            await self._bury(self._process)
        self._clean_up()

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request, whose id nobody else uses. Raises EngineGone if there is no engine."""
        process = self._living()
        self._listeners.add(request, listener)
        process.send(Submit(request))

    def finish(self, request_id: str, index: int) -> None:
        """End one choice, whose text is complete. Its listener may still hear of it."""
        self._listeners.finish(request_id, index)
        self._send(Finish(request_id, index))

    def abort(self, request_id: str) -> None:
        """End a request; its listener hears no more. Unknown or ended: no effect."""
        if self._listeners.remove(request_id):
            self._send(Abort(request_id))

    async def snapshot(self) -> Snapshot:
        """Return all counts, as they are between two steps."""
        return (await self._calls.ask(self._ask, TakeSnapshot, Counted)).snapshot

    async def check(self) -> Checked:
        """Let it recompute every count of the memory plane."""
        return await self._calls.ask(self._ask, Check, Checked)

    async def look(self, seen: int) -> MemoryShown:
        """Show what has changed in the memory since frame `seen`; all, if that was not the last."""
        return await self._calls.ask(self._ask, lambda call: LookAtMemory(call, seen), MemoryShown)

    async def show_block(self, block: int, *, prefix: bool = False) -> BlockFacts | None:
        """Tell of one block; None: there is no such block. prefix: with the text before it."""
        answer = await self._calls.ask(
            self._ask, lambda call: ShowBlock(call, block, prefix), BlockShown
        )
        return answer.facts

    async def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        return (await self._calls.ask(self._ask, ResetCache, Count)).value

    async def unpin(self, name: str | None = None, tenant: str | None = None) -> int:
        """Let go of pins, None: of any name or tenant; returns the blocks they held."""
        answer = await self._calls.ask(self._ask, lambda call: Unpin(call, name, tenant), Count)
        return answer.value

    async def pins(self, tenant: str | None = None) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all."""
        answer = await self._calls.ask(self._ask, lambda call: ListPins(call, tenant), PinsListed)
        return answer.pins

    async def pause(self, *, abort: bool = False) -> None:
        """Plan no steps until `resume`, nor in a process that follows this one."""
        self._living()
        self._paused = True
        self.state = CoreState.PAUSED
        await self._calls.ask(self._ask, lambda call: Pause(call, abort), Count)

    async def resume(self) -> None:
        """Go on; without an engine, the next one will. Raises EngineGone then."""
        self._paused = False
        self._living()
        self.state = CoreState.READY
        await self._calls.ask(self._ask, Resume, Count)

    # ── lives ─────────────────────────────────────────────────────────────────────────────

    async def _begin(self) -> None:
        """Start a process; return once its engine is ready. Raises what building it raised."""
        self._failure = ""
        self._ready = asyncio.get_running_loop().create_future()
        assert self._context is not None, "it has not been started"
        process = CoreProcess(self._folder, self.restarts, self._context)
        process.start(self._spec, self._scheduling, self._hear, self._report)
        self._process = process
        end = asyncio.create_task(process.ended())
        try:
            await asyncio.wait((self._ready, end), return_when=asyncio.FIRST_COMPLETED)
            error = self._ready.result() if self._ready.done() else EngineGone(end.result())
        finally:
            end.cancel()
        if error is not None:
            await self._bury(process)
            raise error
        if self._paused:
            process.send(Pause(0))
        self.state = CoreState.PAUSED if self._paused else CoreState.READY

    async def _supervise(self) -> None:
        """Start another process whenever one ends; whatever ends this is told."""
        try:
            await self._restart_until_enough()
        except Exception as error:
            self._report("".join(traceback.format_exception(error)))
            self._give_up(f"nobody watches the engine any more: {type(error).__name__}: {error}")
            if self._process is not None:
                self._process.kill()
                await self._bury(self._process)

    def _give_up(self, words: str) -> None:
        self.state, self.last_words = CoreState.FAILED, words
        self._lose(words)
        self._failed.set()

    async def _restart_until_enough(self) -> None:
        while True:
            began_s = time.monotonic()
            words = await self._live()
            while True:
                self.last_words = words
                if self._restart_limit and self.restarts >= self._restart_limit:
                    self._report(f"{words}; it is not started again: it was {self.restarts} times")
                    self._give_up(words)
                    return
                wait_s = self._backoff.after(time.monotonic() - began_s)
                self._report(f"{words}; it is started again in {wait_s:g} s")
                await asyncio.sleep(wait_s)
                self.restarts += 1
                began_s = time.monotonic()
                try:
                    await self._begin()
                except Exception as error:
                    # Whatever it is: without this task nobody would start another one, or say so.
                    words = _words_of(error)
                    for trace in getattr(error, "__notes__", ()):
                        self._report(trace)
                    if self._process is not None:
                        self._process.kill()
                        await self._bury(self._process)
                else:
                    break

    async def _live(self) -> str:
        """Wait for the end of the process; returns why it ended."""
        process = self._process
        assert process is not None
        end = asyncio.create_task(process.ended())
        silence = asyncio.create_task(self._watch_silence(process))
        try:
            words = await end
        finally:
            silence.cancel()
            end.cancel()
        words = f"the engine has failed: {self._failure}" if self._failure else words
        self.last_words = words
        self.state = CoreState.RESTARTING
        self._lose(words)
        await self._bury(process)
        return words

    async def _watch_silence(self, process: CoreProcess) -> None:
        """End a process that has answered nothing for too long, or that cannot be asked."""
        missed, heard_s = 0, self.last_heard_s
        try:
            while self._timeout_s and missed < _MISSED:
                # Nobody waits for this answer; that it comes is what counts.
                process.send(TakeSnapshot(0))
                await asyncio.sleep(self._timeout_s / _MISSED)
                # Counted, not timed: this event loop may have been the one that stood still.
                missed = 0 if self.last_heard_s != heard_s else missed + 1
                heard_s = self.last_heard_s
        except Exception as error:
            # Whatever it is: without this task one that hangs would hang for ever.
            self._failure = f"it cannot be asked whether it lives: {type(error).__name__}: {error}"
            process.kill()
        if missed >= _MISSED:
            self._failure = f"it answered nothing for {self._timeout_s:g} s"
            process.kill()

    async def _bury(self, process: CoreProcess) -> None:
        """Let a process end, by force if need be, before anything takes its place."""
        try:
            await asyncio.wait_for(process.ended(), _GRACE_S)
        except TimeoutError:
            process.kill()
            await process.ended()
        process.close()
        if self._process is process:
            self._process = None

    def _clean_up(self) -> None:
        """Nothing is left of what was started."""
        self._lose(_STOPPING)
        if self._context is not None:
            self._context.term()
            shutil.rmtree(self._folder, ignore_errors=True)

    def _lose(self, words: str) -> None:
        self._calls.lose(words)
        self._listeners.lose(words)

    # ── to and from the process ───────────────────────────────────────────────────────────

    def _living(self) -> CoreProcess:
        if self._process is None or not self.state.takes_requests:
            gone = self.state in (CoreState.RESTARTING, CoreState.FAILED)
            raise EngineGone(self.last_words if gone else f"the engine is {self.state.value}")
        return self._process

    def _ask(self, command: Command) -> None:
        self._living().send(command)

    def _send(self, command: Command) -> None:
        if self._process is not None and self.state.takes_requests:
            self._process.send(command)

    def _hear(self, report: Report) -> None:
        self.last_heard_s = time.monotonic()
        match report:
            case News():
                self._listeners.take_in(report)
            case Accepted(request_id=request_id, max_tokens=most):
                self._listeners.accept(request_id, most)
            case Refused(request_id=request_id, message=message, retry_after_s=later_s):
                self._listeners.refuse(request_id, message, later_s)
            case Count() | PinsListed() | Counted() | Checked() | MemoryShown() | BlockShown():
                self._calls.take_in(report)
            case Said(text=text):
                self._report(text)
            case Ready(facts=facts):
                self._facts = facts
                self._settle(None)
            case Failed(kind=kind, message=message):
                self._failure = message if kind in _OURS else f"{kind}: {message}"
                self._settle(_error_of(report))
            case _:
                assert_never(report)

    def _settle(self, error: OctavoError | None) -> None:
        if self._ready is not None and not self._ready.done():
            self._ready.set_result(error)


def _error_of(failed: Failed) -> OctavoError:
    """Return what building an engine raised in its process; its trace, if any, as a note."""
    if failed.kind in _OURS:
        return getattr(errors, failed.kind)(failed.message)
    error = EngineGone(f"the engine could not be built: {failed.kind}: {failed.message}")
    if failed.trace:
        error.add_note(failed.trace)
    return error


def _words_of(error: Exception) -> str:
    """Return why a process could not be started."""
    if isinstance(error, OctavoError):
        return str(error)
    return f"the engine's process could not be started: {type(error).__name__}: {error}"
