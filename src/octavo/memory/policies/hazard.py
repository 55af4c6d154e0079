"""Learns from what returns when: how likely a text of some age is used next, by class of text."""

from __future__ import annotations

from itertools import accumulate
from math import exp, log2

from octavo.contract.ids import BlockKey
from octavo.memory.policies.followed import AGES, Counts, Followed, begins

_LEVELS_PER_OCTAVE = 4
_FARTHEST = 24
_FIRST_GUESS = 0.3
"""Ratios of a class lie between 2^-6 and 2^6, in steps of a quarter octave."""


class Hazard:
    """One curve of hazard over age for each kind of evidence, times one ratio for each class.

    Where little is known of a kind of evidence, its curve is that of all texts together.
    """

    def __init__(self, sample: int, prior: float) -> None:
        """sample: one text of so many is followed, by a byte of its hash.

        prior: hits that a class is credited with.
        """
        self._prior = prior
        self._followed = Followed(sample)
        self._evidence: list[int] = []
        """By class."""

    def add_class(self, evidence: int) -> None:
        """Know one more class, whose curve is shared by all with the same evidence."""
        self._evidence.append(evidence)
        self._followed.classes(len(self._evidence))

    def note(self, texts: list[BlockKey], kind: int, now: int) -> None:
        """Note that texts were used, one after the other; from now on they are of class `kind`."""
        self._followed.note(texts, kind, now)

    def pass_time(self, now: int, horizon: int) -> None:
        """Let texts grow older; what is older than `horizon` is followed no longer."""
        self._followed.pass_time(now, horizon)

    def fade(self, left: float) -> None:
        """Let what is past count for a share of what it did."""
        for counts in self._followed.counts:
            counts.fade(left)

    def table(self, now: int) -> list[list[float]]:
        """Return, for each class, the value of keeping a text of each age.

        The value is the Gittins index: the most, over all times until which it is kept at most,
        of the expected hits by the expected time in memory. O(AGES squared) for each ratio.
        """
        exposures = [counts.exposure(now) for counts in self._followed.counts]
        curves = self._curves(exposures)
        by_level: dict[tuple[int, int], list[float]] = {}
        values: list[list[float]] = []
        for evidence, counts, exposure in zip(
            self._evidence, self._followed.counts, exposures, strict=True
        ):
            hazards = curves[evidence]
            expected = sum(
                accesses * hazard for accesses, hazard in zip(exposure, hazards, strict=True)
            )
            ratio = (sum(counts.hits) + self._prior) / (expected + self._prior)
            level = round(_LEVELS_PER_OCTAVE * log2(ratio))
            level = max(-_FARTHEST, min(_FARTHEST, level))
            if (evidence, level) not in by_level:
                ratio = 2 ** (level / _LEVELS_PER_OCTAVE)
                by_level[evidence, level] = _indices(hazards, ratio)
            values.append(by_level[evidence, level])
        return values

    def _curves(self, exposures: list[list[float]]) -> dict[int, list[float]]:
        """Return, for each kind of evidence, the expected uses per access at each age."""
        counts = self._followed.counts
        overall = _overall(counts, exposures)
        kinds = set(self._evidence)
        if len(kinds) == 1:
            return {kind: overall for kind in kinds}
        curves: dict[int, list[float]] = {}
        for kind in kinds:
            of_kind = [number for number, one in enumerate(self._evidence) if one == kind]
            curves[kind] = _hazards(
                [counts[number] for number in of_kind],
                [exposures[number] for number in of_kind],
                self._prior,
                overall,
            )
        return curves


def _overall(counts: list[Counts], exposures: list[list[float]]) -> list[float]:
    """Return hits by accesses at each age.

    Of an age of which little is known the same share is taken to be used as of the age before:
    the older, the less likely.
    """
    found: list[float] = []
    guess = _FIRST_GUESS / begins(1)
    for age in range(AGES):
        hits = 1 + sum(one.hits[age] for one in counts)
        accesses = 1 / guess + sum(exposure[age] for exposure in exposures)
        found.append(hits / accesses)
        guess = found[-1] * (begins(age) + begins(age + 1)) / (begins(age + 1) + begins(age + 2))
    return found


def _hazards(
    counts: list[Counts], exposures: list[list[float]], credit: float, rates: list[float]
) -> list[float]:
    """Return hits by accesses at each age, with so many hits of these rates on top."""
    return [
        (credit + sum(one.hits[age] for one in counts))
        / (credit / rates[age] + sum(exposure[age] for exposure in exposures))
        for age in range(AGES)
    ]


def _indices(hazards: list[float], ratio: float) -> list[float]:
    widths = [begins(age + 1) - begins(age) for age in range(AGES)]
    chances = [
        1 - exp(-ratio * hazard * width) for hazard, width in zip(hazards, widths, strict=True)
    ]
    times = [width * (1 - chance / 2) for width, chance in zip(widths, chances, strict=True)]
    # No time spent at this age or later gives more hits than this.
    rates = [chance / time for chance, time in zip(chances, times, strict=True)]
    most = list(accumulate(reversed(rates), max))[::-1]
    indices: list[float] = []
    for start in range(AGES):
        alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
        for age in range(start, AGES):
            if best >= most[age]:
                break
            hits += alive * chances[age]
            time += alive * times[age]
            best = max(best, hits / time)
            alive *= 1 - chances[age]
        indices.append(best)
    return indices
