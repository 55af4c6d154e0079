"""What runs in the background must not end without a word."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

LOG = logging.getLogger("octavo.server")


class Faults:
    """Names of tasks that have failed: the log says why, and `/health` is red from then on."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def watch(self, name: str, task: asyncio.Task[Any]) -> None:
        """Tell of a task that fails. One that is cancelled, or done, has not."""

        def look(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None:
                LOG.error("%s has failed: this is a fault of octavo's", name, exc_info=error)
                self.names.append(name)

        task.add_done_callback(look)
