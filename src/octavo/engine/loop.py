"""The loop: plan, submit, collect, apply. It knows tokens, never text nor tensors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

from octavo.contract.batch import Batch, StepResult
from octavo.contract.ids import BlockId, SeqId
from octavo.contract.memory_view import BlockFacts, MemoryFrame
from octavo.contract.pooling import HowPooled, Pooling
from octavo.contract.request import FinishReason, Request, Update
from octavo.contract.retention import PinFacts
from octavo.contract.usage import Usage
from octavo.engine.grammars import Grammars, NoGrammars
from octavo.engine.messages import BlockTimes, StepTimes
from octavo.errors import RequestError
from octavo.sched.cache import Cache
from octavo.sched.scheduler import Scheduler
from octavo.sched.stats import Stats


class ModelRunner(Protocol):
    """Computes batches in the order of submission; implementations live in `runner`."""

    def submit(self, batch: Batch) -> None:
        """Start a step; at most two may wait to be collected."""
        ...

    def collect(self) -> StepResult:
        """Return the oldest result; waits for it."""
        ...

    def close(self) -> None:
        """Give memory back."""
        ...


class Observer(Protocol):
    """Is told of every request, between two steps; must be quick and raise nothing."""

    def begin(self, request: Request) -> None:
        """A request has been queued."""
        ...

    def take_in(self, update: Update, finish: FinishReason | None) -> None:
        """A choice has new tokens; `finish`: it has ended, by the update or because of its text.

        What is known of the text later than of the tokens comes as an update without tokens.
        """
        ...

    def abort(self, request_id: str) -> None:
        """A request has been ended from outside; it may be unknown, or have ended before."""
        ...

    def close(self) -> None:
        """The loop is closed."""
        ...


class Loop:
    """Steps a scheduler and a runner; requests in, updates out.

    depth: steps in flight, 1 or 2. grammars: None: no answer can be held to a form. Not for use
    from several threads at once.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: Cache,
        runner: ModelRunner,
        *,
        depth: int = 1,
        grammars: Grammars | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._depth = depth
        self._clock = clock
        self.grammars: Grammars = NoGrammars() if grammars is None else grammars
        """Whoever must not wait for a form to be compiled begins with it before `add`."""
        self.pooling: HowPooled | None = None
        """How prompts are embedded; None: they are not."""
        self._in_flight: deque[tuple[Batch, float]] = deque()
        """Steps, and what submitting each has taken."""
        self._backlog: list[Update] = []
        """News that the caller has not been given yet: an interrupt came between."""
        self._observers: list[Observer] = []
        self._show: Callable[[Batch, float], None] | None = None
        self._times: StepTimes | None = None
        self._meanwhile: Callable[[], None] | None = None
        self.block_times: BlockTimes | None = None
        """How long blocks stay, if that is measured; set by whoever measures it."""

    def show_plans(self, show: Callable[[Batch, float], None]) -> None:
        """Let every batch be seen before it is submitted, with the time it was planned at.

        show: must be quick, and raise and change nothing.
        """
        self._show = show

    def call_meanwhile(self, meanwhile: Callable[[], None]) -> None:
        """Let this be called in every step once it has been submitted, while it is computed.

        meanwhile: must be quick, and raise and change nothing.
        """
        self._meanwhile = meanwhile

    def measure(self, times: StepTimes) -> None:
        """Add to these times from now on, step by step."""
        self._times = times

    def watch(self, observer: Observer) -> None:
        """Tell an observer of every request from now on."""
        self._observers.append(observer)

    def add(self, request: Request) -> int:
        """Queue a request; returns its effective maximum of output tokens.

        Waits until the form of its answer is compiled, if it has one. Raises RequestError, changing
        nothing, if it can never be served.
        """
        if request.pooling is not None:
            self._check_pooling(request.pooling)
        form = request.sampling.structured_outputs
        if form is not None:
            self.grammars.begin(form).result()
        effective = self._scheduler.add(request)
        for observer in self._observers:
            observer.begin(request)
        return effective

    def _check_pooling(self, asked: Pooling) -> None:
        if self.pooling is None:
            raise RequestError("pooling: this model has no embeddings: leave it out")
        if asked.how != self.pooling:
            raise RequestError(
                f"pooling {asked.how}: this model's embeddings are by {self.pooling}: ask for that"
            )

    def abort(self, request_id: str, *, withdrawn: bool = False) -> None:
        """End a request now; nothing more will be heard of it. Unknown: no effect.

        withdrawn: it has not run, and its pins are taken back.
        """
        if withdrawn:
            self._scheduler.withdraw(request_id)
        else:
            self._scheduler.abort(request_id)
        self._backlog = [news for news in self._backlog if news.request_id != request_id]
        for observer in self._observers:
            observer.abort(request_id)

    def finish(self, request_id: str, index: int) -> None:
        """End one choice now, since its text is complete. Unknown or ended: no effect.

        Updates of it that are under way already may still come; they count for nothing.
        """
        if self._scheduler.finish(request_id, index):
            for observer in self._observers:
                observer.take_in(Update(request_id, index, ()), FinishReason.STOP)

    @property
    def busy(self) -> bool:
        """True while a request is not finished or a step is in flight."""
        return self._scheduler.busy or bool(self._in_flight or self._backlog)

    @property
    def requests(self) -> list[str]:
        """Ids of the requests that have not ended, in the order they came."""
        return self._scheduler.requests

    def request_of(self, seq_id: SeqId) -> str | None:
        """Return the id of the request that a sequence belongs to; None: it has ended."""
        seq = self._scheduler.sequence(seq_id)
        return None if seq is None else seq.request.id

    @property
    def stats(self) -> Stats:
        """Counters since the start, to be read only."""
        return self._scheduler.stats

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """Sequences (running or loading, waiting)."""
        return self._scheduler.queue_lengths

    def usage(self) -> Usage:
        """How full the KV memory is."""
        return self._cache.usage()

    def reset_prefix_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        return self._scheduler.clear_cache()

    def unpin(self, name: str | None = None, tenant: str | None = None) -> int:
        """Let go of pins, None: of any name or tenant; returns the blocks they held."""
        return self._scheduler.unpin(tenant, name)

    def pins(self, tenant: str | None = None) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all. Raises RequestError for one that there is not."""
        return self._scheduler.pins(tenant, self._clock())

    def look(self, seen: int) -> MemoryFrame:
        """Show what has changed in the memory since the last frame, if `seen` was its number."""
        return self._scheduler.lookout.frame(self._clock(), seen)

    def look_away(self) -> None:
        """Nobody watches the memory any more: nothing is kept for it."""
        self._scheduler.lookout.end()

    def block(self, block: BlockId, *, prefix: bool = False) -> BlockFacts | None:
        """Tell of one block; None: there is no such block. prefix: with the text before it."""
        return self._scheduler.lookout.block(block, self._clock(), prefix=prefix)

    def check(self) -> None:
        """Recompute every count of the memory plane. Raises Corrupted."""
        self._cache.check()

    def quarantine(self) -> int:
        """Let every request begin again, without blocks about which something is wrong.

        Returns how many blocks are given out no more. Raises Corrupted if it does not help.
        """
        while self._in_flight:
            self._backlog += self._collect()
        count, ends = self._scheduler.quarantine()
        self._backlog += ends
        return count

    def step(self) -> list[Update]:
        """Submit one step if there is work, and take in one result if it is time."""
        planned_s = self._clock()
        batch = self._scheduler.plan(planned_s)
        if batch is not None:
            if self._show is not None:
                self._show(batch, planned_s)
            if self._times is not None:
                self._times.plan.add(self._clock() - planned_s)
                self._times.tokens.add(sum([len(piece.tokens) for piece in batch.slices]))
            if batch.copies and self._scheduler.lookout.open:
                self._scheduler.lookout.note(batch.copies, batch.step)
            self._submit(batch)
            if self._meanwhile is not None:
                self._meanwhile()
        if self._in_flight and (batch is None or len(self._in_flight) >= self._depth):
            self._backlog += self._collect()
        news, self._backlog = self._backlog, []
        return news

    def settle(self) -> list[Update]:
        """Take in the results of all steps in flight, and plan none."""
        while self._in_flight:
            self._backlog += self._collect()
        news, self._backlog = self._backlog, []
        return news

    def close(self) -> None:
        """Stop the runner; requests that are not finished are lost."""
        self._runner.close()
        self.grammars.close()
        for observer in self._observers:
            observer.close()

    def _submit(self, batch: Batch) -> None:
        before_s = self._clock()
        try:
            self._runner.submit(batch)
        except BaseException:
            # Interrupted from outside: the step does not exist. Its sequences go back to the
            # queue, so that the engine can be used again, and the interrupt goes on its way.
            while self._in_flight:
                self._backlog += self._collect()
            moves = tuple(move.id for move in batch.moves)
            lost = StepResult(batch.step, failed=moves, error="interrupted", interrupted=True)
            self._backlog += self._apply(batch, lost)
            raise
        self._in_flight.append((batch, self._clock() - before_s))

    def _collect(self) -> list[Update]:
        before_s = self._clock()
        result = self._runner.collect()
        while result.step < self._in_flight[0][0].step:
            # The runner had taken a step already when its submission was interrupted.
            result = self._runner.collect()
        batch, submitting_s = self._in_flight.popleft()
        if self._times is None:
            return self._apply(batch, result)
        ran_s = self._clock()
        updates = self._apply(batch, result)
        self._times.run.add(submitting_s + ran_s - before_s)
        self._times.apply.add(self._clock() - ran_s)
        return updates

    def _apply(self, batch: Batch, result: StepResult) -> list[Update]:
        updates = self._scheduler.apply(batch, result)
        for update in updates if self._observers else ():
            for observer in self._observers:
                observer.take_in(update, update.finish)
        return updates
