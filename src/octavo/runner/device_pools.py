"""Vectors of prompts on a device: the sums of `pooling`, which stay there until they are told."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from octavo.contract.ids import SeqId
from octavo.kernels.triton.pool import add_rows
from octavo.runner.device_staging import Fetched, send
from octavo.runner.inputs import Pooled
from octavo.runner.pooling import Counts

_MORE_PLACES = 16
"""For sums, once there is none left: half a megabyte with states of 4,096 numbers."""


class LaunchedVectors:
    """Vectors of one step on their way to the host."""

    def __init__(self, seqs: list[SeqId], means: Tensor) -> None:
        self._seqs = seqs
        self._means = Fetched([means])

    def vectors(self) -> dict[SeqId, bytes]:
        """Return the vector of each sequence; the device must have passed the launch."""
        (means,) = self._means.arrays()
        rows = means.astype("<f4")
        return {seq: row.tobytes() for seq, row in zip(self._seqs, rows, strict=True)}


class DevicePools:
    """Sums of states on a device, in double precision, of the prompts that come in several steps.

    The arithmetic of `Pools`: a sum's bits are those of its states, in whatever pieces they come.
    """

    def __init__(self, width: int, device: torch.device) -> None:
        self._totals = torch.empty(0, width, dtype=torch.float64, device=device)
        self._counts = Counts()
        self._places: dict[SeqId, int] = {}
        self._free: list[int] = []

    def launch(self, pools: list[Pooled], first: int, states: Tensor) -> LaunchedVectors | None:
        """Begin to add the states of a step; returns the vectors that will be complete by it.

        states: [rows, width], of which the pools' begin at `first`, one pool after the other.
        """
        ends = first + np.cumsum([pool.rows for pool in pools])
        # What is complete comes first: that alone is told.
        order = sorted(range(len(pools)), key=lambda number: not pools[number].last)
        told = [pools[number].seq for number in order if pools[number].last]
        table: list[tuple[int, int, int, int]] = []
        for number in order:
            pool = pools[number]
            before = self._counts.add(pool)
            place = self._place(pool.seq) if before or not pool.last else -1
            table.append((int(ends[number]) - pool.rows, pool.rows, before, place))
        (sent,) = send([np.array(table, dtype=np.int32)], states.device)
        means = add_rows(states, sent, self._totals, len(told))
        # Not before: within a step no place may serve two.
        self.forget(told)
        return LaunchedVectors(told, means) if told else None

    def forget(self, ended: Iterable[SeqId]) -> None:
        """Drop the sums of sequences that have ended; steps in flight come before what is next."""
        for seq in ended:
            self._counts.forget(seq)
            place = self._places.pop(seq, None)
            if place is not None:
                self._free.append(place)

    def _place(self, seq: SeqId) -> int:
        if seq not in self._places:
            if not self._free:
                have = len(self._totals)
                more = self._totals.new_empty(_MORE_PLACES, self._totals.shape[1])
                self._totals = torch.cat((self._totals, more))
                self._free = list(range(have, have + _MORE_PLACES))
            self._places[seq] = self._free.pop()
        return self._places[seq]
