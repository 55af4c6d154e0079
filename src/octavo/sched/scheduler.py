"""Who computes what in the next step: `plan` decides, `apply` learns what became of it."""

from __future__ import annotations

from itertools import takewhile

from octavo.contract.batch import Batch, Sample, Sampled, Slice, StepResult
from octavo.contract.ids import PENDING, SeqId, StepId
from octavo.contract.request import Phase, Request, Sequence, Update
from octavo.errors import RequestError
from octavo.memory.prefix import Hit
from octavo.sched.cache import Cache
from octavo.sched.limits import Limits
from octavo.sched.order import Order
from octavo.sched.outcome import end_of, failures_of, past_of, score_of, take_scores, update_of
from octavo.sched.ranked import Ranked
from octavo.sched.stats import Stats


class _Draft:
    """The step being planned."""

    __slots__ = ("budget", "preempted", "slices", "stalled", "step")

    def __init__(self, step: StepId, budget: int) -> None:
        self.step = step
        self.budget = budget
        self.slices: list[Slice] = []
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
        self._order = order
        self._limits = limits
        self._waiting = Ranked()
        self._running = Ranked()
        self._loading = Ranked()
        self._seqs: dict[SeqId, Sequence] = {}
        self._requests: dict[str, dict[int, Sequence]] = {}
        self._ended: list[SeqId] = []
        self._step: StepId = 0
        self._in_flight = 0
        self._next_seq: SeqId = 0
        self._requests_seen = 0
        self._refused: Sequence | None = None

    # ── requests come and go ──────────────────────────────────────────────────────────────

    def add(self, request: Request) -> int:
        """Queue a request; returns its effective maximum of output tokens.

        That is the least of max_tokens, context - prompt and pool tokens - prompt. Raises
        RequestError, changing nothing, if not even one token can ever be produced.
        """
        if request.id in self._requests:
            raise RequestError(f"request id {request.id!r} is in use; choose another")
        prompt = len(request.prompt)
        limit = self._limits.longest_text(prompt, request.sampling.max_tokens)
        expected = request.expected_output_tokens or limit - prompt
        limit = self._cache.limit(prompt, expected, limit)
        self._requests_seen += 1
        count = request.sampling.n
        alone = 1 if self._cache.shares else count
        choices = self._requests[request.id] = {}
        for index in range(alone):
            seq = self._new_sequence(request, index, limit, self._requests_seen)
            choices[index] = seq
            self._waiting.add(seq)
        choices[0].forks = count - alone
        return limit - prompt

    def abort(self, request_id: str) -> None:
        """End all choices of a request now. Unknown or ended: no effect."""
        for seq in list(self._requests.get(request_id, {}).values()):
            self._end(seq)

    def finish(self, request_id: str, index: int) -> None:
        """End one choice now, since its text is complete. Unknown or ended: no effect."""
        seq = self._requests.get(request_id, {}).get(index)
        if seq is not None:
            self._end(seq)

    @property
    def busy(self) -> bool:
        """True while a request is not finished."""
        return bool(self._seqs)

    @property
    def queue_lengths(self) -> tuple[int, int]:
        """Sequences (running or loading, waiting)."""
        return self._active, len(self._waiting)

    @property
    def _active(self) -> int:
        return len(self._running) + len(self._loading)

    def sequence(self, seq_id: SeqId) -> Sequence | None:
        """Return a live sequence, to be read only."""
        return self._seqs.get(seq_id)

    # ── one step ──────────────────────────────────────────────────────────────────────────

    def plan(self, now_s: float = 0.0) -> Batch | None:
        """Decide the next step; None: there is nothing to do now.

        now_s: seconds on the engine's clock. Every batch returned must be submitted, and its
        result applied in order.
        """
        draft = _Draft(self._step + 1, self._limits.max_num_batched_tokens)
        self._expire_loads(now_s)
        self._serve_running(draft, now_s)
        if not (draft.stalled or draft.preempted):
            self._admit_waiting(draft, now_s)
        return self._batch(draft)

    def apply(self, batch: Batch, result: StepResult) -> list[Update]:
        """Take in the result of a batch; returns the news, in the order of its slices."""
        self._in_flight -= 1
        if result.moved or result.failed:
            self._refused = None
        for seq_id, tokens in self._cache.settle(result.moved, result.failed).items():
            self._loaded(self._seqs[seq_id], tokens)
        if result.error is not None:
            return self._fail(batch, result.error, blame=not result.interrupted)
        self._cache.commit(batch.step)
        updates: list[Update] = []
        for piece in batch.slices:
            if piece.score is not None:
                seq = self._seqs.get(piece.seq)
                if seq is not None and batch.step > seq.revoked_step:
                    take_scores(seq, piece, result)
            for sample in piece.samples:
                seq = self._seqs.get(sample.seq)
                # An ended sequence has written once more than it had to; a failed step before
                # this one has made the result void. Neither token exists.
                if seq is None or batch.step <= seq.revoked_step:
                    continue
                if sample.seq in result.refused:
                    self._end(seq)
                    updates += failures_of(seq, result.refused[sample.seq])
                else:
                    updates.append(self._append(seq, result.sampled[sample.seq]))
        return updates

    # ── planning ──────────────────────────────────────────────────────────────────────────

    def _serve_running(self, draft: _Draft, now_s: float) -> None:
        """Give running sequences their tokens, best rank first, taking room from the worst."""
        urgent = len(self._waiting) > 0
        for seq in self._running.snapshot():
            if draft.budget == 0:
                return
            while urgent and draft.budget and self._waiting[0].rank[0] < seq.rank[0]:
                urgent = self._admit_urgent(draft, now_s)
            if seq.phase is not Phase.RUNNING:
                continue  # displaced meanwhile
            known = len(seq.tokens) + seq.sampling
            if known >= seq.limit or draft.budget == 0:
                continue  # all of its tokens are on their way
            if known - seq.scheduled > 1:
                seq.scheduled += self._adopt(seq)
            upto = min(known, seq.scheduled + draft.budget)
            if self._make_room(seq, upto, draft):
                self._slice(seq, upto, draft)
            else:
                draft.stalled = True

    def _make_room(self, seq: Sequence, upto: int, draft: _Draft) -> bool:
        """Extend a sequence, preempting worse ones; False: it has to stand still this step."""
        while not self._cache.extend(seq, upto, draft.step):
            victim = next((v for v in self._worse_than(seq) if not self._spared(v)), None)
            if victim is None:
                return False
            self._preempt(victim, draft)
        return True

    def _worse_than(self, seq: Sequence) -> list[Sequence]:
        """Running sequences of a worse rank, worst first. None of them has a slice yet."""
        worse: list[Sequence] = []
        for other in self._running.worst_first():
            if other.rank <= seq.rank:
                break
            worse.append(other)
        return worse

    def _spared(self, seq: Sequence) -> bool:
        return seq.length < seq.spared_until

    def _admit_waiting(self, draft: _Draft, now_s: float) -> None:
        """Admit waiting sequences in order, up to the first that finds no room.

        No more are passed over, because waiting costs them nothing, than could run at once.
        """
        active = self._active
        quota = self._cache.quota(len(self._waiting), active)
        index = 0
        while index < min(len(self._waiting), self._limits.max_num_seqs):
            if not (quota and draft.budget):
                return
            seq = self._waiting[index]
            if self._active >= self._limits.max_num_seqs:
                return
            if seq is self._refused and active:
                return  # nothing has come back since it was refused
            hit = self._find(seq)
            if hit is None:
                index += 1
            elif self._admit(seq, hit, draft, now_s):
                quota -= 1
            else:
                self._refused = seq
                return

    def _admit_urgent(self, draft: _Draft, now_s: float) -> bool:
        """Admit the first waiting sequence, displacing running ones of a strictly worse class.

        All or nothing: nobody is displaced unless that makes enough room. False: no use trying
        again in this step.
        """
        seq = self._waiting[0]
        active = self._active
        hit = self._find(seq) if self._cache.quota(1, active) else None
        if hit is None:
            return False
        slots = active + 1 - self._limits.max_num_seqs
        blocks = self._cache.shortage(seq, hit)
        worse = takewhile(lambda v: v.rank[0] > seq.rank[0], self._running.worst_first())
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
            self._preempt(victim, draft)
        return self._admit(seq, hit, draft, now_s) and len(self._waiting) > 0

    def _find(self, seq: Sequence) -> Hit | None:
        """Look up a waiting sequence; None: let others pass, waiting costs it nothing."""
        if len(seq.tokens) + seq.sampling >= seq.limit:
            return None  # its last token is on its way
        hit = self._cache.lookup(seq)
        return None if hit.arriving else hit

    def _admit(self, seq: Sequence, hit: Hit, draft: _Draft, now_s: float) -> bool:
        loads = any(tier for run in hit.runs for tier, _ in run)
        upto = hit.tokens if loads else min(seq.length, hit.tokens + draft.budget)
        if not self._cache.admit(seq, hit, upto, draft.step):
            return False
        self._waiting.remove(seq)
        if loads:
            seq.phase = Phase.LOADING
            seq.load_deadline_s = now_s + self._limits.load_timeout_s
            self._loading.add(seq)
        else:
            self._run(seq, hit.tokens)
            self._slice(seq, upto, draft)
        return True

    def _run(self, seq: Sequence, tokens: int) -> None:
        """Enter phase RUNNING with the first `tokens` tokens in memory."""
        seq.phase = Phase.RUNNING
        seq.scheduled = tokens
        self._running.add(seq)
        self.stats.recomputed_tokens += max(0, seq.lost_tokens - tokens)
        seq.lost_tokens = 0
        if seq.cached_tokens is None:
            seq.cached_tokens = tokens
            self.stats.prefix_query_tokens += seq.prompt_length
            self.stats.prefix_hit_tokens += tokens

    def _adopt(self, seq: Sequence) -> int:
        gained = self._cache.adopt(seq)
        if gained and not seq.preemptions and seq.cached_tokens is not None:
            seq.cached_tokens += gained
            self.stats.prefix_hit_tokens += gained
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
            child = self._new_sequence(leader.request, index, leader.limit, leader.rank[1])
            self._requests[leader.request.id][index] = child
            if self._active >= self._limits.max_num_seqs:
                self._waiting.add(child)
                continue
            child.cached_tokens = leader.cached_tokens
            child.phase = Phase.RUNNING
            child.scheduled = leader.scheduled
            child.sampling = 1
            self._cache.fork(leader, child)
            self._running.add(child)
            samples += child.samples
        leader.forks = 0
        return samples

    def _batch(self, draft: _Draft) -> Batch | None:
        moves = self._cache.take_moves()
        if not (draft.slices or moves or self._cache.open_moves):
            return None
        self._step = draft.step
        self._in_flight += 1
        copies = self._cache.take_copies()
        self.stats.copies += len(copies)
        self.stats.note(self._cache.usage(), len(self._running))
        ended = tuple(self._ended)
        self._ended.clear()
        return Batch(draft.step, tuple(draft.slices), copies, moves, ended)

    # ── results ───────────────────────────────────────────────────────────────────────────

    def _append(self, seq: Sequence, sampled: Sampled) -> Update:
        seq.sampling -= 1
        seq.tokens.append(sampled.token)
        finish, stop_token = end_of(seq)
        if finish is not None:
            self._end(seq)
        elif seq.scheduled == len(seq.tokens):
            self._cache.seal(seq)
        return update_of(seq, sampled, finish, stop_token)

    def _fail(self, batch: Batch, error: str, *, blame: bool) -> list[Update]:
        """Release the step's sequences and their readers; queue them once more, or end them."""
        self.stats.failed_steps += 1
        own = {piece.seq for piece in batch.slices}
        own |= {sample.seq for piece in batch.slices for sample in piece.samples}
        own = {i for i in own if i in self._seqs and self._seqs[i].revoked_step < batch.step}
        updates: list[Update] = []
        for seq_id in sorted(self._cache.revoke(batch.step, own)):
            seq = self._seqs.get(seq_id)
            if seq is None:
                continue
            seq.failures += blame and seq_id in own
            seq.revoked_step = self._step
            seq.sampling = 0
            if seq.failures >= 2:
                self._end(seq)
                updates += failures_of(seq, error)
            else:
                self._requeue(seq)
        return updates

    def _loaded(self, seq: Sequence, tokens: int) -> None:
        self._loading.remove(seq)
        self._run(seq, tokens)

    def _expire_loads(self, now_s: float) -> None:
        for seq in self._loading.snapshot():
            if now_s >= seq.load_deadline_s:
                self._loaded(seq, self._cache.give_up(seq))

    # ── phases ────────────────────────────────────────────────────────────────────────────

    def _preempt(self, seq: Sequence, draft: _Draft) -> None:
        """Take a running sequence's blocks; it resumes as a prefix hit. Its text is kept."""
        seq.lost_tokens = seq.scheduled
        seq.spared_until = seq.length + seq.sampling + self._limits.storm_guard_tokens
        seq.preemptions += 1
        self.stats.preemptions += 1
        draft.preempted = True
        self._requeue(seq)

    def _requeue(self, seq: Sequence) -> None:
        if seq.phase is not Phase.WAITING:
            self._leave(seq)
            self._waiting.add(seq)
        seq.phase = Phase.WAITING
        seq.scheduled = 0

    def _end(self, seq: Sequence) -> None:
        self._leave(seq)
        seq.phase = Phase.FINISHED
        del self._seqs[seq.id]
        choices = self._requests[seq.request.id]
        del choices[seq.index]
        if not choices:
            del self._requests[seq.request.id]

    def _leave(self, seq: Sequence) -> None:
        """Take a sequence out of its list and away from its blocks."""
        lists = {Phase.WAITING: self._waiting, Phase.RUNNING: self._running}
        lists.get(seq.phase, self._loading).remove(seq)
        if seq.phase is not Phase.WAITING:
            seq.known_past = False
            # The step being planned counts as in flight: it may copy from these blocks.
            self._cache.release(seq, self._step + 1)
            self._ended.append(seq.id)
            self._refused = None

    def _new_sequence(self, request: Request, index: int, limit: int, number: int) -> Sequence:
        rank = (self._order.urgency(request), number, index)
        seq = Sequence(self._next_seq, request, index=index, limit=limit, rank=rank)
        self._next_seq += 1
        self._seqs[seq.id] = seq
        return seq
