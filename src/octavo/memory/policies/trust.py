"""How far hints are to be believed: learned from what became of the texts that they were about."""

from __future__ import annotations

from itertools import groupby
from math import exp, log2
from typing import NamedTuple
from zlib import crc32

from octavo.contract.hint import CacheHint
from octavo.memory.policies.followed import AGES, Followed, begins
from octavo.memory.policies.releases import Release

_SLOTS = 64
"""Sources beyond so many share what is learned with others."""
_WORDS = {"closed": 0, "continues": 1, "shared": 2}
_GRADES = (0.1, 0.35, 0.65, 0.9)
"""Probabilities up to each of them, and those above the last, are told apart."""
_SAMPLE = 8
_LEARN_EVERY = 2048
"""Accesses to blocks."""
_FORGET = 8.0
"""Accesses, for each cached block, after which what was learned counts for half."""
_PRIOR = 16.0
"""Hits that everything said is credited with: nobody is believed at once."""
_CHANCE = 2.0
"""Variances by which hits may differ from what was to be expected and still mean nothing."""
_MOST = 1e6
_FARTHEST = 6.0
"""Octaves."""


class _Said(NamedTuple):
    """A class of texts: what was said of them, by whom, and what they look like."""

    slot: int
    """-1: nothing was said."""
    grade: int
    look: int
    """0: the block is not full; 1: it was used once; 2: more often."""


class _Meaning(NamedTuple):
    """What it has meant up to now that something was said."""

    chance: float
    """That a text that looks so is used again, whatever was said."""
    odds: float
    """By how much these odds have to be multiplied."""


class _Statements:
    """Of how many texts at once, of those that are followed, one thing was said."""

    __slots__ = ("squares", "texts")

    def __init__(self) -> None:
        self.texts = 0.0
        self.squares = 0.0
        """Sum, over statements, of the square of their texts."""

    def add(self, texts: int) -> None:
        """One more statement, about so many texts."""
        self.texts += texts
        self.squares += texts * texts

    def fade(self, left: float) -> None:
        """Let what is past count for a share of what it did."""
        self.texts *= left
        self.squares *= left

    @property
    def bunch(self) -> float:
        """How many were spoken of together with one of them, itself included, on average."""
        return max(1.0, self.squares / self.texts) if self.texts else 1.0


_NOTHING = _Meaning(0.5, 1.0)


