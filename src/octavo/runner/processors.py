"""What changes a row of logits before a token is drawn: bans, biases and penalties.

Everything here is a pure function of one row, one request's options and its own text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Sample
from octavo.runner.history import History
from octavo.runner.masks import Mask, allowed_by

Ids = NDArray[np.intp]
Row = NDArray[np.float32] | NDArray[np.float64]

LARGEST = 1e300
"""Logits stay within it, so that no penalty makes them infinite."""


@dataclass(frozen=True, slots=True)
class Eligible:
    """The tokens that may still be chosen."""

    row: Row
    """Their logits."""
    ids: Ids | None
    """Ascending; None: all tokens."""


def process(
    row: Row, one: Sample, history: History | None, position: int, mask: Mask | None = None
) -> Eligible:
    """Apply, in this order: grammar, allowed tokens, bad words, ban of end tokens, bias, penalties.

    position: where the new token will stand. mask: what the grammar of a constrained sample allows;
    where that lets nothing but end tokens come, they are not banned. What is banned stays banned.
    Without any of these options the row itself comes back.
    """
    params = one.params
    assert (mask is not None) == one.constrained, (
        f"sequence {one.seq} at position {position}: a mask without a grammar, or none with one"
    )
    ids = _not_banned(len(row), one, history, position, mask)
    if params.logit_bias or params.penalizes:
        row = row.astype(np.float64)
        if params.logit_bias:
            for token, bias in params.logit_bias.items():
                row[token] += bias
        if params.penalizes:
            assert history is not None, f"sequence {one.seq} looks back at an unknown text"
            _penalize(row, one, history)
        np.clip(row, -LARGEST, LARGEST, out=row)
    return Eligible(row if ids is None else row[ids], ids)


def _not_banned(
    size: int, one: Sample, history: History | None, position: int, mask: Mask | None
) -> Ids | None:
    """Return the tokens that may be chosen, in ascending order; None: all."""
    allowed = one.params.allowed_token_ids
    banned = banned_tokens(size, one, history, position, mask)
    if allowed is None and mask is None and not banned:
        return None
    kept = np.full(size, allowed is None)
    if allowed is not None:
        kept[list(allowed)] = True
    kept[banned] = False
    if mask is not None:
        kept &= allowed_by(mask, size)
    return np.flatnonzero(kept)


def banned_tokens(
    size: int, one: Sample, history: History | None, position: int, mask: Mask | None = None
) -> list[int]:
    """Return the tokens of a vocabulary that bad words and the ban of end tokens forbid now.

    mask: as `process` takes it.
    """
    banned = [] if not one.bad_words else _bad_ends(one.bad_words, history)
    banned = [token for token in banned if 0 <= token < size]
    if one.ends and position - one.prompt_length < one.params.min_tokens:
        ends = [token for token in one.ends if 0 <= token < size]
        if mask is None or _goes_on(one, allowed_by(mask, size), banned, ends):
            banned += ends
    return banned


def _goes_on(one: Sample, allowed: NDArray[np.bool_], banned: list[int], ends: list[int]) -> bool:
    """Tell whether a form lets anything but the end come, other options permitting.

    An answer whose form is complete ends, however few tokens it has. allowed: is overwritten.
    """
    allowed[banned] = False
    allowed[ends] = False
    if one.params.allowed_token_ids is None:
        return bool(allowed.any())
    return bool(allowed[list(one.params.allowed_token_ids)].any())


def _bad_ends(words: Iterable[tuple[int, ...]], history: History | None) -> list[int]:
    """Return the last token of each word that the text would now complete."""
    ends: list[int] = []
    for word in words:
        before = len(word) - 1
        if before:
            assert history is not None, "a bad word of several tokens looks back"
            output = history.output_end(before)
            if output != list(word[:-1]):
                continue
        ends.append(word[-1])
    return ends


def _penalize(row: NDArray[np.float64], one: Sample, history: History) -> None:
    """Change a row in place: first repetition, then frequency, then presence."""
    params = one.params
    if params.repetition_penalty != 1:
        seen = history.seen()
        values = row[seen]
        with np.errstate(over="ignore", under="ignore"):
            row[seen] = np.where(
                values > 0, values / params.repetition_penalty, values * params.repetition_penalty
            )
    if params.frequency_penalty or params.presence_penalty:
        ids, times = history.counts()
        row[ids] -= params.frequency_penalty * times
        row[ids] -= params.presence_penalty
