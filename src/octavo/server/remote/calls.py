"""What is waited for by number, and who listens to which request."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import TypeVar

from octavo.contract.request import FinishReason, Request, Update
from octavo.engine.messages import (
    BlockShown,
    Checked,
    Command,
    Count,
    Counted,
    MemoryShown,
    News,
    PinsListed,
)
from octavo.errors import EngineGone, OverLimit, RequestError
from octavo.server.core import Listener

Answer = Count | PinsListed | Counted | Checked | MemoryShown | BlockShown
_Kind = TypeVar("_Kind", Count, PinsListed, Counted, Checked, MemoryShown, BlockShown)


class Calls:
    """Calls that have not been answered."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, asyncio.Future[Answer]] = {}

    @property
    def waiting(self) -> int:
        """How many there are."""
        return len(self._waiting)

    async def ask(
        self, send: Callable[[Command], None], make: Callable[[int], Command], kind: type[_Kind]
    ) -> _Kind:
        """Send a command with a number of its own; return its answer. Raises EngineGone."""
        number = next(self._numbers)
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            send(make(number))
            answer = await future
        finally:
            self._waiting.pop(number, None)
        assert isinstance(answer, kind), f"{answer} answers no {kind.__name__}"
        return answer

    def take_in(self, answer: Answer) -> None:
        """An answer has come; of a call that nobody waits for any more: no effect."""
        future = self._waiting.get(answer.call)
        if future is not None and not future.done():
            future.set_result(answer)

    def lose(self, words: str) -> None:
        """No answer will come."""
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(EngineGone(words))
        self._waiting.clear()


class Listeners:
    """Who hears of which request, and which of its choices have not ended."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Listener, set[int]]] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._entries

    def add(self, request: Request, listener: Listener) -> None:
        """Let somebody hear of a request. Its id must not be in use."""
        assert request.id not in self._entries, f"request id {request.id!r} is in use"
        self._entries[request.id] = (listener, set(range(request.sampling.choices)))

    def remove(self, request_id: str) -> bool:
        """Tell nobody of a request any more; False: nobody was."""
        return self._entries.pop(request_id, None) is not None

    def finish(self, request_id: str, index: int) -> None:
        """One choice has ended."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry[1].discard(index)
            if not entry[1]:
                del self._entries[request_id]

    def accept(self, request_id: str, max_tokens: int) -> None:
        """Tell that a request is in the queue."""
        entry = self._entries.get(request_id)
        if entry is not None:
            entry[0].accepted(max_tokens)

    def refuse(self, request_id: str, message: str, retry_after_s: float | None = None) -> None:
        """Tell that a request can never be served, or not now."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        if retry_after_s is None:
            entry[0].lose(RequestError(message))
        else:
            entry[0].lose(OverLimit(message, retry_after_s=retry_after_s, of_server=True))

    def take_in(self, news: News) -> None:
        """Tell what a step has brought."""
        entries = self._entries
        for begun in news.begun:
            entry = entries.get(begun.request_id)
            if entry is not None:
                entry[0].begun(begun.at_s)
        for update in news.updates:
            entry = entries.get(update.request_id)
            if entry is not None:
                entry[0].take_in(update, news.applied_s)
                if update.finish is not None:
                    self._end(update)

    def lose(self, words: str) -> None:
        """Nobody will hear any more."""
        entries, self._entries = self._entries, {}
        for listener, _ in entries.values():
            listener.lose(EngineGone(words))

    def _end(self, update: Update) -> None:
        if update.finish is FinishReason.ABORT:
            self.remove(update.request_id)
        else:
            self.finish(update.request_id, update.index)
