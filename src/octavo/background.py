"""Work that goes on beside the caller's."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

_Result = TypeVar("_Result")


class InBackground(Generic[_Result]):
    """Runs a function in a thread of its own, from now on.

    Gains time where one of the two waits, or computes outside Python.
    """

    def __init__(self, function: Callable[[], _Result]) -> None:
        self._function = function
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def result(self) -> _Result:
        """Wait for the function; return what it returned, or raise what it raised."""
        self._thread.join()
        if self._error is not None:
            raise self._error
        return self._value

    def _run(self) -> None:
        try:
            self._value = self._function()
        except BaseException as error:  # whoever asks for the result gets it
            self._error = error
