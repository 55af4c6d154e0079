"""An engine that is told what to do by messages and reports what comes of it, in one thread."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol, assert_never

from octavo.contract.batch import Batch
from octavo.contract.request import FinishReason, Request, Update
from octavo.engine.checker import Checker
from octavo.engine.loop import Loop
from octavo.engine.messages import (
    Abort,
    Accepted,
    Begun,
    BlockShown,
    Check,
    Checked,
    Checks,
    Command,
    CoreFacts,
    CoreSpec,
    Count,
    Counted,
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
    StepTimes,
    Stop,
    Submit,
    TakeSnapshot,
    Unpin,
)
from octavo.errors import OctavoError, OverLimit, RequestError

IDLE_S = 1.0
"""With nothing to do for so long, every count is recomputed, once."""

_RARELY = 100
"""Recomputing takes at most one part in so many of the time: who comes meanwhile waits for it."""

_COMPILED_S = 0.002
"""With nothing to do but to wait for a form to be compiled, it is looked at so often."""

WATCHED_S = 10.0
"""Whoever has not looked at the memory for so long does not watch it any more."""

_LOOK_ROUND = 256
"""Steps after which a busy engine looks whether anybody is left to hear of them."""


class Channel(Protocol):
    """Brings commands and takes reports, each in order."""

    def receive(self, timeout_s: float) -> Command | None:
        """Return the next command; None: there was none for so long. 0: do not wait."""
        ...

    def send(self, report: Report) -> None:
        """Hand over a report; returns at once."""
        ...

    @property
    def abandoned(self) -> bool:
        """True once nobody hears the reports any more."""
        ...


class Core:
    """Steps a loop and obeys between two steps.

    Each step's news is sent before the next is planned: it is read while that one is computed. All
    commands that have come are obeyed before a plan, so that nothing is computed for a request
    beyond the steps in flight when its abort came.
    """

    def __init__(
        self,
        loop: Loop,
        facts: CoreFacts,
        channel: Channel,
        *,
        clock: Callable[[], float] = time.monotonic,
        idle_s: float = IDLE_S,
    ) -> None:
        self._loop = loop
        self._facts = facts
        self._channel = channel
        self._clock = clock
        self._idle_s = idle_s
        self._paused = False
        self._stopped = False
        self._looked_over = True
        """Every count was recomputed since the last work."""
        self._check_again_s = 0.0
        """Not before this time by itself."""
        self._fresh: set[str] = set()
        """Requests for which nothing has been computed."""
        self._compiling: dict[str, tuple[Request, Future[None]]] = {}
        """Requests whose forms are being compiled, in the order they came."""
        self._begun: list[Begun] = []
        self._looks: list[LookAtMemory] = []
        """Not answered yet."""
        self._looked_s: float | None = None
        """When somebody looked at the memory last; None: nobody watches it."""
        self._asked_s = clock()
        """When there was a command last that does not only look."""
        self._checker = Checker(loop)
        self._rounds = 0
        self._times = StepTimes()
        loop.measure(self._times)
        loop.show_plans(self._note_begun)
        loop.call_meanwhile(self._answer_looks)

    @property
    def checks(self) -> Checks:
        """How often every count was recomputed."""
        return self._checker.checks

    def run(self) -> None:
        """Serve until told to stop, or until nobody is left to serve; closes the loop."""
        try:
            self._channel.send(Ready(self._facts))
            while not self._stopped:
                self._turn()
        finally:
            self._loop.close()

    def _turn(self) -> None:
        """Obey what has come; then step, or wait."""
        works = self._loop.busy and not self._paused
        patience_s = _COMPILED_S if self._compiling else self._idle_s
        command = self._channel.receive(0.0 if works else patience_s)
        silent = command is None
        while command is not None:
            self._obey(command)
            if self._stopped:
                return
            command = self._channel.receive(0.0)
        self._queue_compiled()
        if self._looked_s is not None:
            silent = self._watch() or silent
        self._rounds += 1
        if (silent and not works) or self._rounds % _LOOK_ROUND == 0:
            self._stopped = self._channel.abandoned
        if self._loop.busy and not self._paused:
            self._looked_over, self._asked_s = False, self._clock()
            self._tell(self._loop.step())
            self._answer_looks()  # of a step that had nothing to submit
        elif silent and not (self._looked_over or self._loop.busy or self._compiling):
            before_s = self._clock()
            if before_s >= self._check_again_s:
                self._check()
                self._check_again_s = before_s + _RARELY * (self._clock() - before_s)

    def _watch(self) -> bool:
        """Answer looks that no step is there for; returns True if there was nothing else to do."""
        now_s = self._clock()
        if not self._loop.busy or self._paused:
            self._answer_looks()
        if self._looked_s is not None and now_s - self._looked_s > WATCHED_S:
            self._looked_s = None
            self._loop.look_away()
        return now_s - self._asked_s >= self._idle_s

    def _answer_looks(self) -> None:
        """Show the memory to whoever has asked: beside a step, or while there is none."""
        looks = self._looks
        if not looks:
            return
        running, waiting = self._loop.queue_lengths
        for look in looks:
            self._channel.send(
                MemoryShown(
                    look.call,
                    self._loop.look(look.seen),
                    self._loop.usage(),
                    self._loop.stats,
                    running,
                    waiting + len(self._compiling),
                    self._paused,
                )
            )
        looks.clear()

    def _tell(self, updates: list[Update]) -> None:
        if self._fresh:  # one may end before anything is computed for it
            self._fresh -= {update.request_id for update in updates if update.finish is not None}
        if updates or self._begun:
            begun, self._begun = tuple(self._begun), []
            steps = self._loop.stats.steps
            self._channel.send(News(steps, self._clock(), tuple(updates), begun))

    def _note_begun(self, batch: Batch, planned_s: float) -> None:
        if not self._fresh:
            return
        for piece in batch.slices:
            request_id = self._loop.request_of(piece.seq)
            if request_id in self._fresh:
                self._fresh.discard(request_id)
                self._begun.append(Begun(request_id, planned_s))

    # ── commands ──────────────────────────────────────────────────────────────────────────

    def _obey(self, command: Command) -> None:
        match command:
            case LookAtMemory() | ShowBlock():
                self._show(command)
                return
            case Submit(request=request):
                self._submit(request)
            case Abort(request_id=request_id):
                self._abort(request_id)
            case Finish(request_id=request_id, index=index):
                self._fresh.discard(request_id)  # it has text: it has begun
                self._loop.finish(request_id, index)
            case TakeSnapshot(call=call):
                self._channel.send(Counted(call, self._snapshot()))
                return
            case Pause() | Resume() | ResetCache():
                self._channel.send(self._control(command))
            case Unpin() | ListPins():
                self._channel.send(self._about_pins(command))
            case Check(call=call):
                error = self._check()
                self._channel.send(Checked(call, self.checks, error))
            case Stop():
                self._stopped = True
                self._tell(self._loop.settle())
            case CoreSpec():
                raise AssertionError("an engine is built once")
            case _:
                assert_never(command)
        self._asked_s = self._clock()

    def _show(self, command: LookAtMemory | ShowBlock) -> None:
        """Note that somebody looks, or tell of a block at once."""
        if isinstance(command, LookAtMemory):
            self._looks.append(command)
            self._looked_s = self._clock()
        else:
            facts = self._loop.block(command.block, prefix=command.prefix)
            self._channel.send(BlockShown(command.call, facts))

    def _control(self, command: Pause | Resume | ResetCache) -> Count:
        if isinstance(command, Pause):
            return Count(command.call, self._pause(abort=command.abort))
        if isinstance(command, ResetCache):
            return Count(command.call, self._loop.reset_prefix_cache())
        self._paused = False
        return Count(command.call)

    def _submit(self, request: Request) -> None:
        """Queue a request, or wait until the form of its answer is compiled; others go on."""
        form = request.sampling.structured_outputs
        if form is None:
            self._queue(request)
            return
        try:
            if request.id in self._compiling:
                raise RequestError(f"request id {request.id!r} is in use; choose another")
            self._compiling[request.id] = (request, self._loop.grammars.begin(form))
        except OctavoError as error:
            self._refuse(request, error)
        else:
            self._queue_compiled()

    def _queue_compiled(self) -> None:
        done = [request for request, form in self._compiling.values() if form.done()]
        for request in done:
            del self._compiling[request.id]
            self._queue(request)

    def _queue(self, request: Request) -> None:
        try:
            most = self._loop.add(request)
        except OctavoError as error:
            self._refuse(request, error)
            return
        self._fresh.add(request.id)
        self._channel.send(Accepted(request.id, most))

    def _abort(self, request_id: str) -> None:
        self._compiling.pop(request_id, None)
        self._fresh.discard(request_id)
        self._loop.abort(request_id)

    def _refuse(self, request: Request, error: OctavoError) -> None:
        later_s = error.retry_after_s if isinstance(error, OverLimit) else None
        self._channel.send(Refused(request.id, str(error), later_s))

    def _about_pins(self, command: Unpin | ListPins) -> Count | PinsListed:
        """Let go of pins, or tell of them; a tenant that there is not holds nothing."""
        call, tenant = command.call, command.tenant
        try:
            if isinstance(command, ListPins):
                return PinsListed(call, self._loop.pins(tenant))
            return Count(call, self._loop.unpin(command.name, tenant))
        except RequestError:
            return PinsListed(call, ()) if isinstance(command, ListPins) else Count(call, 0)

    def _pause(self, *, abort: bool) -> int:
        """Plan no more steps; returns the requests that were ended."""
        self._paused = True
        self._tell(self._loop.settle())
        ended = [*self._loop.requests, *self._compiling] if abort else []
        for request_id in ended:
            self._abort(request_id)
        # Of several choices the first says it for all.
        self._tell([Update(name, 0, (), finish=FinishReason.ABORT) for name in ended])
        return len(ended)

    def _snapshot(self) -> Snapshot:
        running, waiting = self._loop.queue_lengths
        return Snapshot(
            at_s=self._clock(),
            usage=self._loop.usage(),
            stats=self._loop.stats,
            running=running,
            waiting=waiting + len(self._compiling),
            num_blocks=self._facts.num_blocks,
            paused=self._paused,
            times=self._times,
            checks=self.checks,
            blocks=self._loop.block_times,
        )

    def _check(self) -> str:
        """Recompute every count, and set right what is wrong; returns what was.

        Raises Corrupted if it cannot be set right.
        """
        self._looked_over = True
        found = self._checker.check()
        if found.ok:
            return ""
        wrong, out = found.error or "", found.checks.quarantined
        self._channel.send(
            Said(
                f"counts of the KV memory were wrong: {wrong}; all cached texts are forgotten, "
                f"running requests compute theirs again, and {out} blocks are used no more"
            )
        )
        return wrong
