"""Responses that are kept for a while, to be fetched, continued and ended by their ids.

They lie in this process's memory: they end with it.
"""

from __future__ import annotations

import sys
import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec

from octavo.server.event_log import EventLog
from octavo.server.failures import ApiError
from octavo.server.responses_form import ResponsesForm
from octavo.text.conversation import Turn

KEPT_BYTES = 64 << 20
"""Of each tenant."""
KEPT_S = 3600.0
"""After a response has ended, or was last asked for."""
MOST_KEPT = 4096
"""Of each tenant."""
_OVERHEAD = 1000
"""Bytes that each takes beside its texts, about."""


class StoredResponse:
    """One response, while it is written and after.

    before: all turns ahead of its answer. events: what its form is heard by, where it is.
    """

    def __init__(
        self, form: ResponsesForm, before: tuple[Turn, ...], events: EventLog | None = None
    ) -> None:
        self.id = form.id
        self.cancel: Callable[[], None] | None = None
        """Ends it, while it is written in the background."""
        self.used_s = 0.0
        self.events = events
        """None: they are not kept."""
        self._size = 0
        self._form: ResponsesForm | None = form
        self._before = before
        self._turns: tuple[Turn, ...] = ()
        self._body = b""

    @property
    def ended(self) -> bool:
        """True if nothing of it changes any more."""
        return self._form is None

    @property
    def size(self) -> int:
        """Bytes of its events, and once it has ended of the rest."""
        return self._size + (0 if self.events is None else self.events.bytes)

    @property
    def body(self) -> bytes:
        """The response as JSON, as it stands."""
        return self._body if self._form is None else msgspec.json.encode(self._form.response)

    @property
    def turns(self) -> tuple[Turn, ...]:
        """All turns, its answer the last. Raises ApiError before it has ended."""
        if self._form is not None:
            raise ApiError(
                400,
                f"previous_response_id: {self.id} has not ended yet: fetch it until it has",
                param="previous_response_id",
            )
        return self._turns

    def end(self) -> None:
        """Nothing of it changes any more."""
        assert self._form is not None, "a response ends once"
        self._turns = (*self._before, self._form.turn())
        self._body = msgspec.json.encode(self._form.response)
        self._form = self.cancel = None
        if self.events is not None:
            self.events.end()
        self._size = _OVERHEAD + len(self._body) + sum(map(_size, self._turns))


