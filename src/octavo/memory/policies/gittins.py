"""Gittins: keep the blocks with the most expected hits for the time that they would take room."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from octavo.memory.block import Block
from octavo.memory.policies.cells import Cells
from octavo.memory.policies.checks import above_zero, at_least
from octavo.memory.policies.followed import AGES, age_class, begins
from octavo.memory.policies.hazard import Hazard
from octavo.memory.policies.releases import Origin, Release, Releases
from octavo.memory.policies.trust import Trust

_MOST = 4
"""Uses and turns from which on they are not told apart."""
_LENGTHS = (2_048, 8_192, 24_576, 65_536)
"""Lengths of texts in tokens that are told apart; the last stands for all longer ones."""
_MOST_EVIDENCE = 3
_LOOKS = 8
"""At blocks of one age, while they are of it: wide ages are left in time even so."""
_SWEEP = 256
"""Accesses after which blocks are looked at for their age."""


class Kind(NamedTuple):
    """A class of texts."""

    uses: int
    turn: int
    origin: Origin
    length_tokens: int
    partial: bool
    evidence: int
    """For or against another use, as far as hints are believed; in octaves."""


class Gittins:
    """Evict where the expected hits by the time in memory are least, as learned from all before.

    A block's class is its uses and its text's turn (1, 2, 3, 4 or more each), how the text began
    (`Origin`), its length, whether the block is partial, and what callers said of it, as far as
    they are believed (`Trust`). The hazard of a use over age is learned online for all texts of
    which the same was said, with a ratio for each class.

    remember: texts whose uses are kept, and accesses for which texts are followed, for each
    cached block; eviction ends neither. sample: one text of so many is followed. learn_every:
    accesses after which what was learned is used. prior: hits credited to each class, so that a
    new one behaves as the average. forget: accesses, for each cached block, after which what was
    learned counts for half. `add` and `remove` cost O(1), `pop` O(1) amortised, on top of
    the constant number of classes and ages. Ties: tail first.
    Sources: Gittins 1979, "Bandit processes and dynamic allocation indices"; Beckmann et al. 2018,
    "LHD: improving cache hit rate by maximizing hit density".
    """

    hears_hints = True
    """Of two classes of which different things were said, each has a hazard of its own."""

    def __init__(
        self,
        *,
        remember: float = 8.0,
        sample: int = 8,
        learn_every: int = 4096,
        prior: float = 8.0,
        forget: float = 8.0,
    ) -> None:
        at_least(0, remember=remember)
        at_least(1, sample=sample, learn_every=learn_every)
        above_zero(prior=prior, forget=forget)
        self._remember = remember
        self._forget = forget
        self._learn_every = learn_every
        self._worth: Callable[[int], float] | None = None
        self._releases = Releases(remember, self._place)
        self._trust = Trust(remember)
        self._hazard = Hazard(sample, prior)
        self._kinds: dict[Kind, int] = {}
        self._cells = Cells()
        """By kind and age."""
        self._values: list[float] = []
        """By number of the cell."""
        self._now = 0
        self._capacity = 1
        self._next_sweep = _SWEEP
        self._next_looks = [0] * AGES
        """By age: when blocks of that age are to be looked at again."""
        self._next_lesson = learn_every

    def weigh(self, worth: Callable[[int], float]) -> None:
        """Multiply values by what a block is worth in a text of so many tokens."""
        self._worth = worth

    def add(self, block: Block) -> None:
        """Take in a block; its class is found when its whole release is known."""
        self._releases.add_all([block])

    def add_all(self, blocks: list[Block]) -> None:
        """Take in blocks."""
        self._releases.add_all(blocks)

    def hit(self, block: Block) -> None:
        """Note one more use of a held block."""
        self._releases.hit(block)

    def remove(self, block: Block) -> None:
        """Take the block out; its text is remembered."""
        self.remove_all([block])

    def remove_all(self, blocks: list[Block]) -> None:
        """Take blocks out; their texts are remembered."""
        self._releases.close()
        self._cells.remove_all(blocks)

    def pop(self) -> Block:
        """Take the oldest block of the least valuable class and age; `IndexError` if none."""
        if not len(self):
            raise IndexError("pop from an empty bag")
        return self.pop_all(1)[0]

    def pop_all(self, count: int) -> list[Block]:
        """Take so many blocks, each the oldest of the least valuable class and age."""
        self._releases.close()
        return self._cells.pop_all(count)

    def __len__(self) -> int:
        return len(self._cells) + len(self._releases.waiting)

    def _place(self, release: Release) -> None:
        """Put each block of a release into the cell of its class and of age 0."""
        cached = len(self._cells) + len(release.blocks)
        if cached > self._capacity:
            self._capacity = cached
            self._releases.fit(cached)
        length = next((most for most in _LENGTHS if release.length_tokens <= most), _LENGTHS[-1])
        said = self._trust.weigh(release, self._now, self._capacity)
        best: int | None = None
        if release.partial:
            kind = self._kind(release, 0, length, said, partial=True)
            self._fill(release, 0, 1, kind, None)
        for start, end in release.stretches(said):
            kind = self._kind(release, start, length, said, partial=False)
            best = self._fill(release, start, end, kind, best)
        if self._now >= self._next_sweep:
            self._grow_older()

    def _kind(
        self, release: Release, number: int, length: int, said: list[float] | None, *, partial: bool
    ) -> Kind:
        uses, turn = min(release.uses[number], _MOST), min(release.turn, _MOST)
        evidence = round(said[number]) if said else 0
        evidence = max(-_MOST_EVIDENCE, min(_MOST_EVIDENCE, evidence))
        return Kind(uses, turn, release.origin, length, partial, evidence)

    def _fill(self, release: Release, start: int, end: int, kind: Kind, best: int | None) -> int:
        """Put a stretch of a release into the cell of its class; returns the class that counts.

        best: the class of what comes after it. If that is more valuable, it counts here too: a
        prefix is worth at least what its suffix is.
        """
        number = self._kinds.get(kind)
        if number is None:
            number = self._kinds[kind] = len(self._kinds)
            self._hazard.add_class(kind.evidence)
            self._arrange()
        self._hazard.note(release.texts[start:end], number, self._now + 1)
        self._now += end - start
        age = age_class(self._capacity)
        if best is None or self._values[best * AGES + age] < self._values[number * AGES + age]:
            best = number
        self._cells.add(release.blocks[start:end], best * AGES, self._now)
        return best

    def _grow_older(self) -> None:
        """Move runs of blocks to the cells of their age, each through every age at most once."""
        now, cells = self._now, self._cells
        self._next_sweep = now + _SWEEP
        # By class, the youngest cells first: a run may pass through several ages at once.
        due = [now >= time for time in self._next_looks]
        for age, is_due in enumerate(due):
            if is_due:
                width = begins(age + 1) - begins(age)
                self._next_looks[age] = now + max(_SWEEP, width // _LOOKS)
        waiting = sorted((n for n in cells.filled() if due[n % AGES]), reverse=True)
        while waiting:
            number = waiting.pop()
            age, cell = number % AGES, cells.cells[number]
            latest = now - begins(age + 1)
            if age + 1 == AGES or not cell or cell[0].time > latest:
                continue
            while cell and cell[0].time <= latest:
                cells.move(number, number + 1)
            if not waiting or waiting[-1] != number + 1:
                waiting.append(number + 1)
        if now >= self._next_lesson:
            self._next_lesson = now + self._learn_every
            self._hazard.pass_time(now, max(_SWEEP, int(self._remember * self._capacity)))
            self._hazard.fade(0.5 ** (self._learn_every / (self._forget * self._capacity)))
            self._arrange()

    def _arrange(self) -> None:
        """Order the cells by what was learned up to now."""
        worths = [self._worth(kind.length_tokens) if self._worth else 1.0 for kind in self._kinds]
        value = [
            one * worth
            for row, worth in zip(self._hazard.table(self._now), worths, strict=True)
            for one in row
        ]
        # Of equal value, the older first.
        self._values = value
        oldest_first = [n for age in reversed(range(AGES)) for n in range(age, len(value), AGES)]
        self._cells.arrange(sorted(oldest_first, key=value.__getitem__))
