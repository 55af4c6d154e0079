"""Requests that are being answered, most of them asleep: their last block has room."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from octavo.contract.ids import SeqId
from octavo.contract.request import Request
from octavo.replay.trace import RecordedRequest


class Answering:
    """One answer to a request, in true tokens."""

    __slots__ = (
        "admitted_s",
        "cached",
        "decoding",
        "done",
        "first_s",
        "index",
        "output",
        "preemptions",
        "recorded",
        "request",
        "seq_id",
        "slept_from",
        "wakes_at",
        "written",
    )

    def __init__(
        self, request: Request, index: int, recorded: RecordedRequest, output: int
    ) -> None:
        self.request = request
        """As the engine knows it: blocks for tokens."""
        self.index = index
        """Which of the request's choices this is."""
        self.recorded = recorded
        """The request with this answer alone."""
        self.output = output
        """Tokens of the whole answer."""
        self.seq_id: SeqId = -1
        self.done = 0
        """Tokens of the answer so far; while it sleeps, up to when it fell asleep."""
        self.written = 0
        """Tokens in memory, likewise."""
        self.decoding = False
        """All its text but the last token is in memory."""
        self.slept_from = 0
        """Step after which it fell asleep."""
        self.wakes_at = -1
        """Step after which it wakes; -1: it is awake."""
        self.admitted_s = -1.0
        """When its first step began."""
        self.first_s = 0.0
        """When its first token came."""
        self.cached = 0
        """Tokens of the engine that were found."""
        self.preemptions = 0

    @property
    def length(self) -> int:
        """Prompt and answer so far."""
        return self.recorded.prompt_tokens + self.done


class Sleepers:
    """Sequences that gain a token a step without anything being decided, and the step's number."""

    def __init__(self) -> None:
        self.step = 0
        self.count = 0
        self.context = 0
        """Positions that all of them read in the next step."""
        self._waking: list[tuple[int, int, Answering]] = []
        """Heap by step; entries of those that were disturbed are stale."""

    def add(self, life: Answering, steps: int) -> None:
        """Let a sequence sleep for so many steps."""
        life.slept_from, life.wakes_at = self.step, self.step + steps
        self.count += 1
        self.context += life.written + 1
        heapq.heappush(self._waking, (life.wakes_at, life.seq_id, life))

    def disturb(self, life: Answering) -> None:
        """Wake a sequence before its time. Awake: no effect."""
        if life.wakes_at < 0:
            return
        life.wakes_at = -1
        gained = self.step - life.slept_from
        life.written += gained
        life.done += gained
        self.count -= 1
        self.context -= life.written + 1

    def due(self) -> Iterator[Answering]:
        """Wake those whose time has come."""
        while self._next() == self.step:
            _, _, life = heapq.heappop(self._waking)
            self.disturb(life)
            yield life

    @property
    def steps_to_next(self) -> int:
        """Steps until the next one wakes; there must be one."""
        wakes_at = self._next()
        assert wakes_at is not None, "nobody sleeps"
        return wakes_at - self.step

    def advance(self, steps: int) -> None:
        """Give each of them a token in each of so many steps."""
        self.step += steps
        self.context += steps * self.count

    def _next(self) -> int | None:
        waking = self._waking
        while waking and waking[0][2].wakes_at != waking[0][0]:
            heapq.heappop(waking)
        return waking[0][0] if waking else None
