"""Chooses tokens from logits, or names those that a beam search may go on with.

A pure function of one row, its options, its own text, a seed and a position. It needs numpy
only, so that every executor can share it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Candidates, Sample, Sampled
from octavo.contract.sampling import SamplingParams
from octavo.errors import ModelError
from octavo.runner.history import History
from octavo.runner.logprobs import (
    Ids,
    Row,
    log_probabilities,
    log_probability,
    most_likely,
    name_likely,
)
from octavo.runner.masks import Mask
from octavo.runner.philox import uniforms
from octavo.runner.processors import Eligible, process

Weights = NDArray[np.float64]

_FIRST_NUCLEUS = 256


@dataclass(frozen=True, slots=True)
class Refused:
    """No token may be chosen; only this sample is concerned."""

    reason: str


Answer = Sampled | Candidates | Refused
"""What becomes of one sample."""


def sample(
    logits: NDArray[np.float32],
    samples: list[Sample],
    positions: list[int],
    histories: list[History | None] | None = None,
    masks: list[Mask | None] | None = None,
) -> list[Answer]:
    """Choose one token for each row, or find its likeliest ones if the sample asks for candidates.

    logits: [rows, vocab]; positions: where each new token will stand in its text; histories:
    the texts before, where a sample looks back; masks: of samples that a grammar binds.
    Log-probabilities are taken first; then come `process`, then `choose`. A row's answer does not
    depend on the other rows. Raises ModelError if a logit is not finite.
    """
    texts: list[History | None] = [None] * len(samples) if histories is None else histories
    assert len(logits) == len(samples) == len(positions) == len(texts), (
        f"{len(logits)} rows of logits for {len(samples)} samples at {len(positions)} positions"
    )
    allowed: list[Mask | None] = [None] * len(samples) if masks is None else masks
    draws = uniforms([one.seed for one in samples], positions)
    chosen: list[Answer] = []
    for row, one, position, history, mask, draw in zip(
        logits, samples, positions, texts, allowed, draws, strict=True
    ):
        check_finite(row, f"sequence {one.seq} at position {position}")
        if one.candidates:
            chosen.append(find_candidates(row, one, history, position, mask))
            continue
        eligible = process(row, one, history, position, mask)
        if len(eligible.row) == 0:
            chosen.append(nothing_left(one, position))
            continue
        token = choose(eligible, one.params, float(draw))
        top = one.params.logprobs
        named = None if top is None else name_likely(row, token, top)
        chosen.append(Sampled(token, log_probability(row, token), named))
    return chosen


def edits_logits(one: Sample) -> bool:
    """Tell whether anything but the draw's options acts on the logits."""
    return one.constrained or names_tokens(one)


def names_tokens(one: Sample) -> bool:
    """Tell whether an option acts on the logits of tokens that it names, or that the text has."""
    p = one.params
    return bool(
        p.allowed_token_ids is not None or one.bad_words or one.ends or p.logit_bias or p.penalizes
    )


def wants_likeliest(one: Sample) -> bool:
    """Tell whether a sample is answered by the likeliest token and its log-probability."""
    return wants_likeliest_allowed(one) and not one.constrained


def wants_likeliest_allowed(one: Sample) -> bool:
    """Tell the same where it may be the likeliest of those that a grammar lets come."""
    p = one.params
    return (
        p.temperature == 0 and p.logprobs is None and not one.candidates and not names_tokens(one)
    )


def find_candidates(
    row: Row, one: Sample, history: History | None, position: int, mask: Mask | None = None
) -> Candidates:
    """Find the likeliest tokens after a text, best first, ties by ascending id.

    Unlike in `sample`, `process` works on log-probabilities, which are never scaled again: what
    it adds to a token changes no other one. That is how transformers scores beams.
    """
    eligible = process(log_probabilities(row), one, history, position, mask)
    places = most_likely(eligible.row, one.candidates)
    # Stable, so that equally likely tokens stay in the order of their ids.
    places = places[np.argsort(-eligible.row[places], kind="stable")]
    ids = places if eligible.ids is None else eligible.ids[places]
    return Candidates(tuple(ids.tolist()), tuple(eligible.row[places].tolist()))


def check_finite(row: Row, where: str) -> None:
    """Raise ModelError if a logit is not finite."""
    if not np.isfinite(row).all():
        raise broken_row(int(np.count_nonzero(~np.isfinite(row))), len(row), where)


def broken_row(broken: int, size: int, where: str) -> ModelError:
    """Say that some logits of a row are not finite."""
    return ModelError(
        f"{broken} of {size} logits are not finite for {where}: "
        "the weights or the KV memory are damaged"
    )


def nothing_left(one: Sample, position: int) -> Refused:
    """Say which options have banned every token."""
    options = {
        "structured_outputs": one.constrained,
        "allowed_token_ids": one.params.allowed_token_ids is not None,
        "bad_words": bool(one.bad_words),
        # Where a form lets nothing else come, ends are not banned.
        "min_tokens": bool(one.ends) and not one.constrained,
    }
    used = " and ".join(name for name, given in options.items() if given)
    return Refused(
        f"every token is banned for output token {position - one.prompt_length + 1} by {used}: "
        "allow more tokens or ban fewer"
    )


def choose(eligible: Eligible, params: SamplingParams, draw: float) -> int:
    """Choose a token: temperature, min_p, top_k, top_p, then the inverse of the distribution.

    draw: in [0, 1). The answer is the first id, in ascending order, at which the sum of the kept
    tokens' weights exceeds draw times their total, in float64. Equally likely tokens are
    kept, and taken when greedy, by ascending id.
    """
    row, ids = eligible.row, eligible.ids
    if params.greedy:
        place = int(row.argmax())
        return place if ids is None else int(ids[place])
    with np.errstate(over="ignore", under="ignore"):
        distance = row.astype(np.float64) - np.float64(row.max())
        weights = np.exp(distance / params.temperature)
    if params.min_p > 0:
        # The most likely token has weight 1.
        likely = np.flatnonzero(weights >= params.min_p)
        row, weights = row[likely], weights[likely]
        ids = likely if ids is None else ids[likely]
    kept: Ids | None = None
    if 0 < params.top_k < len(row):
        kept = most_likely(row, params.top_k)
    if params.top_p < 1.0:
        kept = _nucleus(row, weights, kept, params.top_p)
    place = _invert(weights if kept is None else weights[kept], kept, draw)
    return place if ids is None else int(ids[place])


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
