"""Learns from what returns when: how likely a text of some age is used next, by class of text."""

from __future__ import annotations

from collections import deque
from math import exp, log2

from octavo.contract.ids import BlockKey

AGES = 17
"""Ages are told apart by powers of two: 0 to 127 accesses, 128 to 255, … ; the last has no end."""
_FIRST_BITS = 7
_BEGINS = [0] + [1 << (age + _FIRST_BITS - 1) for age in range(1, AGES + 1)]
_LEVELS_PER_OCTAVE = 4
_FARTHEST = 24
"""Ratios of a class lie between 2^-6 and 2^6, in steps of a quarter octave."""


def age_class(accesses: int) -> int:
    """Return the number of an age."""
    return min((accesses >> _FIRST_BITS).bit_length(), AGES - 1)


def begins(age: int) -> int:
    """Return the first number of accesses that belongs to an age."""
    return _BEGINS[age]


class _Use:
    """The last use of a text that is followed."""

    __slots__ = ("age", "kind", "text", "time")

    def __init__(self, time: int, kind: int, text: BlockKey) -> None:
        self.time = time
        self.kind = kind
        """Class of the text since then; -1: it was used again."""
        self.text = text
        self.age = 0


class _Counts:
    """What is known of one class of texts, by age."""

    def __init__(self) -> None:
        self.hits = [0] * AGES
        """Uses that came at this age of the use before."""
        self.spent = [0] * AGES
        """Accesses during which texts that have left this age were in it."""
        self.inside = [0] * AGES
        """Texts that are in it."""
        self.since = [0] * AGES
        """Sum of the times at which these came into it."""

    def exposure(self, now: int) -> list[int]:
        """Return the accesses, by age, at which a text could have been used."""
        return [
            spent + inside * now - since
            for spent, inside, since in zip(self.spent, self.inside, self.since, strict=True)
        ]

    def enter(self, use: _Use, age: int) -> None:
        """Take in a text at the beginning of an age."""
        use.age = age
        self.inside[age] += 1
        self.since[age] += use.time + _BEGINS[age]

    def age(self, use: _Use) -> None:
        """Move a text on to the next age."""
        age = use.age
        begin, end = _BEGINS[age], _BEGINS[age + 1]
        self.inside[age] -= 1
        self.since[age] -= use.time + begin
        self.spent[age] += end - begin
        self.enter(use, age + 1)

    def leave(self, use: _Use, upto: int) -> None:
        """Take out a text whose age is `upto` now, and count what it spent in the ages up to it."""
        age = use.age
        self.inside[age] -= 1
        self.since[age] -= use.time + _BEGINS[age]
        while age + 1 < AGES and upto >= begins(age + 1):
            self.spent[age] += begins(age + 1) - begins(age)
            age += 1
        self.spent[age] += upto - begins(age)


class Hazard:
    """One curve of hazard over age for all texts, times one ratio for each class of them.

    Follows a sample of texts, cached or not, from one use to the next. Ages are in accesses to
    blocks.
    """

    def __init__(self, sample: int, prior: float) -> None:
        """sample: one text of so many is followed, by a byte of its hash.

        prior: hits that a class is credited with.
        """
        self._sample = sample
        self._prior = prior
        self._last: dict[BlockKey, _Use] = {}
        """Of each text that is followed."""
        self._queues: list[deque[_Use]] = [deque() for _ in range(AGES)]
        """By age: uses, oldest first; some have been followed by another one."""
        self._counts: list[_Counts] = []
        """By class."""

    def classes(self, count: int) -> None:
        """Know classes 0 to count - 1."""
        self._counts += [_Counts() for _ in range(count - len(self._counts))]

    def note(self, texts: list[BlockKey], kind: int, now: int) -> None:
        """Note that texts were used, one after the other; from now on they are of class `kind`."""
        sample, known, queue = self._sample, self._last, self._queues[0]
        for time, text in enumerate(texts, now):
            if text and text[0] % sample:
                continue
            last = known.get(text)
            if last is not None:
                counts, age = self._counts[last.kind], time - last.time
                counts.hits[age_class(age)] += 1
                counts.leave(last, age)
                last.kind = -1
            known[text] = use = _Use(time, kind, text)
            self._counts[kind].enter(use, 0)
            queue.append(use)

    def pass_time(self, now: int, horizon: int) -> None:
        """Let texts grow older; what is older than `horizon` is followed no longer.

        Costs O(1) for each age that a text passes through.
        """
        for age, queue in enumerate(self._queues):
            end = min(begins(age + 1) if age + 1 < AGES else horizon, horizon)
            while queue and now - queue[0].time >= end:
                use = queue.popleft()
                if use.kind < 0:
                    continue
                if end == horizon:
                    self._counts[use.kind].leave(use, end)
                    del self._last[use.text]
                else:
                    self._counts[use.kind].age(use)
                    self._queues[age + 1].append(use)

    def table(self, now: int) -> list[list[float]]:
        """Return, for each class, the value of keeping a text of each age.

        The value is the Gittins index: the most, over all times until which it is kept at most,
        of the expected hits by the expected time in memory. O(AGES squared) for each ratio.
        """
        exposures = [counts.exposure(now) for counts in self._counts]
        hazards = self._hazards(exposures)
        by_level: dict[int, list[float]] = {}
        values: list[list[float]] = []
        for counts, exposure in zip(self._counts, exposures, strict=True):
            expected = sum(
                accesses * hazard for accesses, hazard in zip(exposure, hazards, strict=True)
            )
            ratio = (sum(counts.hits) + self._prior) / (expected + self._prior)
            level = round(_LEVELS_PER_OCTAVE * log2(ratio))
            level = max(-_FARTHEST, min(_FARTHEST, level))
            if level not in by_level:
                by_level[level] = _indices(hazards, 2 ** (level / _LEVELS_PER_OCTAVE))
            values.append(by_level[level])
        return values

    def _hazards(self, exposures: list[list[int]]) -> list[float]:
        """Return the expected uses per access of a text of each age."""
        found: list[float] = []
        for age in range(AGES):
            # Before anything is known, a third of each age: the older, the less likely.
            hits = 1 + sum(counts.hits[age] for counts in self._counts)
            width = begins(age + 1) - begins(age)
            found.append(hits / (2.5 * width + sum(exposure[age] for exposure in exposures)))
        return found


def _indices(hazards: list[float], ratio: float) -> list[float]:
    widths = [begins(age + 1) - begins(age) for age in range(AGES)]
    chances = [
        1 - exp(-ratio * hazard * width) for hazard, width in zip(hazards, widths, strict=True)
    ]
    indices: list[float] = []
    for start in range(AGES):
        alive, hits, time, best = 1.0, 0.0, 0.0, 0.0
        for age in range(start, AGES):
            hits += alive * chances[age]
            time += alive * widths[age] * (1 - chances[age] / 2)
            best = max(best, hits / time)
            alive *= 1 - chances[age]
        indices.append(best)
    return indices
