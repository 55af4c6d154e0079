"""Who computes what in the next step: `plan` decides, `apply` learns what became of it."""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile

from octavo.contract.batch import Batch, Sample, Slice, StepResult
from octavo.contract.ids import PENDING, SeqId, StepId
from octavo.contract.request import Phase, Request, Sequence, Update
from octavo.errors import RequestError
from octavo.memory.prefix import Hit
from octavo.sched.cache import Cache
from octavo.sched.limits import Limits
from octavo.sched.order import Order
from octavo.sched.outcome import (
    past_of,
    score_of,
)
from octavo.sched.results import Results
from octavo.sched.roster import Roster
from octavo.sched.stats import Stats


class _Draft:
    """The step being planned."""

    __slots__ = ("budget", "preempted", "slices", "spares", "stalled", "step")

    def __init__(self, step: StepId, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.slices: list[Slice] = []
        self.spares = True
        """Victims of preemption that have just come back are no victims again."""
        self.stalled = False
        self.preempted = False


class Scheduler:
    """Continuous batching: each step computes `min(pending, budget)` tokens of each sequence.

    Owns the phase of every sequence. `plan` may be called again before the result of the step
    before is applied; two steps may be in flight.
    """

    def __init__(self, cache: Cache, order: Order, limits: Limits) -> None:
        self.stats = Stats()
        self._cache = cache
        self._limits = limits
        self._roster = Roster(cache, order, self.stats)
        self._results = Results(cache, self._roster, self.stats)
        self._in_flight = 0

    # ── requests come and go ──────────────────────────────────────────────────────────────

    def add(self, request: Request) -> int:
        """Queue a request; returns its effective maximum of output tokens.

        That is the least of max_tokens, context - prompt and pool tokens - prompt. Raises
        RequestError, changing nothing, if not even one token can ever be produced.
        """
        if self._roster.choices(request.id):
            raise RequestError(f"request id {request.id!r} is in use; choose another")
        prompt = len(request.prompt)
        limit = self._limits.longest_text(prompt, request.sampling.max_tokens)
        expected = request.expected_output_tokens or limit - prompt
        if request.sampling.use_beam_search:
            self._check_beams(request)
        width = request.sampling.choices if request.sampling.use_beam_search else 1
        limit = self._cache.limit(prompt, expected, limit, width)
        count = request.sampling.n
        alone = 1 if self._cache.shares else count
        seqs = self._roster.queue(request, limit, alone)
        seqs[0].forks = count - alone
        return limit - prompt

    def _check_beams(self, request: Request) -> None:
        """Raise RequestError for a search that can never run."""
        width, limits = request.sampling.choices, self._limits
        for name, most in (
            ("max_num_seqs", limits.max_num_seqs),
            ("max_num_batched_tokens", limits.max_num_batched_tokens),
        ):
            if width > most:
                raise RequestError(
                    f"beam_width is {width}, but {name} is {most}, and all beams are computed in "
                    f"one step: lower beam_width or raise {name}"
                )
        if not self._cache.shares:
            raise RequestError(
                "beam search needs blocks that texts can share: use reservation on_demand"
            )

    def abort(self, request_id: str) -> None:
        """End all choices of a request now. Unknown or ended: no effect."""
        for seq in self._roster.choices(request_id):
            if seq.phase is not Phase.FINISHED:
                self._roster.end(seq)

    def finish(self, request_id: str, index: int) -> None:
        """End one choice now, since its text is complete. Unknown or ended: no effect.

        With beam search it ends them all.
        """
        seq = self._roster.choice(request_id, index)
        if seq is not None:
            self._roster.end(seq)

    def pause(self, request_id: str, index: int) -> None:
        """Give a choice no more tokens until `resume`. Unknown or ended: no effect.

        It keeps its blocks, unless it is preempted; then it waits, and lets others pass. With beam
        search all beams pause.
        """
        self._roster.pause(request_id, index, paused=True)

    def resume(self, request_id: str, index: int) -> None:
        """Let a choice go on. Unknown, ended or not paused: no effect."""
        self._roster.pause(request_id, index, paused=False)

    @property
    def busy(self) -> bool:
        """True while a request is not finished."""
        return self._roster.busy

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """Sequences (running or loading, waiting)."""
        return self._roster.active, len(self._roster.waiting)

    def sequence(self, seq_id: SeqId) -> Sequence | None:
        """Return a live sequence, to be read only."""
        return self._roster.get(seq_id)

    # ── one step ──────────────────────────────────────────────────────────────────────────

    def plan(self, now_s: float = 0.0) -> Batch | None:
        """Decide the next step; None: there is nothing to do now.

        now_s: seconds on the engine's clock. Every batch returned must be submitted, and its
        result applied in order.
        """
        draft = _Draft(self._roster.step + 1, self._limits.max_num_batched_tokens)
        self._cache.begin_step(now_s)
        self._expire_loads(now_s)
        self._serve_running(draft, now_s)
        if draft.stalled and not (draft.slices or self._in_flight or self._cache.open_moves):
            # Everybody waits for room that nobody will give back.
            draft.spares = False
            self._serve_running(draft, now_s)
        if not (draft.stalled or draft.preempted):
            self._admit_waiting(draft, now_s)
        return self._batch(draft)

    def apply(self, batch: Batch, result: StepResult) -> list[Update]:
        """Take in the result of a batch; returns the news, in the order of its slices."""
        self._in_flight -= 1
        return self._results.take_in(batch, result)

    # ── planning ──────────────────────────────────────────────────────────────────────────

    def _serve_running(self, draft: _Draft, now_s: float) -> None:
        """Give running sequences their tokens, best rank first, taking room from the worst."""
        urgent = len(self._roster.waiting) > 0
        for seq in self._roster.running.snapshot():
            if draft.budget == 0:
                return
            while urgent and draft.budget and self._roster.waiting[0].rank[0] < seq.rank[0]:
                urgent = self._admit_urgent(draft, now_s)
            if seq.phase is not Phase.RUNNING or seq.paused:
                continue  # displaced meanwhile, or not to go on
            if draft.budget == 0:
                continue
            if seq.beam:
                self._serve_beam(seq, draft)
                continue
            known = len(seq.tokens) + seq.sampling
            if known < seq.limit:  # else all of its tokens are on their way
                self._serve(seq, known, draft)

    def _serve(self, seq: Sequence, known: int, draft: _Draft) -> None:
        """Give the step the sequence's tokens up to `known`, as many as the budget allows."""
        if known - seq.scheduled > 1:
            seq.scheduled += self._adopt(seq)
            if seq.scheduled == known:
                return  # a beam that waits for the others
        upto = min(known, seq.scheduled + draft.budget)
        if self._cache.extend(seq, upto, draft.step) or self._make_room(
            seq, draft, lambda: self._cache.extend(seq, upto, draft.step)
        ):
            self._slice(seq, upto, draft)
        else:
            draft.stalled = True

    def _serve_beam(self, seq: Sequence, draft: _Draft) -> None:
        """Serve a beam: alone up to its last token, which all beams compute in one step."""
        search = self._roster.search(seq)
        beams = search.members
        if search.sliced == draft.step or not search.ready:
            known = len(seq.tokens) - (len(beams) > 1)
            if not seq.sampling and seq.scheduled < known:
                self._serve(seq, known, draft)
        elif len(beams) <= draft.budget:
            if self._make_room(seq, draft, lambda: self._cache.extend_all(beams, draft.step)):
                for beam in beams:
                    self._slice(beam, len(beam.tokens), draft)
            else:
                draft.stalled = True

    def _make_room(self, seq: Sequence, draft: _Draft, extend: Callable[[], bool]) -> bool:
        """Preempt sequences worse than one until `extend` works; False: it has to stand still."""
        while not extend():
            worse = self._worse_than(seq)
            victim = next((v for v in worse if not (draft.spares and self._spared(v))), None)
            if victim is None:
                return False
            self._preempt(victim, draft)
        return True

    def _worse_than(self, seq: Sequence) -> list[Sequence]:
        """Running sequences of a worse rank, worst first. None of them has a slice yet."""
        worse = takewhile(lambda other: other.rank > seq.rank, self._roster.running.worst_first())
        return [other for other in worse if not (seq.beam and other.request is seq.request)]

    def _spared(self, seq: Sequence) -> bool:
        return seq.length < seq.spared_until

    def _admit_waiting(self, draft: _Draft, now_s: float) -> None:
        """Admit waiting sequences in order, up to the first that finds no room.

        No more are passed over, because waiting costs them nothing, than could run at once.
        """
        active = self._roster.active
        quota = self._cache.quota(len(self._roster.waiting), active)
        index = 0
        while index < min(len(self._roster.waiting), self._limits.max_num_seqs):
            if not (quota and draft.budget):
                return
            seq = self._roster.waiting[index]
            if self._roster.active + self._roster.places(seq) > self._limits.max_num_seqs:
                return
            if seq is self._roster.refused and active:
                return  # nothing has come back since it was refused
            hit = self._find(seq)
            if hit is None:
                index += 1
            elif self._admit(seq, hit, draft, now_s):
                quota -= 1
            else:
                self._roster.refused = seq
                return

    def _admit_urgent(self, draft: _Draft, now_s: float) -> bool:
        """Admit the first waiting sequence, displacing running ones of a strictly worse class.

        All or nothing: nobody is displaced unless that makes enough room. False: no use trying
        again in this step.
        """
        seq = self._roster.waiting[0]
        active = self._roster.active
        hit = self._find(seq) if self._cache.quota(1, active) else None
        if hit is None:
            return False
        slots = active + self._roster.places(seq) - self._limits.max_num_seqs
        blocks = self._cache.shortage(seq, hit)
        worse = takewhile(lambda v: v.rank[0] > seq.rank[0], self._roster.running.worst_first())
        candidates = [v for v in worse if not self._spared(v)]
        victims: list[Sequence] = []
        for victim, relief in zip(
            candidates, self._cache.relief(seq, hit, candidates), strict=True
        ):
            if slots <= 0 and blocks <= 0:
                break
            victims.append(victim)
            slots -= 1
            blocks -= relief
        if slots > 0 or blocks > 0:
            return False
        for victim in victims:
            if victim.phase is Phase.RUNNING:
                self._preempt(victim, draft)
        return self._admit(seq, hit, draft, now_s) and len(self._roster.waiting) > 0

    def _find(self, seq: Sequence) -> Hit | None:
        """Look up a waiting sequence; None: let others pass, waiting costs it nothing."""
        if seq.paused or len(seq.tokens) + seq.sampling >= seq.limit or (seq.beam and seq.sampling):
            return None  # its last token, or what its search goes on with, is on its way
        hit = self._cache.lookup(seq)
        return None if hit.arriving else hit

    def _admit(self, seq: Sequence, hit: Hit, draft: _Draft, now_s: float) -> bool:
        loads = hit.loads
        known = seq.length - (len(self._roster.gang(seq)) > 1)
        if seq.cached_tokens is None:
            seq.miss = self._cache.explain(seq, hit)
        upto = hit.tokens if loads else min(known, hit.tokens + draft.budget)
        if not self._cache.admit(seq, hit, upto, draft.step):
            return False
        self._roster.waiting.remove(seq)
        if loads:
            seq.load_deadline_s = now_s + self._limits.load_timeout_s
            self._roster.load(seq)
        else:
            self._roster.start(seq, hit.tokens)
            if upto > hit.tokens:
                self._slice(seq, upto, draft)
        return True

    def _adopt(self, seq: Sequence) -> int:
        gained = self._cache.adopt(seq)
        if gained and not seq.preemptions and seq.cached_tokens is not None:
            seq.cached_tokens += gained
            self.stats.prefix_hit_tokens += gained
            if seq.miss is not None:
                seq.miss = self.stats.shorten(seq.miss, gained)
        return gained

    def _slice(self, seq: Sequence, upto: int, draft: _Draft) -> None:
        """Give the step the sequence's tokens from `scheduled` up to `upto`."""
        start, known = seq.scheduled, len(seq.tokens)
        if start + 1 == known == upto:
            tokens = (seq.tokens[start],)
        else:
            tokens = tuple(seq.tokens[start:upto])
            if upto > known:
                tokens += (PENDING,)
        samples: tuple[Sample, ...] = ()
        seq.scheduled = upto
        if seq.beam:
            self._roster.search(seq).sliced = draft.step
        if upto == known + seq.sampling:
            seq.sampling += 1
            samples = self._fork(seq) if seq.forks else seq.samples
        kept, blocks = self._cache.growth(seq)
        past = past_of(seq, start) if seq.looks_back and samples else ()
        score = score_of(seq, start, upto) if start < seq.score_end else None
        draft.slices.append(Slice(seq.id, start, tokens, kept, blocks, samples, past, score))
        draft.budget -= upto - start
        if start < seq.prompt_length:
            self.stats.computed_prompt_tokens += min(upto, seq.prompt_length) - start

    def _fork(self, leader: Sequence) -> tuple[Sample, ...]:
        """Begin the other choices of a request: their first tokens come from the same logits.

        Choices that find no free place wait; they come back alone, as prefix hits.
        """
        samples = leader.samples
        for index in range(1, leader.forks + 1):
            child = self._roster.begin(leader.request, index, leader.limit, leader.rank[1])
            if self._roster.active >= self._limits.max_num_seqs:
                self._roster.waiting.add(child)
                continue
            child.cached_tokens, child.miss = leader.cached_tokens, leader.miss
            child.scheduled = leader.scheduled
            child.sampling = 1
            self._cache.fork(leader, child)
            self._roster.run(child)
            samples += child.samples
        leader.forks = 0
        return samples

    def _batch(self, draft: _Draft) -> Batch | None:
        moves = self._cache.take_moves()
        if not (draft.slices or moves or self._cache.open_moves):
            return None
        self._roster.step = draft.step
        self._in_flight += 1
        copies = self._cache.take_copies()
        self.stats.copies += len(copies)
        self.stats.note(self._cache.usage(), len(self._roster.running))
        ended = self._roster.take_ended()
        return Batch(draft.step, tuple(draft.slices), copies, moves, ended)

    def _expire_loads(self, now_s: float) -> None:
        for seq in self._roster.loading.snapshot():
            if now_s >= seq.load_deadline_s:
                self._roster.loaded(seq, self._cache.give_up(seq))

    # ── phases ────────────────────────────────────────────────────────────────────────────

    def _preempt(self, seq: Sequence, draft: _Draft) -> None:
        """Take a running sequence's blocks; it resumes as a prefix hit. Its text is kept.

        All beams of a search are preempted together.
        """
        for one in self._roster.gang(seq):
            one.lost_tokens = one.scheduled
            one.spared_until = one.length + one.sampling + self._limits.storm_guard_tokens
            one.preemptions += 1
        self.stats.preemptions += 1
        draft.preempted = True
        self._roster.requeue(seq)
