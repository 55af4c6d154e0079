"""What a request says of how its text is to be kept, in the words of any API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias, get_args

import msgspec

from octavo.contract.hint import CacheHint
from octavo.contract.numbers import shown
from octavo.contract.retention import NORMAL_PRIORITY, Retention
from octavo.errors import RequestError

Says: TypeAlias = Literal["continues", "closed", "shared"]


class CacheWish(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a text, or a part of it, is to be kept. An impossible value is a RequestError."""

    pin: str | None = None
    """As of `Retention`."""
    ttl_s: float | None = None
    """As of `Retention`."""
    priority: int | None = None
    """As of `Retention`; None: as all that nobody asked to keep otherwise."""
    says: Says | None = None
    """As of `CacheHint`."""

    def __post_init__(self) -> None:
        if self.says is not None and self.says not in get_args(Says):
            raise RequestError(
                f"cache_hint must say one of {', '.join(get_args(Says))}, got {shown(self.says)}"
            )
        self.retention()

    @property
    def keeps(self) -> bool:
        """True if it asks for anything that a hint does not."""
        return (self.pin, self.ttl_s, self.priority) != (None, None, None)

    def retention(self, start: int = 0, end: int | None = None) -> Retention | None:
        """Return it for a range of tokens; None: it asks for nothing. Raises RequestError."""
        if not self.keeps:
            return None
        priority = NORMAL_PRIORITY if self.priority is None else self.priority
        return Retention(start, end, priority, self.ttl_s, self.pin)

    def hint(self, source: str, tokens: int | None = None) -> CacheHint | None:
        """Return what it says of so many leading tokens; None: nothing."""
        return None if self.says is None else CacheHint(self.says, tokens, source)


class CacheMark(msgspec.Struct, frozen=True):
    """A wish for all of a conversation up to the end of one of its parts."""

    turns: int
    """Leading turns that it covers; with 0 tools alone."""
    wish: CacheWish

    def __post_init__(self) -> None:
        if self.turns < 0:
            raise RequestError(f"cache_control: there is no turn {self.turns}: the first is 0")


def ranges(
    ends: Iterable[tuple[int, CacheWish]],
) -> tuple[Retention, ...]:
    """Return how a prompt is kept whose first tokens up to some places are marked.

    Each range reaches from the mark before it; what lies before a mark is kept as well as it is.
    """
    found: list[Retention] = []
    last = 0
    for end, wish in sorted(ends, key=lambda one: one[0]):
        one = wish.retention(last, end) if end > last else None
        if one is not None:
            found.append(one)
            last = end
    return tuple(found)
