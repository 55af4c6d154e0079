"""The events of one response, for whoever listens to them, and whenever they come."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager

from octavo.server.failures import ApiError

_OVERHEAD = 48
"""Bytes that each event takes beside its own."""
_AT_ONCE = 1 << 18
"""Bytes that a listener is given together, about: so much of a log may wait at a slow one."""


class EventLog:
    """Events by their numbers, from 0 on, of which the oldest may have been let go.

    For use on one event loop, but for `write`.
    """

    def __init__(self) -> None:
        self.first = 0
        """The oldest that is there, or the next to come."""
        self.bytes = 0
        self.ended = False
        """Nothing more comes."""
        self._events: list[bytes] = []
        self._written: list[bytes] = []
        """Nobody has heard of them."""
        self._bells: set[asyncio.Event] = set()
        self._forgotten = False

    @property
    def next(self) -> int:
        """The number of the next event."""
        return self.first + len(self._events)

    def write(self, event: bytes) -> None:
        """Append an event; nobody hears of it before `publish`. From one thread at a time.

        Once it has ended: no effect.
        """
        if not self.ended:
            self._written.append(event)

    def publish(self) -> None:
        """Let listeners hear of what has been written."""
        news, self._written = self._written, []
        self._events += news
        self.bytes += sum(map(_size, news))
        self._ring()

    def end(self) -> None:
        """All has been written."""
        self.ended = True
        self.publish()

    def forget(self) -> None:
        """Let go of everything, also of what may still be written."""
        self._written.clear()
        self.let_go(len(self._events))
        self._forgotten = True
        self.end()

    def let_go(self, count: int) -> None:
        """Let go of so many events, the oldest; more than there are: of all."""
        count = min(count, len(self._events))
        self.bytes -= sum(map(_size, self._events[:count]))
        del self._events[:count]
        self.first += count

    def let_go_of_half(self) -> None:
        """Let go of the older half: so that it takes no work for every event that is written."""
        self.let_go(-(-len(self._events) // 2))

    def read(self, number: int) -> tuple[bytes, int]:
        """Return events from this one on, as many as go together, and the number after them.

        Empty: there is none yet, or any more. Raises ApiError if it has been let go.
        """
        self.check(number)
        size, taken = 0, list[bytes]()
        for event in self._events[number - self.first :]:
            size += len(event)
            taken.append(event)
            if size >= _AT_ONCE:
                break
        return b"".join(taken), number + len(taken)

    def check(self, number: int) -> None:
        """Raise ApiError if the event of this number has been let go."""
        if self._forgotten:
            raise ApiError(404, "the response has been forgotten", code="response_not_found")
        if number >= self.first:
            return
        later = f"give {self.first - 1} or more, or " if self._events else ""
        raise ApiError(
            400,
            f"starting_after: event {number} is no longer kept, for lack of room, nor are others "
            f"before number {self.first}: {later}fetch the response without stream",
            param="starting_after",
            code="events_not_kept",
        )

    @contextmanager
    def listening(self) -> Generator[asyncio.Event, None, None]:
        """Give a bell that rings whenever something has changed, while the block runs."""
        bell = asyncio.Event()
        self._bells.add(bell)
        try:
            yield bell
        finally:
            self._bells.discard(bell)

    def _ring(self) -> None:
        for bell in self._bells:
            bell.set()


def _size(event: bytes) -> int:
    return _OVERHEAD + len(event)
