"""The waiting sequences: one queue per tenant, so that no tenant stands in another's way."""

from __future__ import annotations

from collections.abc import Container

from octavo.contract.request import Sequence
from octavo.sched.ranked import Ranked


class Waiting:
    """Waiting sequences by rank, and by tenant. Look-ups are O(log n) and O(tenants)."""

    def __init__(self) -> None:
        self._queues: dict[str, Ranked] = {}
        """By tenant; none is empty."""
        self._count = 0
        self.changes = 0
        """Times that a sequence has come or gone."""

    def add(self, seq: Sequence) -> None:
        """Put a sequence in its place."""
        queue = self._queues.get(seq.request.tenant)
        if queue is None:
            queue = self._queues[seq.request.tenant] = Ranked()
        queue.add(seq)
        self._count += 1
        self.changes += 1

    def remove(self, seq: Sequence) -> None:
        """Take a sequence out."""
        queue = self._queues[seq.request.tenant]
        queue.remove(seq)
        self._count -= 1
        self.changes += 1
        if not len(queue):
            del self._queues[seq.request.tenant]

    def first(self, without: Container[str] = ()) -> Sequence | None:
        """Return the sequence of the best rank; of tenants in `without` none is taken."""
        heads = (queue[0] for tenant, queue in self._queues.items() if tenant not in without)
        return min(heads, key=_rank, default=None)

    def walk(self, without: Container[str] = ()) -> Walk:
        """Return what visits the sequences in order while some of them leave."""
        return Walk(self._queues, without)

    def __len__(self) -> int:
        return self._count


class Walk:
    """One way through the waiting sequences, best rank first."""

    def __init__(self, queues: dict[str, Ranked], without: Container[str]) -> None:
        self._queues = queues
        self._passed = {tenant: 0 for tenant in queues if tenant not in without}
        """By tenant that is still served: how many of its sequences have been passed over."""

    def next(self) -> Sequence | None:
        """Return the best sequence that is not passed over; None: there is no other."""
        best: Sequence | None = None
        for tenant, passed in self._passed.items():
            queue = self._queues.get(tenant)
            if queue is not None and passed < len(queue):
                head = queue[passed]
                if best is None or head.rank < best.rank:
                    best = head
        return best

    def pass_over(self, seq: Sequence) -> None:
        """Go on behind a sequence that stays where it is."""
        self._passed[seq.request.tenant] += 1

    def skip(self, tenant: str) -> None:
        """Visit no other sequence of a tenant."""
        del self._passed[tenant]


def _rank(seq: Sequence) -> tuple[int, ...]:
    return seq.rank
