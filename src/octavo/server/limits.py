"""The limits of tenants and of the server, as a gate that every request passes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping

from octavo.errors import OverLimit
from octavo.server.bucket import TokenBucket
from octavo.server.tenants import Tenant, TenantLimits

_SLACK = 64
"""Places of those that have left that a queue may have beside twice the others."""


class TenantGate:
    """A `Gate`: answers beyond a tenant's limit wait, and more are refused.

    A request counts as often as it asks for answers, so that one with many prompts is not one; one
    that asks for more than may run at once runs alone. most: answers for all tenants together,
    those that wait included. retry_after_s: what is told where nobody knows when there will be
    room. Tenants' limits are those of their first request. For use on one event loop.
    """

    def __init__(
        self,
        most: int,
        *,
        retry_after_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most = most
        self._retry_after_s = retry_after_s
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._arrivals = itertools.count()
        self._inside = 0

    @property
    def waiting(self) -> int:
        """Answers whose turn has not come."""
        return sum(line.waiting for line in self._lines.values())

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Return by tenant how many answers are on, and how many wait."""
        return {name: (line.running, line.waiting) for name, line in self._lines.items()}

    def look(self, tenant: Tenant, priority: int | None = None, *, answers: int = 1) -> None:
        """Raise OverLimit for a request that would be refused now; see `Gate.look`."""
        line = self._lines.get(tenant.name)
        if line is None:
            self._check_room(answers)
        else:
            # Whose priority nobody knows may be the first of all.
            order = (-math.inf if priority is None else priority, next(self._arrivals))
            self._check(tenant.name, line, answers, order)

    def enter(self, tenant: Tenant, tokens: int, priority: int = 0, *, answers: int = 1) -> _Place:
        """Let a request in. Raises OverLimit; see `Gate.enter`."""
        line = self._lines.get(tenant.name)
        if line is None:
            line = self._lines[tenant.name] = _Line(tenant.limits, self._clock)
        order = (priority, next(self._arrivals))
        self._check(tenant.name, line, answers, order)
        self._inside += answers
        place = _Place(self, line, answers, order)
        place.spend(tokens)
        line.enter(place)
        return place

    def let_out(self, answers: int) -> None:
        """So many of those that were let in have left."""
        self._inside -= answers

    def _check(self, name: str, line: _Line, answers: int, order: _Order) -> None:
        """Raise OverLimit for a request that may not even wait."""
        self._check_room(answers)
        _check_debt(name, line)
        limits = line.limits
        if limits.max_queued is None or line.runs_at_once(answers, order):
            return
        if line.waiting + answers > limits.max_queued:
            raise OverLimit(
                f"tenant {name!r} has {line.running} answers running of {limits.max_running} "
                f"(max_running) and {line.waiting} waiting of {limits.max_queued} (max_queued): "
                "send it again when one has ended",
                retry_after_s=self._retry_after_s,
            )

    def _check_room(self, answers: int) -> None:
        if self._inside and self._inside + answers > self._most:
            raise OverLimit(
                f"the server has {self._inside} answers to give, and takes {self._most} "
                "(max_num_seqs + max_queued_requests): send it again later",
                retry_after_s=self._retry_after_s,
                of_server=True,
            )


_Order = tuple[float, int]
"""Priority, then arrival: lower goes first."""


class _Line:
    """The requests of one tenant, and what it has of its tokens."""

    def __init__(self, limits: TenantLimits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.running = 0
        self.waiting = 0
        self.queue: list[tuple[_Order, _Place]] = []
        """A heap; those that have left stay in it until their turn would come."""
        self._clock = clock
        rate = limits.tokens_per_minute
        self._bucket = None if rate is None else TokenBucket(rate, now_s=clock())

    def wait_s(self) -> float:
        """Return the seconds until there are tokens again; 0: there are some."""
        return 0.0 if self._bucket is None else self._bucket.wait_s(self._clock())

    def spend(self, tokens: int) -> None:
        """Take tokens."""
        if self._bucket is not None:
            self._bucket.take(tokens, self._clock())

    def runs_at_once(self, answers: int, order: _Order) -> bool:
        """Say whether a request that came now would not wait."""
        first = not self.waiting or order < self.queue[0][0]
        return first and self._fits(answers)

    def enter(self, place: _Place) -> None:
        """Let a request wait, or run."""
        self.waiting += place.answers
        heapq.heappush(self.queue, (place.order, place))
        self._advance()

    def leave(self, place: _Place) -> None:
        """A request has ended, or does not wait any more."""
        if place.on:
            self.running -= place.answers
        else:
            self.waiting -= place.answers
        self._advance()
        if len(self.queue) > 2 * self.waiting + _SLACK:
            self.queue = [entry for entry in self.queue if not entry[1].left]
            heapq.heapify(self.queue)

    def _fits(self, answers: int) -> bool:
        most = self.limits.max_running
        return most is None or not self.running or self.running + answers <= most

    def _advance(self) -> None:
        """Let those go on that may, in their order; nobody goes past the first."""
        while self.queue:
            place = self.queue[0][1]
            if not place.left:
                if not self._fits(place.answers):
                    return
                self.waiting -= place.answers
                self.running += place.answers
                place.go_on()
            heapq.heappop(self.queue)


def _check_debt(name: str, line: _Line) -> None:
    wait_s = line.wait_s()
    if wait_s > 0:
        raise OverLimit(
            f"tenant {name!r} has used its {line.limits.tokens_per_minute} tokens a minute: send "
            f"it again in {math.ceil(wait_s)} s",
            retry_after_s=wait_s,
        )


class _Place:
    """What a request has of its tenant's limits."""

    __slots__ = ("_gate", "_line", "_turn", "answers", "left", "on", "order")

    def __init__(self, gate: TenantGate, line: _Line, answers: int, order: _Order) -> None:
        self._gate = gate
        self._line = line
        self._turn: asyncio.Event | None = None
        self.answers = answers
        self.order = order
        self.on = False
        """Its turn has come."""
        self.left = False

    def go_on(self) -> None:
        """Its turn has come."""
        self.on = True
        if self._turn is not None:
            self._turn.set()

    async def turn(self) -> None:
        """Return when the request may go on to the engine."""
        if not self.on:
            self._turn = asyncio.Event()
            await self._turn.wait()

    def spend(self, tokens: int) -> None:
        """Count tokens against the tenant's limit."""
        self._line.spend(tokens)

    def leave(self) -> None:
        """Give it back, also while waiting for the turn."""
        if self.left:
            return
        self.left = True
        self._gate.let_out(self.answers)
        self._line.leave(self)
