"""From the states of a prompt's tokens to its vector, over as many steps as it comes in."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import NDArray

from octavo.contract.ids import SeqId
from octavo.runner.inputs import Pooled

ROWS = 256
"""States that are looked at together."""

States = NDArray[np.float32]
GetStates = Callable[[int, int], States]
"""Gives the states of so many sampled rows of the last step, from one on."""


class Counts:
    """How many states are in the sums of the prompts that have begun."""

    def __init__(self) -> None:
        self._counts: dict[SeqId, int] = {}

    def add(self, pool: Pooled) -> int:
        """Count a step's states; returns how many its sum has already.

        Of one that begins again, after a failed step or without its blocks, nothing counts.
        """
        before = self._counts.pop(pool.seq, 0) if pool.start else 0
        if not pool.last:
            self._counts[pool.seq] = before + pool.rows
        return before

    def forget(self, seq: SeqId) -> None:
        """Drop the count of a sequence that has ended."""
        self._counts.pop(seq, None)


class Pools:
    """Sums of states, in double precision, of the prompts that have begun.

    A row's bits do not depend on how a prompt is cut, nor does the order of a sum: so that the
    vector does not either.
    """

    def __init__(self) -> None:
        self._sums: dict[SeqId, NDArray[np.float64]] = {}
        self._counts = Counts()

    def take(self, pools: list[Pooled], first: int, states: GetStates) -> dict[SeqId, bytes]:
        """Add the states of a step; returns the vectors that are complete.

        first: the sampled row of the first pool; the others follow.
        """
        told: dict[SeqId, bytes] = {}
        for pool in pools:
            before = self._counts.add(pool)
            total = self._sums.pop(pool.seq, None)
            if not before:
                total = None
            for at in range(first, first + pool.rows, ROWS):
                total = _added(total, states(at, min(ROWS, first + pool.rows - at)))
            assert total is not None, f"sequence {pool.seq} is pooled without a state"
            first += pool.rows
            if pool.last:
                told[pool.seq] = (total / (before + pool.rows)).astype("<f4").tobytes()
            else:
                self._sums[pool.seq] = total
        return told

    def forget(self, ended: Iterable[SeqId]) -> None:
        """Drop the sums of sequences that have ended."""
        for seq in ended:
            self._sums.pop(seq, None)
            self._counts.forget(seq)


def _added(total: NDArray[np.float64] | None, rows: States) -> NDArray[np.float64]:
    summed = np.zeros(rows.shape[1]) if total is None else total
    for row in rows:
        summed = summed + row
    return summed
