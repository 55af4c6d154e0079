"""Longest known prefix first: what is in memory is used before it is evicted."""

from __future__ import annotations

from octavo.contract.ids import SeqId
from octavo.contract.request import Request, Sequence
from octavo.sched.turns import Known, Turns


class LongestPrefix:
    """Classes by priority number; inside a class, who has most of its text in memory goes first.

    window: sequences of a class that are compared. max_passed: by how many others one may be
    passed over. Source: SGLang's `lpm` (Zheng et al. 2024, "SGLang: efficient execution of
    structured language model programs"), which orders by arrival once 128 wait.
    """

    def __init__(self, *, window: int = 128, max_passed: int = 256) -> None:
        self._window = window
        self._max_passed = max_passed
        self.turns()

    def urgency(self, request: Request) -> int:
        """Return the request's own number."""
        return request.priority

    def turns(self) -> Turns:
        """Return what chooses inside one queue."""
        return Turns(_Longest(), window=self._window, max_passed=self._max_passed)


class _Longest:
    """Remembers what was known of each text, so that it costs O(1) to ask again."""

    def __init__(self) -> None:
        self._known: dict[SeqId, int] = {}

    def pick(self, waiting: list[Sequence], known: Known) -> Sequence:
        """Choose the one with most tokens in memory; of equals the oldest."""
        before = self._known
        self._known = {seq.id: known(seq, before.get(seq.id, 0)) for seq in waiting}
        return max(waiting, key=lambda seq: self._known[seq.id])
