"""What a finished step means for its sequences: tokens, ends, failures, beams."""

from __future__ import annotations

from octavo.contract.batch import Batch, Sampled, Slice, StepResult
from octavo.contract.ids import SeqId
from octavo.contract.request import Sequence, Update
from octavo.errors import RequestError
from octavo.sched.beams import BeamSearch
from octavo.sched.cache import Cache
from octavo.sched.outcome import (
    end_of,
    failures_of,
    results_of,
    search_failures,
    take_scores,
    update_of,
)
from octavo.sched.pooled import embedded
from octavo.sched.roster import Roster
from octavo.sched.stats import Stats


class Results:
    """Learns what became of a step."""

    def __init__(self, cache: Cache, roster: Roster, stats: Stats) -> None:
        self._cache = cache
        self._roster = roster
        self._stats = stats

    def take_in(self, batch: Batch, result: StepResult) -> list[Update]:
        """Take in the result of a batch; returns the news, in the order of its slices."""
        if result.moved or result.failed:
            self._roster.reconsider()
        for seq_id, tokens in self._cache.settle(result.moved, result.failed).items():
            self._roster.loaded(self._live(seq_id), tokens)
        if result.error is not None:
            return self._fail(batch, result.error, blame=not result.interrupted)
        self._cache.commit(batch.step)
        updates: list[Update] = []
        searches: dict[str, BeamSearch] = {}
        for piece in batch.slices:
            if piece.score is not None or piece.pool is not None:
                updates += self._take_prompt(piece, batch, result)
            for sample in piece.samples:
                seq = self._roster.get(sample.seq)
                # An ended sequence has written once more than it had to; a failed step before
                # this one has made the result void. Neither token exists.
                if seq is None or batch.step <= seq.revoked_step:
                    continue
                if sample.seq in result.refused:
                    updates += self._fail_one(seq, result.refused[sample.seq], refused=True)
                    searches.pop(seq.request.id, None)
                elif seq.beam:
                    searches[seq.request.id] = self._roster.search(seq)
                else:
                    updates.append(self._append(seq, result.sampled[sample.seq]))
        for search in searches.values():
            updates += self._advance(search, result)
        return updates

    def shorten_all(self) -> list[Update]:
        """Let no text grow longer than fits by now; returns the ends of those that are longer."""
        updates: list[Update] = []
        for seq in self._roster.all():
            if self._roster.get(seq.id) is not seq:
                continue  # ended with the others of its search
            request = seq.request
            width = request.sampling.choices if seq.beam else 1
            room = seq.limit - seq.prompt_length
            try:
                seq.limit = self._cache.limit(
                    seq.prompt_length, room, seq.limit, width, request.tenant
                )
                error = f"the KV memory holds only {seq.limit} tokens of it any more"
            except RequestError as refusal:
                error, seq.limit = str(refusal), 0
            if seq.beam:
                self._roster.search(seq).limit = seq.limit
            if seq.length >= seq.limit:
                updates += self._fail_one(seq, error)
        return updates

    def _take_prompt(self, piece: Slice, batch: Batch, result: StepResult) -> list[Update]:
        """Keep what a slice says of its prompt; returns its vector, which ends the sequence."""
        seq = self._roster.get(piece.seq)
        if seq is None or batch.step <= seq.revoked_step:
            return []
        if piece.score is not None:
            take_scores(seq, piece, result)
        if piece.pool is None or not piece.pool.last:
            return []
        self._roster.end(seq)
        return [embedded(seq, result.pooled[piece.seq])]

    def _append(self, seq: Sequence, sampled: Sampled) -> Update:
        seq.sampling -= 1
        seq.tokens.append(sampled.token)
        finish, stop_token = end_of(seq)
        if finish is not None:
            self._roster.end(seq)
        elif seq.scheduled == len(seq.tokens):
            self._cache.seal(seq)
        return update_of(seq, sampled, finish, stop_token)

    def _advance(self, search: BeamSearch, result: StepResult) -> list[Update]:
        """Let a search decide what it goes on with; returns its texts if it is done."""
        for seq in search.members:
            seq.sampling -= 1
        if search.leader.score_end and not search.scores:
            search.scores = tuple(search.leader.scores)
        successors = search.advance([result.candidates[seq.id] for seq in search.members])
        if not search.done:
            self._roster.follow(search, successors)
            return []
        self._roster.end(search.leader)
        return results_of(search)

    def _fail(self, batch: Batch, error: str, *, blame: bool) -> list[Update]:
        """Release the step's sequences and their readers; queue them once more, or end them."""
        self._stats.failed_steps += 1
        own = {piece.seq for piece in batch.slices}
        own |= {sample.seq for piece in batch.slices for sample in piece.samples}
        alive = {i: seq for i in own if (seq := self._roster.get(i)) is not None}
        own = {i for i, seq in alive.items() if seq.revoked_step < batch.step}
        updates: list[Update] = []
        done: set[SeqId] = set()
        for seq_id in sorted(self._cache.revoke(batch.step, own)):
            seq = self._roster.get(seq_id)
            if seq is None or seq_id in done:
                continue
            gang = self._roster.gang(seq)
            done |= {one.id for one in gang}
            for one in gang:
                one.revoked_step = self._roster.step
                one.sampling = 0
            if self._failures(seq, blame=blame and not own.isdisjoint(one.id for one in gang)) >= 2:
                updates += self._fail_one(seq, error)
            else:
                self._roster.requeue(seq)
        return updates

    def _failures(self, seq: Sequence, *, blame: bool) -> int:
        """Count failed steps of a sequence, or of all beams of its search together."""
        counted = self._roster.search(seq) if seq.beam else seq
        counted.failures += blame
        return counted.failures

    def _fail_one(self, seq: Sequence, error: str, *, refused: bool = False) -> list[Update]:
        """End a sequence, or its whole search, with an error. refused: see `Update`."""
        failures: list[Update] | None = None
        if seq.beam:
            failures = search_failures(self._roster.search(seq), error, refused=refused)
        self._roster.end(seq)
        return failures_of(seq, error, refused=refused) if failures is None else failures

    def _live(self, seq_id: SeqId) -> Sequence:
        seq = self._roster.get(seq_id)
        assert seq is not None, f"sequence {seq_id} has ended"
        return seq