class Trust:
    """For each source and each thing that it says, how much more often such texts return.

    Compares texts of which something was said with all that look alike, at the same age: hits
    with the hits to be expected, as far as they differ by more than chance. So noise means nothing,
    and a lie its opposite. Until the first hint comes nothing is followed. O(1) amortised for each
    block.
    """

    def __init__(self, remember: float) -> None:
        """remember: accesses for which a text is followed, for each cached block."""
        self._remember = remember
        self._followed = Followed(_SAMPLE)
        self._numbers: dict[_Said, int] = {}
        self._meanings: dict[_Said, _Meaning] = {}
        self._statements: dict[int, _Statements] = {}
        """By number of what was said."""
        self._next_lesson = 0
        self._hinted = False

    def weigh(self, release: Release, now: int, capacity: int) -> list[float] | None:
        """Return, for each block, log2 of how much likelier its use is for what was said.

        None: nothing was ever said. now: accesses to blocks before this release. capacity: most
        blocks ever cached.
        """
        hints = [block.hint for block in release.blocks]
        if not self._hinted:
            self._hinted = hints.count(None) < len(hints)
            if not self._hinted:
                return None
        self._learn(now, capacity)
        pieces: list[tuple[int, int, CacheHint | None, _Said]] = []
        start = 0
        for (hint, _, look), blocks in groupby(
            zip(hints, map(id, hints), _looks(release), strict=True)
        ):
            end = start + sum(1 for _ in blocks)
            said = _classify(hint, look)
            number = self._numbers.setdefault(said, len(self._numbers))
            self._followed.classes(len(self._numbers))
            count = self._followed.note(release.texts[start:end], number, now + 1 + start)
            self._statements.setdefault(number, _Statements()).add(count)
            pieces.append((start, end, hint, said))
            start = end
        return self._weights(pieces)

    def _weights(self, pieces: list[tuple[int, int, CacheHint | None, _Said]]) -> list[float]:
        """Put together what was said of the parts of one text, tail first.

        What is used again is always the beginning of a text: a part that returns says that all
        before it do, and one that does not, that nothing behind it does. Before it is heard what
        was said, each number of parts that return is equally likely.
        """
        meanings = [self._meanings.get(said, _NOTHING) for _, _, _, said in pieces]
        # Parts of which one and the same thing was said are one piece of evidence.
        parts = [
            [number for number, _ in of_one]
            for _, of_one in groupby(enumerate(pieces), lambda piece: id(piece[1][2]))
        ]
        odds = [meanings[numbers[0]].odds for numbers in parts]
        behind = _chain(odds)
        before = _chain([1 / one for one in reversed(odds)])[::-1]
        weights: list[float] = []
        for index, numbers in enumerate(parts):
            factor = behind[index] / before[index]
            for number in numbers:
                start, end, _, _ = pieces[number]
                chance, own = meanings[number]
                ratio = own * factor
                likelier = ratio / (chance * ratio + 1 - chance)
                weight = max(-_FARTHEST, min(_FARTHEST, log2(likelier)))
                weights += [weight] * (end - start)
        return weights

    def _learn(self, now: int, capacity: int) -> None:
        if now < self._next_lesson:
            return
        self._next_lesson = now + _LEARN_EVERY
        horizon = max(_LEARN_EVERY, int(self._remember * capacity))
        self._followed.pass_time(now, horizon)
        left = 0.5 ** (_LEARN_EVERY / (_FORGET * capacity))
        for counts in self._followed.counts:
            counts.fade(left)
        for statements in self._statements.values():
            statements.fade(left)
        exposures = [counts.exposure(now) for counts in self._followed.counts]
        hits = [counts.hits for counts in self._followed.counts]
        for look in range(3):
            alike = {said: number for said, number in self._numbers.items() if said.look == look}
            if not alike:
                continue
            hazards = [
                (sum(hits[number][age] for number in alike.values()))
                / max(1, sum(exposures[number][age] for number in alike.values()))
                for age in range(AGES)
            ]
            ahead = [max(0, min(begins(age + 1), horizon) - begins(age)) for age in range(AGES)]
            chance = 1 - exp(-sum(h * width for h, width in zip(hazards, ahead, strict=True)))
            chance = max(0.001, min(0.999, chance))
            for said, number in alike.items():
                odds = 1.0
                if said.slot >= 0:
                    spent = exposures[number]
                    expected = sum(h * time for h, time in zip(hazards, spent, strict=True))
                    bunch = self._statements[number].bunch
                    odds = _odds(_ratio(sum(hits[number]), expected, bunch), chance)
                self._meanings[said] = _Meaning(chance, odds)


def _classify(hint: CacheHint | None, look: int) -> _Said:
    if hint is None:
        return _Said(-1, 0, look)
    says = hint.says
    if isinstance(says, str):
        grade = _WORDS[says]
    else:
        grade = len(_WORDS) + sum(says > most for most in _GRADES)
    return _Said(crc32(hint.source.encode()) % _SLOTS, grade, look)


def _looks(release: Release) -> list[int]:
    looks = [1 if uses == 1 else 2 for uses in release.uses]
    if release.partial:
        looks[0] = 0
    return looks


def _ratio(hits: float, expected: float, bunch: float) -> float:
    """Return by how much more hits there are than expected, less what may be chance.

    bunch: hits that come together, since one statement was about so many texts; by so much their
    number varies more than if each came by itself. What is no further off than chance takes it
    counts for nothing, and what is a little further for little. Source: James and Stein 1961,
    "Estimation with quadratic loss"; never beyond zero.
    """
    likely = expected + _PRIOR
    beyond = hits - expected
    chance = _CHANCE * bunch * likely
    if beyond * beyond <= chance:
        return 1.0
    return 1 + (beyond - chance / beyond) / likely


def _odds(ratio: float, chance: float) -> float:
    """Return by how much odds are multiplied where a chance is multiplied by a ratio."""
    multiplied = min(ratio * chance, 0.5 + chance / 2)
    return multiplied * (1 - chance) / (chance * (1 - multiplied))


def _chain(odds: list[float]) -> list[float]:
    """For each part, the mean over how many of those before it in the list are true with it.

    Each counts as the product of the odds of these, nearest first.
    """
    sums = [1.0]
    for one in odds[:-1]:
        sums.append(min(_MOST, 1 + one * sums[-1]))
    return [total / count for count, total in enumerate(sums, 1)]
