"""Which running sequences give their blocks to others."""

from __future__ import annotations

from itertools import takewhile

from octavo.contract.request import Sequence
from octavo.memory.prefix import Hit
from octavo.sched.cache import Cache
from octavo.sched.roster import Roster


class Victims:
    """Chooses sequences that begin again with what is cached of them, worst first."""

    def __init__(self, roster: Roster, cache: Cache) -> None:
        self._roster = roster
        self._cache = cache

    def of(self, seq: Sequence) -> list[Sequence]:
        """Those that give way, then those of a worse rank than a sequence; none has a slice yet."""
        worse = takewhile(lambda other: other.rank > seq.rank, self._roster.running.worst_first())
        return self.giving_way() + [
            other
            for other in worse
            if not (other.gives_way or (seq.beam and other.request is seq.request))
        ]

    def giving_way(self) -> list[Sequence]:
        """Those that are not to go on before others."""
        return [seq for seq in self._roster.running.worst_first() if seq.gives_way]

    def less_urgent(self, seq: Sequence) -> list[Sequence]:
        """Those of a worse class than a waiting sequence."""
        worse = takewhile(lambda v: v.rank[0] > seq.rank[0], self._roster.running.worst_first())
        return [other for other in worse if not spared(other)]

    def enough_of(
        self, candidates: list[Sequence], seq: Sequence, hit: Hit, places: int
    ) -> list[Sequence] | None:
        """Return as few as make room for a waiting sequence; None: all of them do not.

        places: of running sequences that it lacks.
        """
        blocks = self._cache.shortage(seq, hit)
        if blocks > 0:
            candidates = list(self._cache.useful(candidates, seq, hit))
        relief = self._cache.relief(seq, hit, candidates)
        victims, of_use, found = list[Sequence](), list[Sequence](), 0
        while (len(victims) < places or found < blocks) and len(victims) < len(candidates):
            victims.append(candidates[len(victims)])
            gain = next(relief)
            found += gain
            if gain > 0:
                of_use.append(victims[-1])
        if len(victims) < places or found < blocks:
            return None
        # Who gave nothing, alone or with the others, goes on: its guarantee may keep its blocks.
        if places <= len(of_use) < len(victims) and blocks > 0:
            enough = sum(self._cache.relief(seq, hit, of_use)) >= blocks
            victims = of_use if enough else victims
        return victims

    def to_begin_again(self) -> Sequence | None:
        """Return one who stands still or holds others up, where nobody else can go on.

        The worst beam search first: beams that were computed side by side may hold one text twice;
        found again, it is shared. Else tenants hold each other up: one is at its maximum, also by
        shared blocks that have become its, and another finds no room. Then the worst gives way,
        of tenants with more than they are guaranteed if there is any. None: nobody would gain, or
        some are to go on soon.
        """
        running = list(self._roster.running.worst_first())
        beam = next((seq for seq in running if seq.beam), None)
        if beam is not None:
            return beam
        if len(running) < 2 or any(seq.paused and not seq.gives_way for seq in running):
            return None
        above = (seq for seq in running if self._cache.standing(seq).surplus)
        return next(above, running[0])


def spared(seq: Sequence) -> bool:
    """Say whether a sequence has just come back, and is not to be displaced again so soon."""
    return seq.length < seq.spared_until and not seq.gives_way
