"""Recomputing every count of an engine, and setting right what is wrong."""

from __future__ import annotations

import msgspec

from octavo.engine.loop import Loop
from octavo.engine.messages import Checks
from octavo.errors import Corrupted


class Checkup(msgspec.Struct, frozen=True):
    """What came of one look at every count."""

    ok: bool
    error: str | None
    """What was wrong; it has been set right."""
    checks: Checks
    """This one included."""


class Checker:
    """Checks one engine, between two of its steps."""

    def __init__(self, loop: Loop) -> None:
        self.checks = Checks()
        """How often it has, and what came of it; to be read only."""
        self._loop = loop

    def check(self) -> Checkup:
        """Recompute every count, and set right what is wrong: suspect blocks are used no more.

        Cached texts are forgotten then, and running requests compute theirs again. Raises Corrupted
        if that does not help.
        """
        before, wrong = self.checks, ""
        self.checks = msgspec.structs.replace(before, runs=before.runs + 1)
        try:
            self._loop.check()
        except Corrupted as error:
            wrong = str(error)
            out = self._loop.quarantine()
            self.checks = Checks(before.runs + 1, before.failures + 1, out, wrong)
        return Checkup(not wrong, wrong or None, self.checks)
