"""Whether new requests come in at all."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class Doors:
    """Open, or closed to new requests while those inside go on. For use on one event loop."""

    def __init__(self) -> None:
        self.draining = False
        """True: new requests are refused, with 503."""
        self._for_good = False
        self._inside = 0
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def inside(self) -> int:
        """Requests that are being answered."""
        return self._inside

    def come_in(self) -> None:
        """Count a request; whoever calls this calls `go_out` once."""
        self._inside += 1
        self._empty.clear()

    def go_out(self) -> None:
        """A request has been answered, or its client has left."""
        self._inside -= 1
        assert self._inside >= 0, "a request went out that had not come in"
        if not self._inside:
            self._empty.set()

    async def drain(self, timeout_s: float, *, for_good: bool = False) -> int:
        """Close the doors and wait for those inside; returns how many are left.

        for_good: nobody opens them again.
        """
        self.draining = True
        self._for_good = self._for_good or for_good
        with suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout_s)
        return self._inside

    def open(self) -> None:
        """Let new requests in again, unless the doors have been closed for good."""
        self.draining = self._for_good
