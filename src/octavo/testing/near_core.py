"""The engine of a server in the server's own event loop: for tests of everything around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from octavo.contract.memory_view import BlockFacts
from octavo.contract.namespace import Namespace
from octavo.contract.request import FinishReason, Request, Update
from octavo.contract.retention import PinFacts, TenantShare
from octavo.engine.loop import Loop, ModelRunner
from octavo.engine.messages import (
    Begun,
    Checked,
    Checks,
    CoreFacts,
    MemoryShown,
    News,
    Snapshot,
    StepTimes,
)
from octavo.errors import Corrupted, EngineGone, OctavoError, OverLimit, RequestError
from octavo.memory.groups import Groups
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs, Priority
from octavo.sched.scheduler import Scheduler
from octavo.server.core import CoreState, Listener
from octavo.server.remote.calls import Listeners
from octavo.testing.driver import make_cache
from octavo.testing.fake_runner import FakeRunner
from octavo.text.grammars.compiler import GrammarCompiler


class NearCore:
    """A `CoreClient` over a loop that is stepped between the tasks of the event loop.

    As with a process of its own, nothing is reported while a call is made. step_s: what a step
    takes at least. `die` ends the engine as a signal would; `revive` starts the one that `build`
    makes next.
    """

    def __init__(self, build: Callable[[], tuple[Loop, CoreFacts]], *, step_s: float = 0.0) -> None:
        self._build = build
        self._step_s = step_s
        self._facts: CoreFacts | None = None
        self._times = StepTimes()
        self._listeners = Listeners()
        self._fresh: set[str] = set()
        """Requests that have not begun."""
        self._paused = False
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.loop: Loop | None = None
        """To be looked at, between two steps."""
        self.state = CoreState.STARTING
        self.last_heard_s = 0.0
        self.restarts = 0
        self.last_words = ""
        self.checks = 0

    @property
    def facts(self) -> CoreFacts:
        """What the engine says of itself."""
        if self._facts is None:
            raise EngineGone("the engine has not started yet")
        return self._facts

    async def start(self) -> None:
        """Build the engine."""
        self.loop, self._facts = self._build()
        self._times = StepTimes()
        self.loop.measure(self._times)
        self.state = CoreState.PAUSED if self._paused else CoreState.READY
        self._task = asyncio.create_task(self._run())

    async def stop(self, *, at_once: bool = False) -> None:
        """End the engine."""
        self._end(CoreState.STOPPED, "the server is stopping")
        await asyncio.sleep(0)

    def die(self, words: str = "the engine's process ended (signal 9)") -> None:
        """End the engine as a signal would."""
        self.last_words = words
        self._end(CoreState.RESTARTING, words)

    async def failed(self) -> str:
        """Wait for ever: whoever lets it die may revive it."""
        await asyncio.Event().wait()
        return self.last_words

    async def revive(self) -> None:
        """Start another engine."""
        self.restarts += 1
        await self.start()

    def submit(self, request: Request, listener: Listener) -> None:
        """Queue a request. Raises EngineGone if there is no engine."""
        loop = self._living()
        self._listeners.add(request, listener)
        asyncio.get_running_loop().call_soon(self._add, loop, request)

    def finish(self, request_id: str, index: int) -> None:
        """End one choice, whose text is complete."""
        if self.loop is None:
            return
        self.loop.finish(request_id, index)
        self._listeners.finish(request_id, index)

    def abort(self, request_id: str) -> None:
        """End a request; its listener hears no more."""
        self._listeners.remove(request_id)
        if self.loop is not None:
            self.loop.abort(request_id)

    async def snapshot(self) -> Snapshot:
        """Return all counts."""
        await asyncio.sleep(0)
        loop = self._living()
        running, waiting = loop.queue_lengths
        return Snapshot(
            at_s=time.monotonic(),
            usage=loop.usage(),
            stats=loop.stats,
            running=running,
            waiting=waiting,
            num_blocks=self.facts.num_blocks,
            paused=self.state is CoreState.PAUSED,
            times=self._times,
            checks=Checks(runs=self.checks),
            blocks=loop.block_times,
        )

    async def check(self) -> Checked:
        """Recompute every count of the memory plane."""
        await asyncio.sleep(0)
        self.checks += 1
        try:
            self._living().check()
        except Corrupted as error:
            return Checked(0, Checks(self.checks, failures=1, last_error=str(error)), str(error))
        return Checked(0, Checks(self.checks))

    async def look(self, seen: int) -> MemoryShown:
        """Show what has changed in the memory."""
        await asyncio.sleep(0)
        loop = self._living()
        frame, paused = loop.look(seen), self.state is CoreState.PAUSED
        return MemoryShown(0, frame, loop.usage(), loop.stats, *loop.queue_lengths, paused)

    async def show_block(self, block: int, *, prefix: bool = False) -> BlockFacts | None:
        """Tell of one block."""
        await asyncio.sleep(0)
        return self._living().block(block, prefix=prefix)

    async def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses."""
        await asyncio.sleep(0)
        return self._living().reset_prefix_cache()

    async def unpin(self, name: str | None = None, tenant: str | None = None) -> int:
        """Let go of pins."""
        await asyncio.sleep(0)
        return self._living().unpin(name, tenant)

    async def pins(self, tenant: str | None = None) -> tuple[PinFacts, ...]:
        """Tell of pins."""
        await asyncio.sleep(0)
        return self._living().pins(tenant)

    async def pause(self, *, abort: bool = False) -> None:
        """Plan no steps until `resume`, nor in an engine that follows this one."""
        loop = self._living()
        self._paused = True
        self.state = CoreState.PAUSED
        ended = loop.requests if abort else []
        for request_id in ended:
            loop.abort(request_id)
        # Of several choices the first says it for all.
        updates = tuple(Update(name, 0, (), finish=FinishReason.ABORT) for name in ended)
        self._listeners.take_in(News(loop.stats.steps, time.monotonic(), updates))
        await asyncio.sleep(0)

    async def resume(self) -> None:
        """Go on; without an engine, the next one will. Raises EngineGone then."""
        self._paused = False
        self._living()
        self.state = CoreState.READY
        self._wake.set()
        await asyncio.sleep(0)

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _living(self) -> Loop:
        if self.loop is None or not self.state.takes_requests:
            raise EngineGone(self.last_words or f"the engine is {self.state.value}")
        return self.loop

    def _add(self, loop: Loop, request: Request) -> None:
        if loop is not self.loop or request.id not in self._listeners:
            return
        try:
            most = loop.add(request)
        except RequestError as error:
            self._listeners.refuse(request.id, str(error))
            return
        self._fresh.add(request.id)
        self._listeners.accept(request.id, most)
        self._wake.set()

    async def _run(self) -> None:
        loop = self.loop
        assert loop is not None
        while loop is self.loop:
            if self.state is CoreState.PAUSED or not loop.busy:
                self._wake.clear()
                await self._wake.wait()
                continue
            planned_s = time.monotonic()
            updates = loop.step()
            self.last_heard_s = time.monotonic()
            begun = self._fresh.intersection(update.request_id for update in updates)
            self._fresh -= begun
            self._listeners.take_in(
                News(
                    loop.stats.steps,
                    self.last_heard_s,
                    tuple(updates),
                    tuple(Begun(request_id, planned_s) for request_id in begun),
                )
            )
            await asyncio.sleep(self._step_s)

    def _end(self, state: CoreState, words: str) -> None:
        self.state = state
        if self.loop is not None:
            self.loop.close()
        self.loop = None
        self._wake.set()
        self._listeners.lose(words)


