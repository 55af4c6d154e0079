"""Counter-based random numbers: the same (seed, position) gives the same number everywhere.

Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3" (Philox4x32-10).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10


def philox(counter: Words, key: Words) -> Words:
    """Encrypt counters: [rows, 4] and keys [rows, 2], 32-bit words in uint64 → [rows, 4]."""
    c0, c1, c2, c3 = counter.T
    k0, k1 = key.T
    for _ in range(_ROUNDS):
        # 32 by 32 bits fit 64, so that nothing overflows.
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1, c2, c3 = (
            (second >> _HALF) ^ c1 ^ k0,
            second & _LOW,
            (first >> _HALF) ^ c3 ^ k1,
            first & _LOW,
        )
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack((c0, c1, c2, c3), axis=1)


def uniforms(seeds: Iterable[int], positions: Iterable[int]) -> NDArray[np.float64]:
    """Draw one number in [0, 1) for each (seed, position).

    The key is the seed modulo 2^64, low word first; the counter is the position, low word first,
    and two zero words. The first two output words, the first one high, give 64 bits, of which
    the upper 53 are the number times 2^53.
    """
    seed = np.array([number % 2**64 for number in seeds], dtype=np.uint64)
    position = np.array(list(positions), dtype=np.uint64)
    zero = np.zeros_like(position)
    counter = np.stack((position & _LOW, position >> _HALF, zero, zero), axis=1)
    words = philox(counter, np.stack((seed & _LOW, seed >> _HALF), axis=1))
    bits = (words[:, 0] << _HALF) | words[:, 1]
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
