"""Engine mode: the real manager and scheduler, with time from a cost model instead of a runner.

A text is spelled block by block (`Spelling`), so that what the scheduler decides, it decides for
blocks. All running sequences gain a token a step; one that has room in its last block has nothing
to be decided, so it is paused and costs nothing, and steps that only such sequences take part in
are counted together, up to the next block that begins or is full, the next end or arrival.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from octavo.contract.batch import Batch, Sampled, Slice, StepResult
from octavo.contract.ids import SeqId
from octavo.contract.request import Request, Update
from octavo.contract.sampling import SamplingParams
from octavo.errors import ConfigError
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.groups import Groups
from octavo.memory.manager import KVCacheManager
from octavo.memory.tier import Tier
from octavo.replay.answering import Answering, Sleepers
from octavo.replay.cost import StepCost
from octavo.replay.spelling import Spelling
from octavo.replay.tally import Tally
from octavo.replay.trace import RecordedRequest, Trace
from octavo.sched.limits import Limits
from octavo.sched.order import Fcfs, Order
from octavo.sched.scheduler import Scheduler

_ADVANCE_EVERY = 256
"""Requests between two signs of life."""
_STORM_GUARD_TOKENS = 16
"""As in `Limits`."""
_ANY_LENGTH = 2**31


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What an engine is beside its cache. Must be picklable for more than one process."""

    cost: StepCost
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 8192
    order: Callable[[], Order] = Fcfs


@dataclass(slots=True)
class EngineTally:
    """What a replay in engine mode counts, and how long requests took."""

    cache: Tally = field(default_factory=Tally)
    refused: int = 0
    """Requests longer than the memory."""
    first_token_s: list[float] = field(default_factory=list[float])
    queueing_s: list[float] = field(default_factory=list[float])
    """From arrival to the first step."""
    answer_s: list[float] = field(default_factory=list[float])
    """From arrival to the last token."""
    preempted: list[int] = field(default_factory=list[int])
    """How often each request was."""
    output_tokens: int = 0
    seconds: float = 0.0
    """From the first arrival to the last token, of all requests."""
    steps: int = 0
    plans: int = 0
    """Steps that the scheduler was asked for; it had nothing to decide in the others."""


def replay_engine(
    trace: Trace,
    policy: EvictionPolicy,
    capacity: int,
    settings: EngineSettings,
    *,
    judged_from_s: float = -math.inf,
    advance: Callable[[float], None] | None = None,
) -> EngineTally:
    """Answer a trace's requests as they come, from an empty cache of `capacity` blocks.

    judged_from_s: requests that come before it warm the cache and do not count. advance: told how
    many requests are done since the last call. Raises ConfigError if a step is less than a block.
    """
    replay = _Replay(trace, policy, capacity, settings, judged_from_s)
    done = 0
    for number in replay.run():
        if advance is not None and number - done >= _ADVANCE_EVERY:
            advance(number - done)
            done = number
    if advance is not None:
        advance(len(trace.requests) - done)
    return replay.tally


