"""The limits of tenants and of the server, as a gate that every request passes."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from octavo.errors import OverLimit
from octavo.server.bucket import TokenBucket
from octavo.server.tenants import Tenant

_SLACK = 64
"""Places of those that have left that a queue may have beside twice the others."""


class TenantGate:
    """A `Gate`: requests beyond a tenant's limit wait, and more are refused.

    most: requests of all tenants together, those that wait included. retry_after_s: what is told
    where nobody knows when there will be room. Tenants' limits are those of their first request.
    For use on one event loop.
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
        """Requests whose turn has not come."""
        return sum(line.waiting for line in self._lines.values())

    def counts(self) -> Mapping[str, tuple[int, int]]:
        """Return by tenant how many requests are on, and how many wait."""
        return {name: (line.running, line.waiting) for name, line in self._lines.items()}

    def enter(self, tenant: Tenant, tokens: int, priority: int = 0) -> _Place:
        """Let a request in. Raises OverLimit; see `Gate.enter`."""
        line = self._lines.get(tenant.name)
        if line is None:
            line = self._lines[tenant.name] = self._open(tenant)
        limits = tenant.limits
        if self._inside >= self._most:
            raise OverLimit(
                f"the server has {self._inside} requests, the most that it takes (max_num_seqs + "
                "max_queued_requests): send it again later",
                retry_after_s=self._retry_after_s,
                of_server=True,
            )
        wait_s = 0.0 if line.bucket is None else line.bucket.wait_s(self._clock())
        if wait_s > 0:
            raise OverLimit(
                f"tenant {tenant.name!r} has used its {limits.tokens_per_minute} tokens a minute: "
                f"send it again in {math.ceil(wait_s)} s",
                retry_after_s=wait_s,
            )
        full = limits.max_queued is not None and line.waiting >= limits.max_queued
        if line.full and full:
            raise OverLimit(
                f"tenant {tenant.name!r} has {line.running} requests running (max_running) and "
                f"{line.waiting} waiting (max_queued): send it again when one has ended",
                retry_after_s=self._retry_after_s,
            )
        place = _Place(self, line, (priority, next(self._arrivals)))
        place.spend(tokens)
        self._inside += 1
        if line.full:
            line.wait(place)
        else:
            line.running += 1
            place.on = True
        return place

    def now(self) -> float:
        """Return the time of its clock."""
        return self._clock()

    def let_out(self) -> None:
        """One that was let in has left."""
        self._inside -= 1

    def _open(self, tenant: Tenant) -> _Line:
        per_minute = tenant.limits.tokens_per_minute
        bucket = None if per_minute is None else TokenBucket(per_minute, now_s=self._clock())
        return _Line(tenant.limits.max_running, bucket)


@dataclass(slots=True)
class _Line:
    """The requests of one tenant."""

    most: int | None
    bucket: TokenBucket | None
    running: int = 0
    waiting: int = 0
    queue: list[tuple[tuple[int, int], _Place]] = field(
        default_factory=list[tuple[tuple[int, int], "_Place"]]
    )
    """A heap; those that have left stay in it until their turn would come."""

    @property
    def full(self) -> bool:
        return self.most is not None and self.running >= self.most

    def wait(self, place: _Place) -> None:
        self.waiting += 1
        heapq.heappush(self.queue, (place.order, place))

    def free(self) -> None:
        """One that ran has left: the first that waits goes on."""
        self.running -= 1
        while self.queue and not self.full:
            _, place = heapq.heappop(self.queue)
            if not place.left:
                self.waiting -= 1
                self.running += 1
                place.go_on()

    def forget(self) -> None:
        """One that waited has left."""
        self.waiting -= 1
        if len(self.queue) > 2 * self.waiting + _SLACK:
            self.queue = [entry for entry in self.queue if not entry[1].left]
            heapq.heapify(self.queue)


class _Place:
    """What a request has of its tenant's limits."""

    __slots__ = ("_gate", "_line", "_turn", "left", "on", "order")

    def __init__(self, gate: TenantGate, line: _Line, order: tuple[int, int]) -> None:
        self._gate = gate
        self._line = line
        self._turn: asyncio.Event | None = None
        self.order = order
        """Priority, then arrival: lower goes first."""
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
        if self._line.bucket is not None:
            self._line.bucket.take(tokens, self._gate.now())

    def leave(self) -> None:
        """Give it back, also while waiting for the turn."""
        if self.left:
            return
        self.left = True
        self._gate.let_out()
        if self.on:
            self._line.free()
        else:
            self._line.forget()
