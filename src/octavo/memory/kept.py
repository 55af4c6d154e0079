"""How a block is kept once nobody holds it: a priority, for a while or for good."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple, TypeAlias

from octavo.contract.layout import ANY_LENGTH
from octavo.contract.retention import NORMAL_PRIORITY, Retention, in_order

EXPIRED = -1
"""The class of what has outlived its time: evicted first."""


class Kept(NamedTuple):
    """A class of eviction, the lowest first, and what it turns into."""

    priority: int
    ttl_s: float | None = None
    """Seconds without a holder after which it is kept as `after` says; None: for good."""
    after: int = EXPIRED


NORMAL = Kept(NORMAL_PRIORITY, None, NORMAL_PRIORITY)
"""What `None` stands for."""

Keeps: TypeAlias = tuple[tuple[int, Kept | None], ...]
"""(end, how it is kept) of consecutive ranges of a text, the first of which begins at 0.

What follows the last is kept as None says.
"""


def better(first: Kept | None, second: Kept | None) -> Kept | None:
    """Return what serves both of two users: the higher class, and the higher one after it.

    Of two that end, the longer of equal class, else the higher; the other is not remembered.
    """
    if first == second:
        return first
    one, two = first or NORMAL, second or NORMAL
    return _settled(max(one, two, key=_rank), max(one.after, two.after))


def keeps_of(ranges: Iterable[Retention], prompt: int) -> Keeps:
    """Return how a text is kept, position by position: never better than what lies before.

    prompt: tokens. Raises RequestError for ranges that overlap.
    """
    keeps: list[tuple[int, Kept | None]] = []
    said: list[bool] = []
    last, before = 0, None
    for start, end, one in in_order(ranges, prompt):
        if start > last:
            before = _worse(before)
            keeps.append((start, before))
            said.append(False)
        before = _kept(one)
        keeps.append((end, before))
        said.append(True)
        last = end
    if not keeps:
        return ()
    behind = keeps[-1][1]
    for index in range(len(keeps) - 2, -1, -1):
        # What a range asks for lifts all that lies before it.
        end, how = keeps[index]
        keeps[index] = (end, better(how, behind))
        if said[index]:
            behind = keeps[index][1]
    keeps.append((ANY_LENGTH, _worse(before)))
    return tuple(keeps)


def kept_at(keeps: Keeps, end: int) -> Kept | None:
    """Return how a block is kept whose last token stands before position `end`."""
    for until, how in keeps:
        if end <= until:
            return how
    return None


def _kept(one: Retention) -> Kept | None:
    if one.ttl_s is None or one.pin is not None:
        return _settled(Kept(one.priority), one.priority)
    return _settled(Kept(one.priority, one.ttl_s), EXPIRED)


def _worse(before: Kept | None) -> Kept | None:
    """Return how a text is kept of which nothing is said, after one that is kept so."""
    if before is None:
        return None
    priority, after = min(before.priority, NORMAL_PRIORITY), min(before.after, NORMAL_PRIORITY)
    return _settled(Kept(priority, before.ttl_s), after)


def _settled(kept: Kept, after: int) -> Kept | None:
    if kept.ttl_s is None or after >= kept.priority:
        made = Kept(kept.priority, None, kept.priority)
    else:
        made = Kept(kept.priority, kept.ttl_s, after)
    return None if made == NORMAL else made


def _rank(kept: Kept) -> tuple[int, float]:
    return kept.priority, math.inf if kept.ttl_s is None else kept.ttl_s
