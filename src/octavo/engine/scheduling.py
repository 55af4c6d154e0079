"""How the system shares cores out between an engine's process and the one that serves."""

from __future__ import annotations

from enum import StrEnum


class CoreScheduling(StrEnum):
    """How the engine's process is scheduled."""

    BATCH = "batch"
    """What waits for its news goes ahead of it, also where it takes every core."""
    NORMAL = "normal"
    """As any other process."""