class StoredResponses:
    """What each tenant has; the one that was used longest ago goes first. For one event loop.

    Of those that are still written the events are counted, and nothing else: each has its place at
    the gate. Where room is needed, events of those that have ended go first, then these responses
    themselves, and then the oldest events of those that are still written.
    """

    def __init__(
        self,
        *,
        most_bytes: int = KEPT_BYTES,
        most: int = MOST_KEPT,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._most_bytes = most_bytes
        self._most = most
        self._kept_s = kept_s
        self._clock = clock
        self._shelves: dict[str, _Shelf] = {}

    def end(self, tenant: str, stored: StoredResponse) -> None:
        """A response has ended: keep it, unless it has been forgotten meanwhile."""
        forgotten = stored.cancel is not None and not self._holds(tenant, stored)
        stored.end()
        if not forgotten:
            self.put(tenant, stored)

    def grow(self, tenant: str, stored: StoredResponse) -> None:
        """Events of a response have been written: let who listens hear of them."""
        if stored.events is None or not self._holds(tenant, stored):
            return
        stored.events.publish()
        shelf = self._shelves[tenant]
        shelf.count(stored)
        shelf.make_room(self._most_bytes)

    def put(self, tenant: str, stored: StoredResponse) -> None:
        """Keep a response, or count it anew once it has ended."""
        shelf = self._shelves.setdefault(tenant, _Shelf())
        stored.used_s = self._clock()
        shelf.put(stored)
        shelf.shrink(self._most_bytes, self._most, stored.used_s - self._kept_s)

    def get(self, tenant: str, response_id: str, *, param: str | None = None) -> StoredResponse:
        """Return one of a tenant's. Raises ApiError where there is none. param: which names it."""
        shelf = self._shelves.get(tenant)
        if shelf is not None:
            shelf.shrink(self._most_bytes, self._most, self._clock() - self._kept_s)
            stored = shelf.find(response_id)
            if stored is not None:
                stored.used_s = self._clock()
                shelf.touch(stored)
                return stored
        raise ApiError(
            404,
            f"there is no response {response_id!r:.200}: those without store are not kept, others "
            f"for {self._kept_s:.0f} s and while there is room; send its conversation as input",
            param=param,
            code="response_not_found",
        )

    def drop(self, tenant: str, response_id: str) -> None:
        """Forget one, and end it first if it is still written. Raises ApiError as `get`."""
        stored = self.get(tenant, response_id)
        if stored.cancel is not None:
            stored.cancel()
        self._shelves[tenant].drop(stored)

    def bytes_of(self, tenant: str) -> int:
        """Return what a tenant's take together."""
        shelf = self._shelves.get(tenant)
        return 0 if shelf is None else shelf.bytes

    def _holds(self, tenant: str, stored: StoredResponse) -> bool:
        shelf = self._shelves.get(tenant)
        return shelf is not None and shelf.find(stored.id) is stored


class _Shelf:
    """The responses of one tenant, the one used longest ago first."""

    def __init__(self) -> None:
        self.bytes = 0
        self._stored: OrderedDict[str, StoredResponse] = OrderedDict()
        self._counted: dict[str, int] = {}

    def put(self, stored: StoredResponse) -> None:
        self._take_out(stored.id)
        self._stored[stored.id] = stored
        self._counted[stored.id] = 0
        self.count(stored)

    def count(self, stored: StoredResponse) -> None:
        """Count one anew."""
        self.bytes += stored.size - self._counted[stored.id]
        self._counted[stored.id] = stored.size

    def find(self, response_id: str) -> StoredResponse | None:
        return self._stored.get(response_id)

    def touch(self, stored: StoredResponse) -> None:
        self._stored.move_to_end(stored.id)

    def drop(self, stored: StoredResponse) -> None:
        self._take_out(stored.id)
        if stored.events is not None:
            stored.events.forget()

    def shrink(self, most_bytes: int, most: int, oldest_s: float) -> None:
        """Let go of what is too old or too much; what is still written stays."""
        for stored in [*self._stored.values()]:
            if len(self._stored) <= most and stored.used_s >= oldest_s:
                break
            if stored.ended:
                self.drop(stored)
        self.make_room(most_bytes)

    def make_room(self, most_bytes: int) -> None:
        """Let go of what is worth least until no more is there than that."""
        for let_go in (self._drop_events, self._drop_ended, self._drop_oldest_events):
            if self.bytes <= most_bytes:
                return
            for stored in [*self._stored.values()]:
                let_go(stored)
                if self.bytes <= most_bytes:
                    return

    def _drop_events(self, stored: StoredResponse) -> None:
        if stored.ended and stored.events is not None:
            stored.events.let_go(stored.events.next)
            self.count(stored)

    def _drop_ended(self, stored: StoredResponse) -> None:
        if stored.ended:
            self.drop(stored)

    def _drop_oldest_events(self, stored: StoredResponse) -> None:
        if stored.events is not None:
            stored.events.let_go_of_half()
            self.count(stored)

    def _take_out(self, response_id: str) -> None:
        if self._stored.pop(response_id, None) is not None:
            self.bytes -= self._counted.pop(response_id)


def _size(turn: Turn) -> int:
    """Return the bytes of a turn's texts; turns that several responses share count for each."""
    calls = sum(sys.getsizeof(call.arguments) + sys.getsizeof(call.name) for call in turn.calls)
    return sys.getsizeof(turn.content) + sys.getsizeof(turn.reasoning or "") + calls
