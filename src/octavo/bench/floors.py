"""What memory and arithmetic allow, measured in the same rounds as the kernels held against it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

ARITHMETIC = ("integers", "bf16", "float32")
"""As `octavo._cpu.calculate` calls it."""
_CHUNKS = 1000
"""Of arithmetic in one measurement: about 2 ms."""
_TRIES = 5
_ROUNDS = 3
_PATIENCE = 10
"""Times its seconds after which a measurement ends with fewer rounds."""


class Gauge:
    """The native extension, the threads that run it, and memory to be read."""

    def __init__(
        self,
        native: Any,  # octavo._cpu, which may not be there to be imported
        *,
        threads: int,
        num_bytes: int,
        seconds: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """num_bytes: whole MiB, more than any cache; seconds: for each time that is measured."""
        self.native = native
        self.pool = native.ThreadPool(threads)
        self.seconds = seconds
        self.clock = clock
        self._data = np.ones(num_bytes, dtype=np.uint8)

    def time(self, work: Callable[[], object]) -> float:
        """Return the seconds that work takes, once."""
        before = self.clock()
        work()
        return self.clock() - before

    def read_bytes_per_s(self) -> float:
        """Read memory once."""
        return self._data.nbytes / self.time(
            lambda: self.native.read_memory(self._data, pool=self.pool)
        )

    def operations_per_s(self, arithmetic: str) -> float:
        """Calculate for some milliseconds, in registers alone."""
        before = self.clock()
        operations = self.native.calculate(arithmetic, _CHUNKS, pool=self.pool)
        return operations / (self.clock() - before)

    def best_read_bytes_per_s(self) -> float:
        """Return the best of five readings."""
        return max(self.read_bytes_per_s() for _ in range(_TRIES))

    def peaks(self) -> dict[str, float]:
        """Return operations a second of each arithmetic: the best of five."""
        return {
            name: max(self.operations_per_s(name) for _ in range(_TRIES)) for name in ARITHMETIC
        }


@dataclass(frozen=True, slots=True)
class Load:
    """What a work must read and calculate at the least."""

    num_bytes: float
    operations: float


@dataclass(slots=True)
class Rounds:
    """Times of several works, taken in turns, and in each turn what the machine can do."""

    times: dict[str, list[float]]
    read_bytes_per_s: list[float] = field(default_factory=list[float])
    operations_per_s: list[float] = field(default_factory=list[float])

    def seconds(self, name: str) -> float:
        """Return the median time of a work."""
        return statistics.median(self.times[name])

    @property
    def peak(self) -> float:
        """The most operations a second: unlike bandwidth, arithmetic has no slow minutes."""
        return max(self.operations_per_s)

    def floors(self, load: Load) -> tuple[float, float]:
        """Return the seconds that the bytes and the operations of a work take at the least."""
        read = statistics.median(self.read_bytes_per_s)
        return load.num_bytes / read, load.operations / self.peak

    def reached(self, name: str, load: Load) -> float:
        """Return the larger floor over the time: the median of the rounds' ratios."""
        measured = zip(self.times[name], self.read_bytes_per_s, strict=True)
        arithmetic = load.operations / self.peak
        return statistics.median(
            max(load.num_bytes / read, arithmetic) / seconds for seconds, read in measured
        )

    def share_of_read(self, name: str, load: Load) -> float:
        """Return bytes a second over the read bandwidth: the median of the rounds' ratios."""
        measured = zip(self.times[name], self.read_bytes_per_s, strict=True)
        return statistics.median(load.num_bytes / seconds / read for seconds, read in measured)

    def ratio(self, name: str, baseline: str) -> float:
        """Return the time of a work over another's: the median of the rounds' ratios."""
        pairs = zip(self.times[name], self.times[baseline], strict=True)
        return statistics.median(seconds / other for seconds, other in pairs)


def measure_rounds(
    gauge: Gauge, works: dict[str, Callable[[], object]], *, arithmetic: str
) -> Rounds:
    """Run works in turns, for the gauge's seconds each, and at least three times.

    Works that take very long run once or twice. In each round the machine is measured first: what
    a neighbour takes meets all of them alike.
    """
    rounds = Rounds({name: [] for name in works})
    budget = gauge.seconds * len(works)
    start = gauge.clock()
    count, passed = 0, 0.0
    while count == 0 or passed < budget or (count < _ROUNDS and passed < _PATIENCE * budget):
        rounds.read_bytes_per_s.append(gauge.read_bytes_per_s())
        rounds.operations_per_s.append(gauge.operations_per_s(arithmetic))
        for name, work in works.items():
            rounds.times[name].append(gauge.time(work))
        count += 1
        passed = gauge.clock() - start
    return rounds
