"""How far other arithmetic is from float32 on the same weights and the same text.

Windows of a text are computed on every side, and their logits are compared a few rows at a time:
only sums are kept. All positions of a window count but its last, whose next token is not in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.errors import ConfigError

ROWS_AT_ONCE = 64
"""Rows whose logits are held for every side: 12 MB each with a vocabulary of 49,152."""

MOST_KL = 0.005
"""Nats; what the default arithmetic may cost on average."""
MOST_BEHIND = 0.01
"""By how much its share of equal first choices may lie below that of another engine."""

Floats = NDArray[np.float64]
Logits = NDArray[np.float32]


class Scorer(Protocol):
    """One side of a comparison: weights in some arithmetic."""

    @property
    def name(self) -> str:
        """What to call it."""
        ...

    def compute(self, tokens: tuple[int, ...]) -> None:
        """Take in a text of its own; what was computed before is forgotten."""
        ...

    def logits(self, first: int, count: int) -> Logits:
        """Score what follows the tokens first, first + 1, … of the text: [count, vocab_size].

        Called in ascending order, for all tokens but the last.
        """
        ...


class SideRow(msgspec.Struct, frozen=True, kw_only=True):
    """One side, compared with float32 arithmetic."""

    side: str
    positions: int
    perplexity: float
    mean_kl: float
    """Kullback-Leibler divergence from float32 arithmetic, in nats."""
    kl_error: float | None
    """Standard error of `mean_kl`, windows taken as independent; None: there is one only."""
    kl_99: float
    """99 of 100 positions have less."""
    largest_kl: float
    top1_agreement: float
    """Share of positions whose likeliest token is the same."""


@dataclass(slots=True)
class _Tally:
    """Sums of one side; one number for each position beside them."""

    surprise: float = 0.0
    equal: int = 0
    divergences: list[Floats] = field(default_factory=list[Floats])
    """Of each window."""

    def row(self, side: str) -> SideRow:
        every = np.concatenate(self.divergences)
        means = np.array([window.mean() for window in self.divergences])
        return SideRow(
            side=side,
            positions=len(every),
            perplexity=math.exp(self.surprise / len(every)),
            mean_kl=float(every.mean()),
            kl_error=float(means.std(ddof=1)) / math.sqrt(len(means)) if len(means) > 1 else None,
            kl_99=float(np.quantile(every, 0.99)),
            largest_kl=float(every.max()),
            top1_agreement=self.equal / len(every),
        )


def windows(
    tokens: list[int], *, length: int, count: int, bos: int | None, where: str
) -> list[tuple[int, ...]]:
    """Cut a text into texts of `length` tokens, each after `bos` if the model wants one.

    count: tokens to use, rounded up to whole windows. where: what to call the text in an error.
    Raises ConfigError if it is too short.
    """
    head = () if bos is None else (bos,)
    fresh = length - len(head)
    number = -(-count // length)
    if len(tokens) < number * fresh:
        raise ConfigError(
            f"{where} has {len(tokens)} tokens, but {number} windows of {length} need "
            f"{number * fresh}: give a longer --text, or lower --tokens or --window"
        )
    return [(*head, *tokens[i * fresh : (i + 1) * fresh]) for i in range(number)]


def compare(
    reference: Scorer,
    others: list[Scorer],
    texts: list[tuple[int, ...]],
    *,
    advance: Callable[[float], None],
) -> list[SideRow]:
    """Compare sides with the reference, whose own row comes first.

    advance: told of the tokens that all sides have computed.
    """
    sides = [reference, *others]
    tallies = [_Tally() for _ in sides]
    for text in texts:
        for side in sides:
            side.compute(text)
        parts: list[list[Floats]] = [[] for _ in sides]
        for first in range(0, len(text) - 1, ROWS_AT_ONCE):
            count = min(ROWS_AT_ONCE, len(text) - 1 - first)
            targets = np.array(text[first + 1 : first + 1 + count])
            exact = _Scores(reference, first, count)
            for index, side in enumerate(sides):
                own = exact if index == 0 else _Scores(side, first, count)
                parts[index].append(_take(tallies[index], exact, own, targets))
        for tally, part in zip(tallies, parts, strict=True):
            tally.divergences.append(np.concatenate(part))
        advance(len(text))
    return [tally.row(side.name) for tally, side in zip(tallies, sides, strict=True)]


class _Scores:
    """Logits of some rows, and the logarithms of their normalisers."""

    def __init__(self, side: Scorer, first: int, count: int) -> None:
        self.logits = side.logits(first, count)
        if not np.isfinite(self.logits).all():
            raise ConfigError(
                f"{side.name} gave a logit that is not a number after token {first} of a window "
                "or soon after it, so it cannot be compared"
            )
        self.top = self.logits.argmax(axis=1)
        largest = self.logits.max(axis=1, keepdims=True)
        self.weights = np.exp(self.logits - largest)
        total = self.weights.sum(axis=1, dtype=np.float64)
        self.log_total: Floats = np.log(total) + largest[:, 0]
        self.total = total


def _take(tally: _Tally, exact: _Scores, own: _Scores, targets: NDArray[np.int64]) -> Floats:
    """Add rows to a side's sums; returns their divergences."""
    at_targets = own.logits[np.arange(len(targets)), targets].astype(np.float64)
    tally.surprise += float((own.log_total - at_targets).sum())
    tally.equal += int((own.top == exact.top).sum())
    if own is exact:
        return np.zeros(len(targets))
    # sum of p (log p - log q), where log p = logit - log_total.
    apart = exact.weights * (exact.logits - own.logits)
    mean_apart = apart.sum(axis=1, dtype=np.float64) / exact.total
    return mean_apart - (exact.log_total - own.log_total)
