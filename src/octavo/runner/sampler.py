"""Chooses tokens from logits: a pure function of one row, its options, a seed and a position.

It needs numpy only, so that every executor can share it.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Sample, Sampled
from octavo.contract.sampling import SamplingParams
from octavo.errors import ModelError
from octavo.runner.philox import uniforms

Ids = NDArray[np.intp]
Row = NDArray[np.float32]
Weights = NDArray[np.float64]

_FIRST_NUCLEUS = 256


def sample(logits: Row, samples: list[Sample], positions: list[int]) -> list[Sampled]:
    """Choose one token for each row.

    logits: [rows, vocab] float32; positions: where each new token will stand in its text.
    A row's answer does not depend on the other rows. Raises ModelError if a logit is not finite.
    """
    assert len(logits) == len(samples) == len(positions), (
        f"{len(logits)} rows of logits for {len(samples)} samples at {len(positions)} positions"
    )
    draws = uniforms([one.seed for one in samples], positions)
    chosen: list[Sampled] = []
    for row, one, position, draw in zip(logits, samples, positions, draws, strict=True):
        if not np.isfinite(row).all():
            broken = int(np.count_nonzero(~np.isfinite(row)))
            raise ModelError(
                f"{broken} of {len(row)} logits are not finite for sequence {one.seq} "
                f"at position {position}: the weights or the KV memory are damaged"
            )
        token = choose(row, one.params, float(draw))
        chosen.append(Sampled(token, log_probability(row, token)))
    return chosen


def log_probability(row: Row, token: int) -> float:
    """Work out the natural logarithm of a token's probability, before any option."""
    largest = row.max()
    total = np.exp(row - largest).sum(dtype=np.float64)
    return float(np.float64(row[token]) - np.float64(largest) - np.log(total))


def choose(row: Row, params: SamplingParams, draw: float) -> int:
    """Choose a token: temperature, then top_k, then top_p, then the inverse of the distribution.

    draw: in [0, 1). The answer is the first id, in ascending order, at which the sum of the kept
    tokens' weights exceeds draw times their total, in float64. Equally likely tokens are
    kept, and taken when greedy, by ascending id.
    """
    if params.greedy:
        return int(row.argmax())
    with np.errstate(over="ignore", under="ignore"):
        distance = row.astype(np.float64) - np.float64(row.max())
        weights = np.exp(distance / params.temperature)
    kept: Ids | None = None
    if 0 < params.top_k < len(row):
        kept = most_likely(row, params.top_k)
    if params.top_p < 1.0:
        kept = _nucleus(row, weights, kept, params.top_p)
    return _invert(weights if kept is None else weights[kept], kept, draw)


def most_likely(row: Row, count: int) -> Ids:
    """Find the `count` largest numbers, ties by lower id; returns their ids in ascending order."""
    if count >= len(row):
        return np.arange(len(row))
    smallest = np.partition(row, len(row) - count)[len(row) - count]
    above = np.flatnonzero(row > smallest)
    level = np.flatnonzero(row == smallest)[: count - len(above)]
    return np.sort(np.concatenate((above, level)))


def _nucleus(row: Row, weights: Weights, kept: Ids | None, top_p: float) -> Ids:
    """Keep the smallest set of most likely tokens whose weights reach `top_p` of the total."""
    if kept is not None:
        found = _leading(row, weights, kept, top_p * float(weights[kept].sum()))
        return kept if found is None else found
    # The nucleus is small as a rule: rank a few tokens, and more only when they are not enough.
    enough = top_p * float(weights.sum())
    count = _FIRST_NUCLEUS
    while count < len(row):
        found = _leading(row, weights, most_likely(row, count), enough)
        if found is not None:
            return found
        count *= 8
    everything = np.arange(len(row))
    found = _leading(row, weights, everything, enough)
    return everything if found is None else found


def _leading(row: Row, weights: Weights, ids: Ids, enough: float) -> Ids | None:
    """Take from ascending ids the likeliest until their weights reach `enough`; None: never."""
    # Stable, so that equal logits stay in the order of their ids.
    ranked = ids[np.argsort(-row[ids], kind="stable")]
    sums = np.cumsum(weights[ranked])
    if sums[-1] < enough:
        return None
    return np.sort(ranked[: int(np.searchsorted(sums, enough, side="left")) + 1])


def _invert(weights: Weights, ids: Ids | None, draw: float) -> int:
    sums = np.cumsum(weights)
    place = int(np.searchsorted(sums, draw * sums[-1], side="right"))
    if place == len(sums):
        # The product was rounded up to the total: the last token that has any weight.
        place = int(np.searchsorted(sums, sums[-1], side="left"))
    return place if ids is None else int(ids[place])
