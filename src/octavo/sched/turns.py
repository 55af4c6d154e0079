"""Whose turn it is in a queue: an order's favourite, unless another was passed over too often."""

from __future__ import annotations

from collections.abc import Callable, Container
from itertools import islice
from typing import Protocol, TypeAlias

from octavo.contract.ids import SeqId
from octavo.contract.request import Sequence
from octavo.errors import ConfigError
from octavo.sched.ranked import Ranked

Known: TypeAlias = Callable[[Sequence, int], int]
"""(sequence, guess) to how many leading tokens of its text are in memory: O(1) if the guess, the
answer of last time, is still right."""


class Favourites(Protocol):
    """An order's own part: it may remember what it has seen of its queue."""

    def pick(self, waiting: list[Sequence], known: Known) -> Sequence:
        """Choose the next of a class's first sequences, oldest first; at least one."""
        ...


class Turns:
    """Bounds what an order may do to one queue, and what it may cost.

    Only the first `window` sequences of a class are looked at, whatever the queue's length. A
    sequence is passed over by at most `max_passed` others of its class; then it is next. One that
    has been preempted goes on before others begin.
    """

    def __init__(self, favourites: Favourites, *, window: int, max_passed: int) -> None:
        for name, value in (("window", window), ("max_passed", max_passed)):
            if value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}")
        self._favourites = favourites
        self._window = window
        self._max_passed = max_passed
        self._passed: dict[SeqId, int] = {}
        """How many have passed over a waiting sequence; only those that have been."""

    def next(self, queue: Ranked, without: Container[SeqId], known: Known) -> Sequence | None:
        """Return whose turn it is, leaving out some; None: there is nobody else."""
        rest = (seq for seq in queue if seq.id not in without)
        first = next(rest, None)
        if first is None:
            return None
        if first.preemptions or self._passed.get(first.id, 0) >= self._max_passed:
            return first
        waiting = [first]
        for seq in islice(rest, self._window - 1):
            if seq.rank[0] != first.rank[0]:
                break
            if seq.preemptions:
                return seq
            waiting.append(seq)
        return self._favourites.pick(waiting, known) if len(waiting) > 1 else first

    def take(self, queue: Ranked, seq: Sequence) -> None:
        """Note that a sequence is admitted, before it leaves the queue."""
        self._passed.pop(seq.id, None)
        for other in queue:
            if other.rank >= seq.rank:
                break
            if other.rank[0] == seq.rank[0]:
                self._passed[other.id] = self._passed.get(other.id, 0) + 1

    def forget(self, seq: Sequence) -> None:
        """Note that a sequence has left the queue."""
        self._passed.pop(seq.id, None)
