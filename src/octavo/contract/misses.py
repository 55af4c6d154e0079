"""Why a part of a prompt was not in memory: a value, for its caller and for the operator."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class MissReason(StrEnum):
    """What is known of the first block that was not found."""

    FIRST_SEEN = "first_seen"
    """As far as is remembered, no text went on like this."""
    DIVERGED = "diverged"
    """Other texts begin alike; from `Miss.position` on they read differently."""
    TOO_SHORT = "too_short"
    """What is left does not fill a block: it is not there, and no more is remembered of such."""
    EVICTED = "evicted"
    """It was there, and had to make room."""
    EXPIRED = "expired"
    """It was there, outlived the time that it was to be kept, and made room before all else."""
    CLEARED = "cleared"
    """It was there until the cache was emptied."""
    FAILED = "failed"
    """The step that was to write it failed."""
    NOT_LOADED = "not_loaded"
    """A slower tier had it, but could not bring it, or not in time."""


class Miss(msgspec.Struct, frozen=True, kw_only=True):
    """Why a prompt was computed from one of its tokens on, when it was first admitted."""

    reason: MissReason
    position: int
    """The first token that was not found; tokens before it came from memory."""
    tokens: int
    """Tokens that could have been found and were computed."""
    policy: str | None = None
    """Evicted: by which policy."""
    age_s: float | None = None
    """Evicted, expired, cleared or failed: so many seconds before, on the engine's clock."""
    evicted_since: int | None = None
    """Evicted or expired: blocks that have been evicted since then, to a step's accuracy. With
    about so many more, memory would have kept it. None where tenants or several salts share the
    memory: the number would tell one what the others do."""
    elsewhere: tuple[str, ...] = ()
    """For the operator alone. Not empty: a text in another namespace begins with the same block; in
    these fields the namespaces differ."""

    @property
    def label(self) -> str:
        """The reason as the operator's counters name it."""
        return "_".join(("namespace", *self.elsewhere)) if self.elsewhere else self.reason.value

    def for_caller(self) -> Miss:
        """Return what a caller may know: nothing of other namespaces."""
        return msgspec.structs.replace(self, elsewhere=()) if self.elsewhere else self
