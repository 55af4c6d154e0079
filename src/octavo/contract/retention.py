"""What a request may ask of the memory after it: how long its KV is kept, and whose it is."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from octavo.contract.numbers import is_number, is_whole, plain, shown
from octavo.errors import RequestError

DEFAULT_TENANT = "default"
"""Whose the requests are that name no tenant."""

NORMAL_PRIORITY = 35
"""Of all that nobody asked to keep otherwise; as in TensorRT-LLM."""

MOST_PRIORITY = 100

PIN_TTL_S = 3600.0
"""How long a pin holds after its last request, if that does not say."""

MOST_TTL_S = 366 * 24 * 3600.0
"""A year: what is to stay longer is kept without a time."""


class Retention(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the KV of a range of a request's text is kept once no request uses it.

    An impossible value is a RequestError. The names and the scale of priorities are those of
    TensorRT-LLM's KvCacheRetentionConfig. A block is kept as its last token is, and what lies
    before a range at least as well as the range: a suffix is useless without its prefix.
    """

    start: int = 0
    """First position of the range."""
    end: int | None = None
    """First position after it; None: the prompt's end. Output is reached by a greater number."""
    priority: int = NORMAL_PRIORITY
    """0 to 100: of one tenant's cached blocks, those of the lowest priority are evicted first."""
    ttl_s: float | None = None
    """Seconds after its last use at which it is worth nothing any more, and goes before all
    else; None: never. Of a pin: seconds after the last request that names it; None: an hour."""
    pin: str | None = None
    """Never evicted while the pin of this name holds, from when the request is accepted."""

    def __post_init__(self) -> None:
        for name in ("start", "end", "priority", "ttl_s"):
            msgspec.structs.force_setattr(self, name, plain(getattr(self, name)))
        self._check_range()
        if not (is_whole(self.priority) and 0 <= self.priority <= MOST_PRIORITY):
            raise RequestError(
                "retention: priority must be a whole number from 0 (evicted first) to "
                f"{MOST_PRIORITY}, got {shown(self.priority)}"
            )
        ttl = self.ttl_s
        if ttl is not None and not (is_number(ttl) and 0 < ttl <= MOST_TTL_S):
            raise RequestError(
                f"retention: ttl_s must be above 0 and at most {MOST_TTL_S:.0f} seconds, a year, "
                f"got {shown(ttl)}: leave it out to keep it without a time"
            )
        if self.pin is not None and (not isinstance(self.pin, str) or not self.pin):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(
                "retention: pin must be the name under which it can be let go, got "
                f"{shown(self.pin)}"
            )

    def _check_range(self) -> None:
        for name, value in (("start", self.start), ("end", self.end)):
            if not is_whole(value) and not (name == "end" and value is None):
                raise RequestError(f"retention: {name} must be a whole number, got {shown(value)}")
        if self.start < 0 or (self.end is not None and self.end <= self.start):
            raise RequestError(
                f"retention: the range from {shown(self.start)} to {shown(self.end)} is empty: "
                "start must be 0 or more, and end greater"
            )


class PinFacts(msgspec.Struct, frozen=True):
    """One pin as it stands."""

    tenant: str
    name: str
    blocks: int
    """Texts of a block that it holds; what another pin holds too counts for both."""
    requests: int
    """Live ones that name it: it holds at least as long as they live."""
    left_s: float | None
    """Seconds until it ends; None: a request that names it lives."""


def in_order(ranges: Iterable[Retention], prompt: int) -> list[tuple[int, int, Retention]]:
    """Return (start, end, what is asked) by position, for a prompt of so many tokens.

    Raises RequestError if ranges overlap, or if one without an end begins behind the prompt.
    """
    found = sorted(
        ((one.start, prompt if one.end is None else one.end, one) for one in ranges),
        key=lambda one: one[:2],
    )
    last = 0
    for start, end, _ in found:
        if end <= start:
            raise RequestError(
                f"retention: a range begins at {shown(start)}, but the prompt ends at {prompt}: "
                "give it an end"
            )
        if start < last:
            raise RequestError(
                f"retention: a range begins at {start}, before the one before it ends at {last}: "
                "ranges must not overlap"
            )
        last = end
    return found


class TenantShare(msgspec.Struct, frozen=True):
    """What one tenant is given of the pool of KV blocks, as shares of it."""

    name: str
    guaranteed: float = 0.0
    """So much of its KV, in use or cached, is never evicted for others."""
    maximum: float = 1.0
    """Its KV, in use or cached, never takes more."""
