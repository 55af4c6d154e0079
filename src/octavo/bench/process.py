"""An engine in a process of its own, which runs works when it is told to and sleeps otherwise."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import msgspec

from octavo.bench.works import SHARED_PREFIX, Work

_LEAVE_S = 5.0


class EngineLost(Exception):
    """An engine's process ended, hung or said that it cannot go on; the text says what happened."""


@contextlib.contextmanager
def leaving_on_signals() -> Iterator[None]:
    """Leave the block in order when this process is told to end: what it has started ends too.

    A process that is stopped by a signal would stay behind otherwise.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class EngineProcess:
    """Speaks the protocol of `benchmarks/peers/worker.py` with a process.

    Between runs the process is stopped by a signal, and so are its children: some engines poll
    while they have nothing to do, which would cost the engine that is being measured. Raises
    EngineLost if the process cannot be started or the engine in it cannot be loaded.
    """

    def __init__(
        self, name: str, command: list[str], settings: dict[str, object], *, limit_s: float
    ) -> None:
        """Start the process and load the engine.

        settings: sent first. limit_s: seconds that an answer may take; then the process is ended.
        """
        self.name = name
        self._limit_s = limit_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (`close` closes it)
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,  # a group to signal; Ctrl-C reaches us alone
            )
        except OSError as error:
            self._errors.close()
            raise EngineLost(f"{command[0]} cannot be started: {error.strerror}") from None
        try:
            self.label = str(self._ask(settings, "loading")["engine"])
        except BaseException:
            self.close()
            raise

    def run(self, work: Work) -> float:
        """Run a work; returns the seconds that the engine took. Raises EngineLost."""
        self._signal(signal.SIGCONT)
        command = {"requests": work.requests, "shared_prefix": work.name == SHARED_PREFIX}
        return float(self._ask(command, work.name)["seconds"])

    def close(self) -> None:
        """End the process and all that it started; a second call has no effect."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LEAVE_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _ask(self, command: dict[str, object], what: str) -> dict[str, Any]:
        """Send a command and wait for its answer; then the process sleeps."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._deadline() as late:
            try:
                self._process.stdin.write(msgspec.json.encode(command) + b"\n")
                self._process.stdin.flush()
            except OSError:
                pass  # its process has ended: reading says so
            line = self._process.stdout.readline()
        if late.is_set():
            raise EngineLost(f"{what}: no answer within {self._limit_s:g} s; its process was ended")
        if not line:
            raise EngineLost(f"{what}: its process ended {self._status()}{self._last_words()}")
        try:
            answer = msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.DecodeError:
            raise EngineLost(f"{what}: it answered {line[:80]!r}") from None
        if "error" in answer:
            raise EngineLost(f"{what}: {answer['error']}")
        self._signal(signal.SIGSTOP)
        return answer

    @contextlib.contextmanager
    def _deadline(self) -> Iterator[threading.Event]:
        """End the process if the block takes too long; yields what is then set."""
        late = threading.Event()

        def end() -> None:
            late.set()
            self._signal(signal.SIGKILL)

        timer = threading.Timer(self._limit_s, end)
        timer.start()
        try:
            yield late
        finally:
            timer.cancel()

    def _signal(self, number: int) -> None:
        """Send a signal to the process and to all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _status(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(_LEAVE_S)
            return f"with status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        return "its output"

    def _last_words(self) -> str:
        """Return the last line that the process wrote to stderr, after a colon."""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        written = [line.strip() for line in lines if line.strip()]
        return f": {written[-1]}" if written else ""
