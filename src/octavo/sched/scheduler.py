"""Who computes what in the next step: `plan` decides, `apply` learns what became of it."""

from __future__ import annotations

from collections.abc import Callable

from octavo.contract.batch import Batch, StepResult
from octavo.contract.ids import SeqId
from octavo.contract.request import Phase, Request, Sequence, Update
from octavo.contract.retention import PinFacts
from octavo.errors import RequestError
from octavo.memory.prefix import Hit
from octavo.sched.cache import Cache
from octavo.sched.draft import Draft, Slicer
from octavo.sched.limits import Limits
from octavo.sched.look import Lookout
from octavo.sched.order import Order
from octavo.sched.results import Results
from octavo.sched.roster import Roster
from octavo.sched.stats import Stats
from octavo.sched.victims import Victims, spared
from octavo.sched.waiting import Walk


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
        self._victims = Victims(self._roster, cache)
        self._results = Results(cache, self._roster, self.stats)
        self._slicer = Slicer(cache, self._roster, self.stats, limits.max_num_seqs)
        self.lookout = Lookout(self._roster, cache.view, limits.max_model_len)
        """For whoever watches, between two steps."""
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
            self._limits.check_beams(request.sampling.choices, shares=self._cache.shares)
        width = request.sampling.choices if request.sampling.use_beam_search else 1
        limit = self._cache.limit(prompt, expected, limit, width, request.tenant)
        self._cache.expect(request)
        count = request.sampling.n
        alone = 1 if self._cache.shares else count
        seqs = self._roster.queue(request, limit, alone)
        seqs[0].forks = count - alone
        return limit - prompt

    def abort(self, request_id: str) -> None:
        """End all choices of a request now. Unknown or ended: no effect."""
        for seq in self._roster.choices(request_id):
            if seq.phase is not Phase.FINISHED:
                self._roster.end(seq)

    def withdraw(self, request_id: str) -> None:
        """End a request and take back its pins, since it should not have come; else as `abort`."""
        for seq in self._roster.choices(request_id)[:1]:
            self._cache.withdraw(seq.request)
        self.abort(request_id)

    def finish(self, request_id: str, index: int) -> bool:
        """End one choice now, since its text is complete; False: it is unknown, or has ended.

        With beam search it ends them all.
        """
        seq = self._roster.choice(request_id, index)
        if seq is not None:
            self._roster.end(seq)
        return seq is not None

    def pause(self, request_id: str, index: int, *, gives_way: bool = True) -> None:
        """Give a choice no more tokens until `resume`. Unknown or ended: no effect.

        It keeps its blocks, unless others need them, and then waits aside. gives_way: to anybody
        who can go on; False: as if it ran, to those of a better rank. With beam search all beams
        pause.
        """
        self._roster.pause(request_id, index, paused=True, gives_way=gives_way)

    def resume(self, request_id: str, index: int) -> None:
        """Let a choice go on. Unknown, ended or not paused: no effect."""
        self._roster.pause(request_id, index, paused=False, gives_way=False)

    def unpin(self, tenant: str | None = None, name: str | None = None) -> int:
        """Let go of pins, None: of any tenant or name; returns the blocks they held."""
        self._roster.reconsider()
        return self._cache.unpin(tenant, name)

    def pins(self, tenant: str | None, now_s: float) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all. now_s: seconds on the engine's clock."""
        if self._cache.pass_time(now_s):
            self._roster.reconsider()
        return self._cache.pins(tenant)

    def clear_cache(self) -> int:
        """Forget cached texts that no sequence uses; returns the number of blocks."""
        self._roster.reconsider()
        return self._cache.clear()

    def quarantine(self) -> tuple[int, list[Update]]:
        """Let everybody begin again, without blocks about which something is wrong.

        No step may be in flight, and no move open. Texts are kept and computed once more. Returns
        how many blocks are out, and the ends of those whose text no longer fits. Raises Corrupted
        if it does not help.
        """
        assert not self._in_flight, f"{self._in_flight} steps are in flight"
        count = self._cache.quarantine()
        self.stats.preempt("quarantine", self._roster.requeue_all())
        return count, self._results.shorten_all() if count else []

    @property
    def busy(self) -> bool:
        """True while a request is not finished."""
        return self._roster.busy

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """Sequences (running or loading, waiting)."""
        return self._roster.active, len(self._roster.waiting)

    @property
    def requests(self) -> list[str]:
        """Ids of the requests that have not ended, in the order they came."""
        return self._roster.requests

    def sequence(self, seq_id: SeqId) -> Sequence | None:
        """Return a live sequence, to be read only."""
        return self._roster.get(seq_id)

    # ── one step ──────────────────────────────────────────────────────────────────────────

    def plan(self, now_s: float = 0.0) -> Batch | None:
        """Decide the next step; None: there is nothing to do now.

        now_s: seconds on the engine's clock. Every batch returned must be submitted, and its
        result applied in order.
        """
        draft = Draft(self._roster.step + 1, self._limits)
        if self._cache.pass_time(now_s):
            self._roster.reconsider()
        self._expire_loads(now_s)
        self._serve_running(draft, now_s)
        if self._stuck(draft):
            # Everybody waits for room that nobody will give back.
            draft.spares = False
            self._serve_running(draft, now_s)
        if self._stuck(draft) and (victim := self._victims.to_begin_again()):
            self._preempt(victim, draft, "beams" if victim.beam else "no_room")
        if not (draft.stalled or draft.displaced):
            self._admit_waiting(draft, now_s)
        return self._batch(draft)

    def apply(self, batch: Batch, result: StepResult) -> list[Update]:
        """Take in the result of a batch; returns the news, in the order of its slices."""
        self._in_flight -= 1
        return self._results.take_in(batch, result)

    # ── planning ──────────────────────────────────────────────────────────────────────────

    def _stuck(self, draft: Draft) -> bool:
        """Say whether sequences stand still, and nothing is under way that could change it."""
        stands = draft.stalled or draft.held_up
        return bool(stands) and not (draft.slices or self._in_flight or self._cache.open_moves)

    def _serve_running(self, draft: Draft, now_s: float) -> None:
        """Give running sequences their tokens, best rank first, taking room from the worst."""
        waiting = self._roster.waiting
        walk, seen = waiting.walk(by_rank=True), waiting.changes
        urgent = walk.next()
        for seq in self._roster.running.snapshot():
            if draft.budget == 0:
                return
            if waiting.changes != seen:
                urgent, seen = walk.next(), waiting.changes
            while urgent is not None and draft.budget and urgent.rank[0] < seq.rank[0]:
                self._try_urgent(urgent, walk, draft, now_s)
                urgent, seen = walk.next(), waiting.changes
            if seq.phase is not Phase.RUNNING or seq.paused:
                continue  # displaced meanwhile, or not to go on
            if draft.budget == 0 or (seq.stepwise and seq.sampling):
                continue
            if seq.beam:
                self._serve_beam(seq, draft)
                continue
            known = len(seq.tokens) + seq.sampling
            if known < seq.limit:  # else all of its tokens are on their way
                self._serve(seq, known, draft)

    def _serve(self, seq: Sequence, known: int, draft: Draft) -> None:
        """Give the step the sequence's tokens up to `known`, as many as it may have of it."""
        upto, long = known, False
        if known - seq.scheduled > 1:
            seq.scheduled += self._adopt(seq)
            pending = known - seq.scheduled
            long = draft.is_long(pending)
            upto = min(known, seq.scheduled + draft.share(pending))
            if upto == seq.scheduled:
                return  # a beam that waits for the others, or it is behind other long ones
        if self._cache.extend(seq, upto, draft.step) or self._make_room(
            seq, draft, lambda: self._cache.extend(seq, upto, draft.step)
        ):
            draft.long += long
            self._slicer.slice(seq, upto, draft)
        else:
            self._stall(seq, draft)

    def _serve_beam(self, seq: Sequence, draft: Draft) -> None:
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
                    self._slicer.slice(beam, len(beam.tokens), draft)
            else:
                self._stall(seq, draft)

    def _stall(self, seq: Sequence, draft: Draft) -> None:
        """Let a sequence stand still: nobody is admitted, or nobody else of its tenant."""
        if self._cache.standing(seq).full:
            draft.held_up.add(seq.request.tenant)
        else:
            draft.stalled = True

    def _make_room(self, seq: Sequence, draft: Draft, extend: Callable[[], bool]) -> bool:
        """Preempt sequences worse than one until `extend` works; False: it has to stand still."""
        while not extend():
            victims = self._cache.useful(self._victims.of(seq), seq)
            victim = next((v for v in victims if not (draft.spares and spared(v))), None)
            if victim is None:
                return False
            self._preempt(victim, draft, "no_room")
        return True

    def _admit_waiting(self, draft: Draft, now_s: float) -> None:
        """Admit waiting sequences in order, up to the first that finds no room.

        A tenant at its maximum holds up its own sequences alone; and once the pool is full, one
        that stays within its guarantee is admitted all the same. No more are passed over, because
        waiting costs them nothing or others are as long, than could run at once.
        """
        roster = self._roster
        active = roster.active
        if active and roster.concluded == roster.waiting.changes:
            return
        quota = self._cache.quota(len(roster.waiting), active)
        walk, full = roster.waiting.walk(without=draft.held_up), False
        while walk.passed < self._limits.max_num_seqs and quota and draft.budget:
            seq = walk.next()
            if seq is None:
                if not (walk.passed or draft.held_up):
                    roster.concluded = roster.waiting.changes
                return
            crowded = self._lacking_places(seq) > 0
            if crowded and not self._victims.giving_way():
                return
            # Who was refused is, until something comes back.
            own = roster.refused.get(seq.id) if active else None
            if own is None:
                hit = self._find(seq, draft)
                if hit is None:
                    walk.pass_over(seq)
                    continue
                if full and not self._cache.standing(seq, hit).entitled:
                    # Behind somebody else, not refused: it may fit once that one is gone.
                    walk.skip(seq.request.tenant)
                    continue
                if (not crowded and self._admit(seq, hit, draft, now_s)) or (
                    (idle := self._victims.giving_way())
                    and self._admit_over(idle, seq, hit, draft, now_s)
                ):
                    quota -= 1
                    continue
                own = roster.refused[seq.id] = self._cache.standing(seq, hit).full
            full = full or not own
            walk.skip(seq.request.tenant)

    def _lacking_places(self, seq: Sequence) -> int:
        return self._roster.active + self._roster.places(seq) - self._limits.max_num_seqs

    def _try_urgent(self, seq: Sequence, walk: Walk, draft: Draft, now_s: float) -> None:
        """Admit a waiting sequence, displacing running ones of a strictly worse class; or go on."""
        hit = None if seq.id in draft.displaced else self._find(seq, draft)
        if hit is None and walk.passed < self._limits.max_num_seqs:
            walk.pass_over(seq)
            return
        quota = self._cache.quota(1, self._roster.active)
        over = self._victims.less_urgent(seq)
        if not (hit and quota and self._admit_over(over, seq, hit, draft, now_s)):
            # No use trying again in this step; others may have more room.
            walk.skip(seq.request.tenant)

    def _admit_over(
        self, candidates: list[Sequence], seq: Sequence, hit: Hit, draft: Draft, now_s: float
    ) -> bool:
        """Admit a waiting sequence, displacing as many of the candidates as it needs; or nobody."""
        victims = self._victims.enough_of(candidates, seq, hit, self._lacking_places(seq))
        if victims is None:
            return False
        for victim in victims:
            if victim.phase is Phase.RUNNING:
                self._preempt(victim, draft, "displaced")
        return self._admit(seq, hit, draft, now_s)

    def _find(self, seq: Sequence, draft: Draft) -> Hit | None:
        """Look up a waiting sequence; None: let others pass."""
        if seq.sampling and (seq.beam or seq.stepwise):
            return None  # what it goes on with is on its way
        if len(seq.tokens) + seq.sampling >= seq.limit:
            return None  # its last token is
        if seq.held_back and draft.full_of_long:
            return None  # as it was found before; nor is it looked up again, which takes long
        hit = self._cache.lookup(seq)
        seq.held_back = (
            draft.full_of_long and not hit.loads and draft.is_long(self._lacking(seq, hit))
        )
        return None if hit.arriving or seq.held_back else hit

    def _lacking(self, seq: Sequence, hit: Hit) -> int:
        """Tokens of a waiting sequence to be computed alone; beams compute their last together."""
        return seq.length - (len(self._roster.gang(seq)) > 1) - hit.tokens

    def _admit(self, seq: Sequence, hit: Hit, draft: Draft, now_s: float) -> bool:
        loads, lacking = hit.loads, self._lacking(seq, hit)
        if seq.cached_tokens is None:
            seq.miss = self._cache.explain(seq, hit)
        upto = hit.tokens + (0 if loads else min(lacking, draft.share(lacking)))
        if not self._cache.admit(seq, hit, upto, draft.step):
            return False
        self._roster.waiting.admit(seq)
        if loads:
            seq.load_deadline_s = now_s + self._limits.load_timeout_s
            self._roster.load(seq)
        else:
            self._roster.start(seq, hit.tokens)
            if upto > hit.tokens:
                draft.long += draft.is_long(lacking)
                self._slicer.slice(seq, upto, draft)
        return True

    def _adopt(self, seq: Sequence) -> int:
        gained = self._cache.adopt(seq)
        if gained and seq.counts_hits:
            seq.cached_tokens = (seq.cached_tokens or 0) + gained
            self.stats.prefix_hit_tokens += gained
            if seq.miss is not None:
                seq.miss = self.stats.shorten(seq.miss, gained)
        return gained

    def _batch(self, draft: Draft) -> Batch | None:
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

    def _preempt(self, seq: Sequence, draft: Draft, reason: str) -> None:
        """Take a running sequence's blocks; it resumes as a prefix hit. Its text is kept.

        All beams of a search are preempted together.
        """
        for one in self._roster.gang(seq):
            one.lost_tokens = one.scheduled
            one.spared_until = one.length + one.sampling + self._limits.storm_guard_tokens
            one.preempt()
            draft.displaced.add(one.id)
        self.stats.preempt(reason)
        self._roster.requeue(seq)
