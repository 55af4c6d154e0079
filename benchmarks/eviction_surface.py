"""Chooses a set of parameters from noisy trials: a surface, draws of windows, cross-validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import numpy as np

from eviction_trials import WINDOWS, Cell, spread

_POINTS = 4096
_DRAWS = 200
_FOLDS = 4

Weights: TypeAlias = list[np.ndarray]
"""By trace: how often each window counts."""


class Value(NamedTuple):
    """What sets bring, one number each."""

    closed: np.ndarray
    """Mean share of the gap between lru and the optimum, over traces and capacities."""
    lost: np.ndarray
    """Hit rate lost to lru at the guarded trace and capacity where that is most."""
    score: np.ndarray
    """What is closed, less what is lost beyond the slack, as a share of the mean gap."""


class Surface:
    """A parabola in every parameter and pair of them, through all sets that were tried.

    Neighbours share what chance gave to each of them alone.
    """

    def __init__(
        self, tried: np.ndarray, cells: list[Cell], goal: list[float], slack: float
    ) -> None:
        """tried: places of the sets in the unit cube, one a row. goal: shares to gain at."""
        self.tried = tried
        self.points = spread(tried.shape[1], _POINTS)
        """Where the surface is looked at."""
        self._inverse = np.linalg.pinv(_terms(tried))
        self._smooth = _terms(self.points) @ self._inverse
        self._goal = [cell for cell in cells if cell.share in goal]
        self._guard = [cell for cell in cells if cell.share not in goal]
        self._slack = slack

    def raw(self, weights: Weights) -> Value:
        """Return what was counted for each set that was tried."""
        return self._value(weights, np.eye(len(self.tried)))

    def everywhere(self, weights: Weights) -> Value:
        """Return the surface's values at `points`."""
        return self._value(weights, self._smooth)

    def at(self, points: np.ndarray, weights: Weights) -> Value:
        """Return the surface's values at points, one a row."""
        return self._value(weights, _terms(points) @ self._inverse)

    def fit(self, weights: Weights) -> float:
        """Return what share of the variance between the sets' closed gaps the surface explains."""
        counted = self.raw(weights).closed
        rest = counted - self.at(self.tried, weights).closed
        return float(1 - rest.var() / counted.var()) if counted.var() else 0.0

    def _value(self, weights: Weights, smooth: np.ndarray) -> Value:
        closed: list[np.ndarray] = []
        gaps: list[float] = []
        for cell in self._goal:
            window = weights[cell.trace]
            gap = float((cell.high - cell.low) @ window)
            if gap > 0:
                closed.append((cell.hits - cell.low) @ window / gap)
                gaps.append(gap / float(cell.asked @ window))
        lost = [
            smooth
            @ ((cell.low - cell.hits) @ weights[cell.trace])
            / float(cell.asked @ weights[cell.trace])
            for cell in self._guard
        ]
        if not gaps:
            nothing = np.zeros(len(smooth))
            return Value(nothing, nothing, nothing)
        shares = smooth @ np.mean(closed, axis=0)
        most = np.max(lost, axis=0) if lost else np.zeros(len(smooth))
        beyond = np.maximum(0.0, most - self._slack) / np.mean(gaps)
        return Value(shares, most, shares - beyond)


def best_tried(surface: Surface, weights: Weights, calm: np.ndarray) -> np.ndarray:
    """Return the set that counted most hits."""
    return surface.tried[np.argmax(surface.raw(weights).score)]


def peak(surface: Surface, weights: Weights, calm: np.ndarray) -> np.ndarray:
    """Return the highest point of the surface."""
    return surface.points[np.argmax(surface.everywhere(weights).score)]


def mean_peak(surface: Surface, weights: Weights, calm: np.ndarray) -> np.ndarray:
    """Return the mean of the highest points over draws of the windows.

    Source: Breiman 1996, "Bagging predictors".
    """
    peaks = [peak(surface, draw, calm) for draw in _draws(weights)]
    return np.mean(peaks, axis=0)


def calmest(surface: Surface, weights: Weights, calm: np.ndarray) -> np.ndarray:
    """Return, of all points within a standard error of the highest, the one nearest to `calm`.

    Source: Breiman et al. 1984, "Classification and regression trees". The error is that of the
    difference, over draws of the windows.
    """
    score = surface.everywhere(weights).score
    top = int(np.argmax(score))
    drawn = np.array([surface.everywhere(draw).score for draw in _draws(weights)])
    error = (drawn[:, [top]] - drawn).std(axis=0)
    as_good = score >= score[top] - error
    far = np.linalg.norm(surface.points - calm, axis=1)
    return surface.points[np.argmin(np.where(as_good, far, np.inf))]


RULES: dict[str, Callable[[Surface, Weights, np.ndarray], np.ndarray]] = {
    "best tried": best_tried,
    "peak": peak,
    "mean peak": mean_peak,
    "calmest": calmest,
}


def choose_rule(folds: dict[str, list[float]]) -> str:
    """Return the rule that chooses best for what it has not seen.

    folds: by rule, the scores on each quarter. Rules within a standard error of the best cannot be
    told apart; of them the mean over draws is taken, for it depends least on any one window, and a
    peak at the edge of what was tried is little believed.
    """
    best = max(folds, key=lambda rule: sum(folds[rule]))
    behind = np.subtract(folds[best], folds["mean peak"])
    error = behind.std(ddof=1) / len(behind) ** 0.5
    return "mean peak" if behind.mean() <= error else best


def everything(traces: int) -> Weights:
    """Let every window count once."""
    return [np.ones(WINDOWS) for _ in range(traces)]


def cross_validated(surface: Surface, rule: str, traces: int, calm: np.ndarray) -> list[float]:
    """Choose by all windows but a quarter, one quarter after the other; returns their scores."""
    scores: list[float] = []
    for fold in range(_FOLDS):
        held = np.zeros(WINDOWS)
        held[fold * WINDOWS // _FOLDS : (fold + 1) * WINDOWS // _FOLDS] = 1
        chosen = RULES[rule](surface, [1 - held] * traces, calm)
        scores.append(float(surface.at(chosen[None], [held] * traces).score[0]))
    return scores


def _draws(weights: Weights) -> list[Weights]:
    """Draw windows with replacement among those that count, for each trace by itself."""
    random = np.random.default_rng(0)
    return [
        [random.multinomial(int(one.sum()), one / one.sum()).astype(float) for one in weights]
        for _ in range(_DRAWS)
    ]


def _terms(points: np.ndarray) -> np.ndarray:
    axes = points.shape[1]
    columns = [np.ones(len(points)), *points.T]
    columns += [points[:, one] * points[:, two] for one in range(axes) for two in range(one, axes)]
    return np.stack(columns, axis=1)
