"""Who is where: the one owner of phases, of the queues and of the table of requests."""

from __future__ import annotations

from collections.abc import Iterator

from octavo.contract.ids import SeqId, StepId
from octavo.contract.misses import Miss, MissReason
from octavo.contract.request import Phase, Request, Sequence
from octavo.sched.beams import BeamSearch, Successor
from octavo.sched.cache import Cache
from octavo.sched.order import Order
from octavo.sched.ranked import Ranked
from octavo.sched.stats import Stats
from octavo.sched.waiting import Waiting

_ACTIVE = (Phase.RUNNING, Phase.LOADING)


class Roster:
    """Sequences by phase, by id and by request; whoever leaves the running gives back blocks."""

    def __init__(self, cache: Cache, order: Order, stats: Stats) -> None:
        self.waiting = Waiting(getattr(order, "turns", None), cache.known)
        self.running = Ranked()
        self.loading = Ranked()
        self.refused: dict[SeqId, bool] = {}
        """Waiting sequences that found no room, True: since their tenant is at its maximum.
        Forgotten as soon as something has come back, or somebody no longer waits."""
        self.concluded = -1
        """`waiting.changes` when nobody who waits found room; -1 once something has come back."""
        self.step: StepId = 0
        """The last step planned; written by the scheduler."""
        self._cache = cache
        self._order = order
        self._stats = stats
        self._searches: dict[str, BeamSearch] = {}
        self._seqs: dict[SeqId, Sequence] = {}
        self._requests: dict[str, dict[int, Sequence]] = {}
        self._ended: list[SeqId] = []
        self._next_seq: SeqId = 0
        self._seen = 0

    def reconsider(self) -> None:
        """Note that something has come back or left the queue: who found no room may find some."""
        self.refused.clear()
        self.concluded = -1

    # ── who is there ──────────────────────────────────────────────────────────────────────

    @property
    def busy(self) -> bool:
        """True while a request is not finished."""
        return bool(self._seqs)

    @property
    def active(self) -> int:
        """Places taken: by sequences that run or load, and by all beams of a search that does."""
        taken = len(self.running) + len(self.loading)
        for search in self._searches.values():
            there = sum(seq.phase in _ACTIVE for seq in search.members)
            taken += search.width - there if there else 0
        return taken

    @staticmethod
    def places(seq: Sequence) -> int:
        """Places that a waiting sequence needs."""
        return seq.request.sampling.choices if seq.beam else 1

    def search(self, seq: Sequence) -> BeamSearch:
        """Return the search that a beam belongs to."""
        return self._searches[seq.request.id]

    def gang(self, seq: Sequence) -> list[Sequence]:
        """Return who comes and goes together with a sequence, itself included."""
        return self.search(seq).members if seq.beam else [seq]

    def get(self, seq_id: SeqId) -> Sequence | None:
        """Return a live sequence."""
        return self._seqs.get(seq_id)

    @property
    def requests(self) -> list[str]:
        """Ids of all requests, in the order they came."""
        return list(self._requests)

    def each(self) -> Iterator[Sequence]:
        """Iterate over all live sequences, in the order they came."""
        return iter(self._seqs.values())

    def all(self) -> list[Sequence]:
        """Return all live sequences."""
        return list(self._seqs.values())

    def choices(self, request_id: str) -> list[Sequence]:
        """Return the live sequences of a request; none if it is unknown or has ended."""
        return list(self._requests.get(request_id, {}).values())

    def choice(self, request_id: str, index: int) -> Sequence | None:
        """Return one live sequence of a request."""
        return self._requests.get(request_id, {}).get(index)

    def take_ended(self) -> tuple[SeqId, ...]:
        """Return, once, the sequences whose state in the runner can go."""
        ended = tuple(self._ended)
        self._ended.clear()
        return ended

    # ── sequences come ────────────────────────────────────────────────────────────────────

    def queue(self, request: Request, limit: int, count: int) -> list[Sequence]:
        """Let the first `count` choices of a request wait. limit: longest text."""
        self._seen += 1
        seqs = [self.begin(request, index, limit, self._seen) for index in range(count)]
        for seq in seqs:
            self.waiting.add(seq)
            if seq.beam:
                self._searches[request.id] = BeamSearch(seq)
        return seqs

    def begin(self, request: Request, index: int, limit: int, number: int) -> Sequence:
        """Make a sequence that is in no queue yet. number: of the request, for its rank."""
        rank = (self._order.urgency(request), number, index)
        seq = Sequence(self._next_seq, request, index=index, limit=limit, rank=rank)
        self._next_seq += 1
        self._seqs[seq.id] = seq
        self._requests.setdefault(request.id, {})[index] = seq
        return seq

    def pause(self, request_id: str, index: int, *, paused: bool, gives_way: bool) -> None:
        """Let one choice of a request, or all its beams, be given no tokens, or some again."""
        search = self._searches.get(request_id)
        # The beams of a search have other indices than its answers.
        seqs = [self.choice(request_id, index)] if search is None else search.members
        for seq in seqs:
            if seq is None:
                continue
            if seq.phase is Phase.WAITING:
                self.waiting.remove(seq)
            seq.paused, seq.gives_way = paused, gives_way
            if seq.phase is Phase.WAITING:
                self.waiting.add(seq)
        # Somebody may wait behind one that found no room and no longer stands in the way.
        self.reconsider()

    # ── and change phase ──────────────────────────────────────────────────────────────────

    def run(self, seq: Sequence) -> None:
        """Enter phase RUNNING, out of no queue; parked beams come along, without any block."""
        seq.phase = Phase.RUNNING
        self.running.add(seq)
        for mate in self.gang(seq):
            if mate.phase is Phase.PARKED:
                self._cache.open(mate)
                mate.phase = Phase.RUNNING
                self.running.add(mate)

    def start(self, seq: Sequence, tokens: int) -> None:
        """Enter phase RUNNING with the first `tokens` tokens in memory."""
        seq.scheduled = tokens
        self.run(seq)
        self._stats.recomputed_tokens += max(0, seq.lost_tokens - tokens)
        seq.lost_tokens = 0
        if seq.cached_tokens is None:
            seq.cached_tokens = tokens
            seq.counts_hits = True
            self._stats.prefix_queries += 1
            self._stats.prefix_query_tokens += seq.prompt_length
            self._stats.prefix_hit_tokens += tokens
            if seq.miss is not None:
                self._stats.miss(seq.miss)

    def loaded(self, seq: Sequence, tokens: int) -> None:
        """Wait no longer for moves: the first `tokens` tokens are in memory."""
        self.loading.remove(seq)
        found = seq.reusable if seq.miss is None else seq.miss.position
        if seq.cached_tokens is None and tokens < found:
            lost = seq.reusable - tokens
            seq.miss = Miss(reason=MissReason.NOT_LOADED, position=tokens, tokens=lost)
        self.start(seq, tokens)

    def load(self, seq: Sequence) -> None:
        """Enter phase LOADING, out of no queue."""
        seq.phase = Phase.LOADING
        self.loading.add(seq)

    def requeue(self, seq: Sequence) -> None:
        """Back to the waiting ones, without blocks; the text is kept. Beams wait together."""
        gang = self.gang(seq)
        if gang[0].beam:
            self.search(seq).leader = gang[0]
        for one in gang:
            if one.phase in _ACTIVE:
                self._leave(one, returns=True)
                one.phase = Phase.PARKED
            one.scheduled = 0
        if gang[0].phase is Phase.PARKED:
            self._wait(gang[0])

    def requeue_all(self) -> int:
        """Let all wait again, since none of them has a block any more; returns how many ran."""
        count = 0
        for seq in (*self.running.snapshot(), *self.loading.snapshot()):
            if seq.phase in _ACTIVE:  # not yet with the others of its search
                for one in self.gang(seq):
                    one.preempt()
                self.requeue(seq)
                count += 1
        self.reconsider()
        return count

    def end(self, seq: Sequence) -> None:
        """The sequence is no more, nor are the other beams of its search."""
        for one in list(self.gang(seq)):
            self._drop(one)
        self._searches.pop(seq.request.id, None)

    def follow(self, search: BeamSearch, successors: list[Successor]) -> None:
        """Let a search go on with these texts: some members end, others branch."""
        taken: set[SeqId] = set()
        heirs: list[Sequence] = []
        for one in successors:
            heirs.append(self._branch(search, one.parent) if one.parent.id in taken else one.parent)
            taken.add(one.parent.id)
        for seq in search.members:
            if seq.id not in taken:
                self._drop(seq)
        for heir, one in zip(heirs, successors, strict=True):
            heir.tokens.append(one.token)
        search.members = heirs
        search.logprobs = [one.logprob for one in successors]
        if search.leader not in heirs:
            search.leader = heirs[0]
            if heirs[0].phase is Phase.PARKED:
                self._wait(heirs[0])

    def _branch(self, search: BeamSearch, parent: Sequence) -> Sequence:
        """Make another beam with a member's text, which shares all of its blocks."""
        search.branches += 1
        child = self.begin(parent.request, search.branches, parent.limit, parent.rank[1])
        child.tokens = parent.tokens[:]
        child.cached_tokens, child.miss = parent.cached_tokens, parent.miss
        child.spared_until, child.preemptions = parent.spared_until, parent.preemptions
        child.paused, child.gives_way = parent.paused, parent.gives_way
        if parent.phase is Phase.RUNNING:
            child.scheduled = parent.scheduled
            self._cache.fork(parent, child)
            child.phase = Phase.RUNNING
            self.running.add(child)
        else:
            child.phase = Phase.PARKED
        return child

    def _wait(self, seq: Sequence) -> None:
        seq.phase = Phase.WAITING
        self.waiting.add(seq)

    def _drop(self, seq: Sequence) -> None:
        self._leave(seq, returns=False)
        seq.phase = Phase.FINISHED
        del self._seqs[seq.id]
        choices = self._requests[seq.request.id]
        del choices[seq.index]
        if not choices:
            del self._requests[seq.request.id]
            self._cache.part(seq.request)

    def _leave(self, seq: Sequence, *, returns: bool) -> None:
        """Take a sequence out of its queue and away from its blocks."""
        queues = {
            Phase.WAITING: self.waiting,
            Phase.RUNNING: self.running,
            Phase.LOADING: self.loading,
        }
        if seq.phase in queues:
            queues[seq.phase].remove(seq)
            self.reconsider()
        if seq.phase in _ACTIVE:
            seq.known_past = seq.counts_hits = False
            # The step being planned counts as in flight: it may copy from these blocks.
            self._cache.release(seq, self.step + 1, returns=returns)
            self._ended.append(seq.id)