class _Replay:
    """One replay."""

    def __init__(
        self,
        trace: Trace,
        policy: EvictionPolicy,
        capacity: int,
        settings: EngineSettings,
        judged_from_s: float,
    ) -> None:
        self.tally = EngineTally()
        self._trace = trace
        self._size = trace.block_size
        self._capacity = capacity
        self._cost = settings.cost
        self._judged_from_s = judged_from_s
        self._spelling = spelling = Spelling(trace)
        self._tier = Tier("replay", capacity, spelling.unscaled(policy))
        limits = _limits(trace, capacity, settings, spelling.width)
        groups = Groups((spelling.width,), step_tokens=limits.max_num_batched_tokens)
        self._cache = KVCacheManager(groups, (self._tier,))
        self._scheduler = Scheduler(self._cache, settings.order(), limits)
        self._now = 0.0
        self._sleepers = Sleepers()
        self._lives: dict[str, dict[int, Answering]] = {}
        """By request, its answers by their number; all stay until the last one has ended."""
        self._open: Counter[str] = Counter()
        """By request, its answers that have not ended."""
        self._sampling: dict[int, SamplingParams] = {}
        """By the number of answers."""
        self._by_seq: dict[SeqId, Answering] = {}
        self._preemptions = 0
        self._warm_evictions = 0
        self._ended = 0

    def run(self) -> Iterator[int]:
        """Answer everything; yields the number of requests done, from time to time."""
        requests = self._trace.requests
        start = self._now = requests[0].time_s
        coming = 0
        while True:
            while coming < len(requests) and requests[coming].time_s <= self._now:
                self._add(coming, requests[coming])
                coming += 1
            for life in self._sleepers.due():
                self._go_on(life)
            batch = self._plan()
            next_s = requests[coming].time_s if coming < len(requests) else math.inf
            if batch is not None and batch.slices:
                self._step(batch)
                yield self._ended
            elif self._sleepers.count:
                self._sleep_until(next_s)
            elif coming < len(requests):
                self._now = next_s
            else:
                assert not self._scheduler.busy, "requests wait for what will never come"
                break
        self.tally.seconds = self._now - start
        self.tally.steps = self._sleepers.step
        self.tally.cache.evictions = self._tier.pool.evictions - self._warm_evictions

    def _plan(self) -> Batch | None:
        """Ask for the next step, unless everybody is asleep."""
        active, waiting = self._scheduler.queue_lengths
        if not waiting and active == self._sleepers.count:
            return None
        self.tally.plans += 1
        batch = self._scheduler.plan(self._now)
        self._notice_preemptions()
        return batch

    # ── requests ──────────────────────────────────────────────────────────────────────────

    def _add(self, number: int, recorded: RecordedRequest) -> None:
        if recorded.time_s < self._judged_from_s:
            self._warm_evictions = self._tier.pool.evictions
        room = self._capacity * self._size - recorded.prompt_tokens
        if room < 1 or not recorded.prompt_tokens:
            self.tally.refused += recorded.time_s >= self._judged_from_s
            self._ended += 1
            return
        choices = recorded.choices()
        request = Request(
            id=str(number),
            prompt=self._spelling.prompt(recorded),
            sampling=self._params(len(choices)),
            seed=0,
            arrival_s=recorded.time_s,
        )
        self._lives[request.id] = {
            index: Answering(request, index, one, min(max(1, one.output_tokens), room))
            for index, one in enumerate(choices)
        }
        self._open[request.id] = len(choices)
        self._scheduler.add(request)

    def _params(self, choices: int) -> SamplingParams:
        if choices not in self._sampling:
            params = SamplingParams(max_tokens=None, ignore_eos=True, n=choices)
            self._sampling[choices] = params
        return self._sampling[choices]

    def _go_on(self, life: Answering) -> None:
        """Wake a sequence that has filled its block, or has all of its answer."""
        if life.done == life.output:
            self._end(life)
        else:
            self._scheduler.resume(life.request.id, life.index)

    def _end(self, life: Answering) -> None:
        name = life.request.id
        self._scheduler.finish(name, life.index)
        del self._by_seq[life.seq_id]
        self._open[name] -= 1
        if not self._open[name]:
            del self._open[name]
            self._count(self._lives.pop(name))

    def _count(self, lives: dict[int, Answering]) -> None:
        """All answers to a request have ended."""
        self._ended += 1
        first, tally = lives[0], self.tally
        recorded = first.recorded
        if recorded.time_s < self._judged_from_s:
            return
        hits = first.cached // self._spelling.width
        tally.cache.count(recorded, hits, self._size)
        tally.first_token_s.append(first.first_s - recorded.time_s)
        tally.queueing_s.append(first.admitted_s - recorded.time_s)
        tally.answer_s.append(self._now - recorded.time_s)
        tally.preempted.append(sum(life.preemptions for life in lives.values()))
        tally.output_tokens += sum(life.output for life in lives.values())

    def _notice_preemptions(self) -> None:
        """Learn whose blocks the scheduler has taken; they come back by themselves."""
        count = self._scheduler.stats.preemptions
        if count == self._preemptions:
            return
        self._preemptions = count
        for seq_id, life in self._by_seq.items():
            seq = self._scheduler.sequence(seq_id)
            assert seq is not None, f"sequence {seq_id} has ended"
            if seq.preemptions > life.preemptions:
                life.preemptions = seq.preemptions
                self._sleepers.disturb(life)
                life.decoding = False
                self._scheduler.resume(life.request.id, life.index)

    # ── steps ─────────────────────────────────────────────────────────────────────────────

    def _sleep_until(self, next_s: float) -> None:
        """Count steps together in which nothing is decided, up to an arrival or a waking."""
        sleepers, cost = self._sleepers, self._cost
        rows, context = sleepers.count, sleepers.context
        steps = sleepers.steps_to_next
        if next_s < math.inf:
            steps = cost.steps_within(rows, context, next_s - self._now, steps)
        self._now += cost.decoding(rows, context, steps)
        sleepers.advance(steps)

    def _step(self, batch: Batch) -> None:
        """Run one step: its slices, and a token for each sequence that sleeps."""
        sleepers = self._sleepers
        rows, context, pairs = sleepers.count, sleepers.context, 0
        sampling: list[tuple[Answering, Slice]] = []
        for piece in batch.slices:
            life = self._life(piece.seq)
            if life.decoding:
                rows, context = rows + 1, context + life.written + 1
            else:
                before, after = self._tokens(life, piece)
                count = after - before
                rows, pairs = rows + count, pairs + count * before + count * (count + 1) // 2
                if life.admitted_s < 0:
                    life.admitted_s = self._now
            # At a prompt's end the other answers begin, too.
            sampling += [(self._life(sample.seq), piece) for sample in piece.samples]
        self._now += self._cost.step(rows, context, pairs)
        sleepers.advance(1)
        sampled = {
            life.seq_id: Sampled(self._spelling.answer(life.recorded, _end(piece)), 0.0)
            for life, piece in sampling
        }
        updates = self._scheduler.apply(batch, StepResult(batch.step, sampled))
        for (life, piece), update in zip(sampling, updates, strict=True):
            self._take_in(life, piece, update)

    def _life(self, seq_id: SeqId) -> Answering:
        life = self._by_seq.get(seq_id)
        if life is None:
            seq = self._scheduler.sequence(seq_id)
            assert seq is not None, f"sequence {seq_id} is planned, but has ended"
            life = self._by_seq[seq_id] = self._lives[seq.request.id][seq.index]
            life.seq_id = seq_id
        return life

    def _tokens(self, life: Answering, piece: Slice) -> tuple[int, int]:
        """Return how many true tokens are in memory before and after a slice."""
        spelling, text = self._spelling, life.length
        after = text if piece.samples else min(text, spelling.tokens_before(_end(piece)))
        return min(text, spelling.tokens_before(piece.start)), after

    def _take_in(self, life: Answering, piece: Slice, update: Update) -> None:
        """A sequence has one more token: end it, or let it sleep until a block is full."""
        life.written = life.written + 1 if life.decoding else life.length
        life.done += 1
        life.decoding = True
        if life.done == 1:
            life.first_s = self._now
            life.cached = update.cached_tokens
        left = life.output - life.done
        if not left:
            self._end(life)
            return
        rest = self._spelling.due(_end(piece)) - life.written
        assert rest >= 0, f"request {life.request.id} has passed the end of its block"
        if rest:
            self._scheduler.pause(life.request.id, life.index, gives_way=False)
            self._sleepers.add(life, min(rest, left))


def _end(piece: Slice) -> int:
    return piece.start + len(piece.tokens)


def _limits(trace: Trace, capacity: int, settings: EngineSettings, width: int) -> Limits:
    size, step = trace.block_size, settings.max_num_batched_tokens
    if step < size:
        raise ConfigError(
            f"--max-num-batched-tokens {step} is less than a block of {size} tokens, and engine "
            "mode computes whole blocks: raise it"
        )
    return Limits(
        settings.max_num_seqs,
        step * width // size,
        _ANY_LENGTH,
        # An answer ends when memory does: that is seen to here, in true tokens.
        capacity * width + width,
        _STORM_GUARD_TOKENS * width // size,
    )
