"""The waiting sequences: one queue per tenant, so that no tenant stands in another's way."""

from __future__ import annotations

from collections.abc import Callable, Container

from octavo.contract.ids import SeqId
from octavo.contract.request import Sequence
from octavo.sched.ranked import Ranked
from octavo.sched.turns import Known, Turns


class _Queue(Ranked):
    """One tenant's waiting sequences. turns: who is next inside a class; None: the earlier one."""

    def __init__(self, turns: Turns | None) -> None:
        super().__init__()
        self.turns = turns


class Waiting:
    """Waiting sequences by rank, and by tenant. Look-ups are O(log n) and O(tenants).

    Paused ones wait aside and stand in nobody's way: `paused` changes only while they are out.

    turns: makes what chooses inside a class of one tenant; None: order of arrival. known: tells
    how much of a text is in memory.
    """

    def __init__(self, turns: Callable[[], Turns] | None, known: Known) -> None:
        self._turns = turns
        self._known = known
        self._queues: dict[str, _Queue] = {}
        """By tenant that has had one."""
        self._aside: set[SeqId] = set()
        self._count = 0
        self.changes = 0
        """Times that a sequence has come or gone."""

    def add(self, seq: Sequence) -> None:
        """Put a sequence in its place."""
        self._count += 1
        self.changes += 1
        if seq.paused:
            self._aside.add(seq.id)
            return
        queue = self._queues.get(seq.request.tenant)
        if queue is None:
            turns = None if self._turns is None else self._turns()
            queue = self._queues[seq.request.tenant] = _Queue(turns)
        queue.add(seq)

    def admit(self, seq: Sequence) -> None:
        """Take out a sequence whose turn has come."""
        queue = self._queues[seq.request.tenant]
        if queue.turns is not None:
            queue.turns.take(queue, seq)
        self.remove(seq)

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out."""
        self._count -= 1
        self.changes += 1
        if seq.paused:
            self._aside.remove(seq.id)
            return
        queue = self._queues[seq.request.tenant]
        queue.remove(seq)
        if queue.turns is not None:
            queue.turns.forget(seq)

    def walk(self, without: Container[str] = (), *, by_rank: bool = False) -> Walk:
        """Return what visits the sequences in order while some of them leave.

        by_rank: whatever an order would choose.
        """
        open_ = {name: one for name, one in self._queues.items() if name not in without}
        return Walk(open_, self._known, by_rank=by_rank)

    def __len__(self) -> int:
        return self._count


class Walk:
    """One way through the waiting sequences: of the tenant whose first has the best rank, its next.

    Which of a tenant's is its next, its queue's turns say, or its rank.
    """

    def __init__(self, queues: dict[str, _Queue], known: Known, *, by_rank: bool) -> None:
        self.passed = 0
        """Sequences passed over so far."""
        self._by_rank = by_rank
        self._queues = queues
        self._known = known
        self._passed: dict[str, dict[SeqId, None]] = {tenant: {} for tenant in queues}
        """By tenant that is still served: who has been passed over."""

    def next(self) -> Sequence | None:
        """Return who is next and has not been passed over; None: there is no other."""
        best: Sequence | None = None
        for tenant, passed in self._passed.items():
            head = self._first(self._queues[tenant], passed)
            if head is not None and (best is None or head.rank < best.rank):
                best = head
        if best is None:
            return None
        queue = self._queues[best.request.tenant]
        if queue.turns is None or self._by_rank:
            return best
        return queue.turns.next(queue, self._passed[best.request.tenant], self._known)

    def pass_over(self, seq: Sequence) -> None:
        """Go on behind a sequence that stays where it is."""
        self._passed[seq.request.tenant][seq.id] = None
        self.passed += 1

    def skip(self, tenant: str) -> None:
        """Visit no other sequence of a tenant."""
        del self._passed[tenant]

    def _first(self, queue: _Queue, passed: dict[SeqId, None]) -> Sequence | None:
        if len(passed) >= len(queue):
            return None
        if (queue.turns is None or self._by_rank) and queue[len(passed)].id not in passed:
            return queue[len(passed)]  # they have been visited in order, and none has come before
        return next((seq for seq in queue if seq.id not in passed), None)
