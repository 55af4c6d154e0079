"""Follows a sample of texts from one use to the next: who came back, and at what age."""

from __future__ import annotations

from bisect import bisect_right
from collections import deque

from octavo.contract.ids import BlockKey
from octavo.contract.layout import ANY_LENGTH

_PER_OCTAVE = 2
_FIRST = 128
AGES = 16 * _PER_OCTAVE + 1
"""Ages are told apart by half octaves: 0 to 127 accesses, 128 to 180, … ; the last has no end."""
_BEGINS = [0] + [int(_FIRST * 2 ** (age / _PER_OCTAVE)) for age in range(AGES + 1)]
_ENDS = [*_BEGINS[1:AGES], ANY_LENGTH]
_WIDTHS = [end - start for start, end in zip(_BEGINS, _ENDS, strict=False)]


def age_class(accesses: int) -> int:
    """Return the number of an age."""
    return min(bisect_right(_BEGINS, accesses), AGES) - 1


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


class Counts:
    """What is known of one class of texts, by age."""

    def __init__(self) -> None:
        self.hits = [0.0] * AGES
        """Uses that came at this age of the use before."""
        self.spent = [0.0] * AGES
        """Accesses during which texts that have left this age were in it."""
        self.inside = [0] * AGES
        """Texts that are in it."""
        self.since = [0] * AGES
        """Sum of the times at which these came into it."""

    def exposure(self, now: int) -> list[float]:
        """Return the accesses, by age, at which a text could have been used."""
        return [
            spent + inside * now - since
            for spent, inside, since in zip(self.spent, self.inside, self.since, strict=True)
        ]

    def fade(self, left: float) -> None:
        """Let what is past count for a share of what it did."""
        self.hits = [left * one for one in self.hits]
        self.spent = [left * one for one in self.spent]

    def enter(self, use: _Use, age: int) -> None:
        """Take in a text at the beginning of an age."""
        use.age = age
        self.inside[age] += 1
        self.since[age] += use.time + _BEGINS[age]

    def leave(self, use: _Use, upto: int) -> None:
        """Take out a text whose age is `upto` now, and count what it spent in the ages up to it."""
        age, spent, ends = use.age, self.spent, _ENDS
        self.inside[age] -= 1
        self.since[age] -= use.time + _BEGINS[age]
        while upto >= ends[age]:
            spent[age] += _WIDTHS[age]
            age += 1
        spent[age] += upto - _BEGINS[age]


class Followed:
    """Counts uses and exposure by age, for each class of texts.

    Follows a sample of texts, cached or not, from one use to the next. Ages are in accesses to
    blocks.
    """

    def __init__(self, sample: int) -> None:
        """sample: one text of so many is followed, by a byte of its hash."""
        self.counts: list[Counts] = []
        """By class."""
        self._sample = sample
        self._last: dict[BlockKey, _Use] = {}
        """Of each text that is followed."""
        self._queues: list[deque[_Use]] = [deque() for _ in range(AGES)]
        """By age: uses, oldest first; some have been followed by another one."""

    def classes(self, count: int) -> None:
        """Know classes 0 to count - 1."""
        self.counts += [Counts() for _ in range(count - len(self.counts))]

    def note(self, texts: list[BlockKey], kind: int, now: int) -> int:
        """Note that texts were used, one after the other; from now on they are of class `kind`.

        Returns how many of them are followed.
        """
        sample, known, queue, count = self._sample, self._last, self._queues[0], 0
        for time, text in enumerate(texts, now):
            if text and text[0] % sample:
                continue
            last = known.get(text)
            if last is not None:
                counts, age = self.counts[last.kind], time - last.time
                counts.hits[age_class(age)] += 1
                counts.leave(last, age)
                last.kind = -1
            known[text] = use = _Use(time, kind, text)
            self.counts[kind].enter(use, 0)
            queue.append(use)
            count += 1
        return count

    def pass_time(self, now: int, horizon: int) -> None:
        """Let texts grow older; what is older than `horizon` is followed no longer.

        To be called before `counts` are looked at. Costs O(1) for each age that a text is found
        in, and for each that it has passed through.
        """
        queues = self._queues
        for age in reversed(range(AGES)):  # so that older texts come first in every queue
            queue, end = queues[age], min(_BEGINS[age + 1], horizon)
            while queue and now - queue[0].time >= end:
                use = queue.popleft()
                if use.kind < 0:
                    continue
                counts, passed = self.counts[use.kind], now - use.time
                if passed >= horizon:
                    counts.leave(use, horizon)
                    del self._last[use.text]
                    continue
                now_in = age_class(passed)
                if now_in == age:  # the last age has no end
                    queue.appendleft(use)
                    break
                counts.leave(use, _BEGINS[now_in])
                counts.enter(use, now_in)
                queues[now_in].append(use)
