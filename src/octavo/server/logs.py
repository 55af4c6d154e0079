"""The log: one line a request, and never a text unless that is asked for."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass

from octavo.server.settings import ServerSettings

ACCESS = logging.getLogger("octavo.access")
_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


@dataclass(frozen=True, slots=True)
class Passed:
    """One request that has been answered, for the log; never its text."""

    request_id: str
    tenant: str | None
    """None: its key was nobody's."""
    method: str
    path: str
    status: int
    """0: its client had left before there was any."""
    seconds: float
    tokens: tuple[int, int] | None = None
    """Of its prompts and of its answers; None: nobody told."""


class AccessLog:
    """Writes a line for each request."""

    def __init__(self, settings: ServerSettings) -> None:
        self._on = settings.log_access
        self._quiet = settings.quiet_paths

    def __call__(self, passed: Passed) -> None:
        """Write a line of one that has been answered."""
        if not self._on or passed.path in self._quiet:
            return
        tokens = "" if passed.tokens is None else " tokens={}+{}".format(*passed.tokens)
        ACCESS.info(
            "%s %s %s %s status=%s%s seconds=%.3f",
            passed.request_id,
            passed.tenant or "-",
            passed.method,
            ascii(passed.path)[1:-1],  # whatever a client wrote stays on its line
            passed.status or "left",
            tokens,
            passed.seconds,
        )


def set_up_log(level: int = logging.INFO) -> None:
    """Let our loggers, and those of what serves HTTP and runs tasks, write to stderr, if any."""
    if sys.stderr is None:  # pyright: ignore[reportUnnecessaryComparison]
        handler: logging.Handler = logging.NullHandler()
    else:
        handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter(_FORMAT))
    for name in ("octavo", "uvicorn", "asyncio"):
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.propagate = False
        logger.setLevel(level)
    # It tells of exceptions that nobody waits for, and of little else.
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    # It says in its own words what we say in ours.
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
