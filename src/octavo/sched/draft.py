"""The step being planned, and how a sequence gets its share of it."""

from __future__ import annotations

from octavo.contract.batch import Sample, Slice
from octavo.contract.ids import PENDING, SeqId, StepId
from octavo.contract.request import Sequence
from octavo.sched.cache import Cache
from octavo.sched.limits import Limits
from octavo.sched.outcome import past_of, score_of
from octavo.sched.pooled import pool_of
from octavo.sched.roster import Roster
from octavo.sched.stats import Stats


class Draft:
    """The step being planned."""

    __slots__ = (
        "budget",
        "displaced",
        "held_up",
        "limits",
        "long",
        "slices",
        "spares",
        "stalled",
        "step",
    )

    def __init__(self, step: StepId, limits: Limits) -> None:
        self.step = step
        self.limits = limits
        self.budget = limits.max_num_batched_tokens
        self.long = 0
        """Long texts that have been given tokens."""
        self.slices: list[Slice] = []
        self.spares = True
        """Victims of preemption that have just come back are no victims again."""
        self.stalled = False
        self.held_up: set[str] = set()
        """Tenants at their maximum, of which a sequence stands still."""
        self.displaced: set[SeqId] = set()
        """Preempted in this step: they come back in a later one at the earliest."""

    def share(self, pending: int) -> int:
        """Most tokens that a sequence which lacks so many may be given; 0: it has to wait."""
        if not self.is_long(pending):
            return self.budget
        return 0 if self.full_of_long else min(self.budget, self.limits.long_prefill_tokens)

    def is_long(self, pending: int) -> bool:
        """Say whether a text that lacks so many tokens is given less than it could have."""
        return 0 < self.limits.long_prefill_tokens < pending

    @property
    def full_of_long(self) -> bool:
        """True once no further long text may be given any."""
        return self.long >= self.limits.max_long_prefills


class Slicer:
    """Adds slices to a draft: tokens, blocks, and what is to be sampled."""

    def __init__(self, cache: Cache, roster: Roster, stats: Stats, max_num_seqs: int) -> None:
        self._cache = cache
        self._roster = roster
        self._stats = stats
        self._max_num_seqs = max_num_seqs

    def slice(self, seq: Sequence, upto: int, draft: Draft) -> None:
        """Give the step the sequence's tokens from `scheduled` up to `upto`."""
        start, known = seq.scheduled, len(seq.tokens)
        if start + 1 == known == upto:
            tokens = (seq.tokens[start],)
        else:
            tokens = tuple(seq.tokens[start:upto])
            if upto > known:
                tokens += (PENDING,)
        samples: tuple[Sample, ...] = ()
        pool = pool_of(seq, last=upto == known)
        seq.scheduled = upto
        if seq.beam:
            self._roster.search(seq).sliced = draft.step
        if upto == known + seq.sampling:
            seq.sampling += 1
            if seq.pooled is None:
                samples = self._fork(seq) if seq.forks else seq.samples
        kept, blocks = self._cache.growth(seq)
        past = past_of(seq, start) if seq.looks_back and samples else ()
        score = score_of(seq, start, upto) if start < seq.score_end else None
        draft.slices.append(Slice(seq.id, start, tokens, kept, blocks, samples, past, score, pool))
        draft.budget -= upto - start
        if start < seq.prompt_length:
            self._stats.computed_prompt_tokens += min(upto, seq.prompt_length) - start

    def _fork(self, leader: Sequence) -> tuple[Sample, ...]:
        """Begin the other choices of a request: their first tokens come from the same logits.

        Choices that find no free place wait; they come back alone, as prefix hits.
        """
        samples = leader.samples
        for index in range(1, leader.forks + 1):
            child = self._roster.begin(leader.request, index, leader.limit, leader.rank[1])
            if self._roster.active >= self._max_num_seqs:
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
