"""Who may go on to the engine, who waits, and who is refused."""

from __future__ import annotations

from typing import Protocol

from octavo.server.tenants import Tenant


class Place(Protocol):
    """What one request takes of its tenant's limits and of the server's."""

    async def turn(self) -> None:
        """Return when the request may go on to the engine."""
        ...

    def spend(self, tokens: int) -> None:
        """Count tokens of its answer against the tenant's limit."""
        ...

    def leave(self) -> None:
        """Give it back, also while waiting for the turn. A second time: no effect."""
        ...


class Gate(Protocol):
    """Counts requests against the limits."""

    def look(self, tenant: Tenant, priority: int | None = None, *, answers: int = 1) -> None:
        """Raise OverLimit for a request that would be refused now, and count nothing.

        Asked before a body is read, and again before its texts are, so that neither is done for
        nothing. priority: None: not known yet, nor how many answers it asks for.
        """
        ...

    def enter(self, tenant: Tenant, tokens: int, priority: int = 0, *, answers: int = 1) -> Place:
        """Let a request in.

        tokens: of its prompts. priority: lower goes first. answers: that it asks for, to all of
        its prompts. Raises OverLimit if it is refused; nothing is counted then but the refusal.
        """
        ...

    @property
    def waiting(self) -> int:
        """Answers whose turn has not come."""
        ...


class OpenGate:
    """Lets everybody through at once."""

    waiting = 0

    def look(self, tenant: Tenant, priority: int | None = None, *, answers: int = 1) -> None:
        """Let everybody through."""

    def enter(self, tenant: Tenant, tokens: int, priority: int = 0, *, answers: int = 1) -> Place:
        """Let a request in."""
        return _OpenPlace()


class _OpenPlace:
    async def turn(self) -> None:
        """Return at once."""

    def spend(self, tokens: int) -> None:
        """Count nothing."""

    def leave(self) -> None:
        """Do nothing."""
