"""The command `octavo`; what is here loads nothing heavy, so that Ctrl-C is met from the start."""

from __future__ import annotations

import gc
import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


def main(arguments: list[str] | None = None) -> None:
    """Run a command; exit status 2 for bad input, 130 after Ctrl-C, 1 for our own faults."""
    # A start makes some hundred thousand objects that stay: to look through them takes long.
    gc.set_threshold(100_000, 50, 100)
    # Where Ctrl-C is ignored, as in a shell's background, it stays so.
    watched = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if watched:
        signal.signal(signal.SIGINT, _leave)
    status = run(sys.argv[1:] if arguments is None else arguments)
    if status == INTERRUPTED:
        os._exit(status)  # Python may have noted Ctrl-C inside an import, and end by the signal
    if watched:
        signal.signal(signal.SIGINT, _leave)  # nor would it be quiet about one at its end
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Run a command and return its exit status; errors are one line on stderr."""
    from octavo.cli.app import run_command

    return run_command(arguments)


def begin_work() -> None:
    """From here on there may be something to clean up: Ctrl-C is an exception."""
    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _leave(signum: int, frame: FrameType | None) -> None:
    """End at once; an exception in an import could be swallowed, in argparse become another."""
    os._exit(INTERRUPTED)
