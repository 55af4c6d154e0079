"""Work that goes on beside the caller's."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


_running: weakref.WeakSet[InBackground[Any]] = weakref.WeakSet()


def wait_for_background() -> None:
    """Wait until nothing goes on in the background."""
    for one in list(_running):
        one.wait()


if hasattr(os, "register_at_fork"):
    # A child process has no such threads: what they do must be done.
    os.register_at_fork(before=wait_for_background)


class InBackground(Generic[_Result]):
    """Runs a function in a thread of its own, from now on.

    Gains time where one of the two waits, or computes outside Python.
    """

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        _running.add(self)
        self._thread.start()

    def wait(self) -> None:
        """Wait for the function to end."""
        self._thread.join()

    def result(self) -> _Result:
        """Wait for the function; return what it returned, or raise what it raised."""
        self.wait()
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # whoever asks for the result gets it
            self._error = error
        finally:
            _running.discard(self)
