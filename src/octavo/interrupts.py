"""Ctrl-C at a moment when nothing is half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupts_wait() -> Generator[None, None, None]:
    """Put Ctrl-C off until the block has ended; a second one is not put off.

    What a block does to several objects is then done to all of them or, if it raises by itself, as
    far as it says. Outside the main thread, or where somebody else looks out for Ctrl-C: no effect.
    """
    if (
        threading.current_thread() is not threading.main_thread()
        or signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    ):
        yield
        return
    noted = False

    def note(number: int, frame: FrameType | None) -> None:
        nonlocal noted
        if noted:
            raise KeyboardInterrupt
        noted = True

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if noted:
            raise KeyboardInterrupt