def fake_loop(
    num_blocks: int = 200,
    *,
    vocab_size: int = 50,
    max_num_seqs: int = 16,
    max_num_batched_tokens: int = 64,
    max_model_len: int = 400,
    by_priority: bool = False,
    tenants: Iterable[TenantShare] = (),
    pin_limit: float = 0.0,
    runner: ModelRunner | None = None,
    grammars: GrammarCompiler | None = None,
) -> tuple[Loop, CoreFacts]:
    """Build a loop of blocks of four tokens over a runner that computes nothing, and its facts.

    Answers are those of `fake_runner.expected_output`. grammars: what holds them to forms; None:
    nothing does.
    """
    cache = make_cache(num_blocks, Groups((4,)), tenants=tenants, pin_limit=pin_limit)
    longest = min(max_model_len, 4 * num_blocks)
    limits = Limits(max_num_seqs, max_num_batched_tokens, max_model_len, 4 * num_blocks)
    scheduler = Scheduler(cache, Priority() if by_priority else Fcfs(), limits)
    runner = runner or FakeRunner((4,), vocab_size=vocab_size, grammars=grammars)
    loop = Loop(scheduler, cache, runner, depth=2, grammars=grammars)
    facts = CoreFacts(
        namespace=Namespace(model="fake"),
        vocab_size=vocab_size,
        max_model_len=max_model_len,
        longest_text=longest,
        num_blocks=num_blocks,
        block_sizes=(4,),
        block_bytes=64,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        backend="fake",
        device="none",
    )
    return loop, facts


class Heard:
    """A listener that keeps what it hears, and says when a request has ended."""

    def __init__(self, choices: int = 1) -> None:
        self.max_tokens: int | None = None
        self.begun_s: float | None = None
        self.updates: list[Update] = []
        self.error: OctavoError | None = None
        self.ended = asyncio.Event()
        self._open = choices

    def accepted(self, max_tokens: int) -> None:
        """Keep it."""
        self.max_tokens = max_tokens

    def begun(self, at_s: float) -> None:
        """Keep it."""
        self.begun_s = at_s

    def take_in(self, update: Update, applied_s: float) -> None:
        """Keep it."""
        self.updates.append(update)
        self._open -= update.finish is not None
        if self._open <= 0 or update.finish is FinishReason.ABORT:
            self.ended.set()

    def lose(self, error: RequestError | OverLimit | EngineGone) -> None:
        """Keep it."""
        self.error = error
        self.ended.set()

    def tokens(self, index: int = 0) -> list[int]:
        """Return all tokens of a choice."""
        return [t for update in self.updates if update.index == index for t in update.tokens]
