"""How fast this machine reads memory, so that figures taken at different times can be compared."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

_BYTES = 1 << 28
"""Far more than any cache holds."""
_ROUNDS = 5


def read_bytes_per_s() -> float:
    """Read memory with a thread for each core; returns the best of five rounds, about 0.1 s."""
    threads = min(8, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
    parts = [np.ones(_BYTES // 4 // threads, dtype=np.float32) for _ in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(_ROUNDS):
            before = time.perf_counter()
            list(pool.map(np.max, parts))
            best = min(best, time.perf_counter() - before)
    return sum(part.nbytes for part in parts) / best
