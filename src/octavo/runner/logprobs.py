"""How likely tokens are by a row of logits, before any sampling option."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Logprobs

Ids = NDArray[np.intp]
Row = NDArray[np.float32] | NDArray[np.float64]


def log_probability(row: Row, token: int) -> float:
    """Work out the natural logarithm of a token's probability."""
    return float(np.float64(row[token]) - _level(row))


def log_probabilities(row: Row) -> NDArray[np.float64]:
    """Work out the natural logarithms of all tokens' probabilities, in float64."""
    wide = row.astype(np.float64)
    wide -= _level(wide)
    return wide


def name_likely(row: Row, token: int, top: int) -> Logprobs:
    """Describe the `top` most likely tokens (-1: all), and `token` if it is not one of them."""
    count = len(row) if top < 0 else min(top, len(row))
    ids = most_likely(row, count)
    # Stable, so that equal logits stay in the order of their ids.
    ids = ids[np.argsort(-row[ids], kind="stable")]
    own = int(np.count_nonzero(row > row[token]) + np.count_nonzero(row[:token] == row[token])) + 1
    ranks = list(range(1, count + 1))
    if own > count:
        ids = np.append(ids, token)
        ranks.append(own)
    values = row[ids].astype(np.float64) - _level(row)
    return Logprobs(tuple(ids.tolist()), tuple(values.tolist()), tuple(ranks))


def most_likely(row: Row, count: int) -> Ids:
    """Find the `count` largest numbers, ties by lower id; returns their ids in ascending order."""
    if count >= len(row):
        return np.arange(len(row))
    if count == 0:
        return np.arange(0)
    smallest = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > smallest)
    level = np.flatnonzero(row == smallest)[: count - len(above)]
    return np.sort(np.concatenate((above, level)))


def _level(row: Row) -> np.float64:
    """Logarithm of the sum of the exponentials."""
    largest = row.max()
    total = np.exp(row - largest).sum(dtype=np.float64)
    return np.float64(largest) + np.log(total)
