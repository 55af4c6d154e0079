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


class Pools:
    """Sums of states, in double precision, of the prompts that have begun.

    A row's bits do not depend on how a prompt is cut, nor does the order of a sum: so that the
    vector does not either.
    """

    def __init__(self) -> None:
        self._sums: dict[SeqId, NDArray[np.float64]] = {}
        self._counts: dict[SeqId, int] = {}

    def take(self, pools: list[Pooled], first: int, states: GetStates) -> dict[SeqId, bytes]:
        """Add the states of a step; returns the vectors that are complete.

        first: the sampled row of the first pool; the others follow.
        """
        told: dict[SeqId, bytes] = {}
        for pool in pools:
            for at in range(first, first + pool.rows, ROWS):
                count = min(ROWS, first + pool.rows - at)
                self._add(pool, at - first, states(at, count))
            first += pool.rows
            if pool.last:
                mean = self._sums.pop(pool.seq) / self._counts.pop(pool.seq)
                told[pool.seq] = mean.astype("<f4").tobytes()
        return told

    def forget(self, ended: Iterable[SeqId]) -> None:
        """Drop the sums of sequences that have ended."""
        for seq in ended:
            self._sums.pop(seq, None)
            self._counts.pop(seq, None)

    def _add(self, pool: Pooled, done: int, rows: States) -> None:
        # Of one that begins again, after a failed step or without its blocks, nothing counts.
        known = self._counts.get(pool.seq)
        begins = not done and (not pool.start or known is None)
        total = None if begins else self._sums.get(pool.seq)
        if total is None:
            total, known = np.zeros(rows.shape[1]), 0
        for row in rows:
            total = total + row
        self._sums[pool.seq] = total
        self._counts[pool.seq] = (known or 0) + len(rows)
