"""One life of an engine's process: its socket, its last words, its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import zmq

from octavo.engine.messages import Command, CoreSpec, Report, pack, read_report
from octavo.errors import ConfigError

LAST_LINES = 20
"""Of its stderr, kept to say why it ended."""

_AT_ONCE = 64
"""Reports read before other tasks have their turn."""

_AFTERMATH_S = 0.1
"""What a process has said before its end may come this much later than the news of the end."""

_LONGEST_PATH = 90
"""Of the sockets' folder: a socket's whole path has at most 107 bytes."""

Hear = Callable[[Report], None]


class CoreProcess:
    """A process with an engine, from its start to its end. For use on one event loop.

    The socket is read on the event loop itself: a thread that reads it would wait for the
    interpreter's lock behind the event loop, and then wake it.
    """

    def __init__(self, folder: Path, life: int, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._endpoint = f"ipc://{folder}/{life}"
        self._context = context
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._closed = False
        self._ended = asyncio.Event()

    def start(
        self, spec: CoreSpec, scheduling: str, hear: Hear, say: Callable[[str], None]
    ) -> None:
        """Start it. hear: told each report, say: each line of its stderr, on the event loop.

        Raises what the system or ZeroMQ raises, and leaves nothing behind then.
        """
        self._hear = hear
        self._say = say
        self._loop = asyncio.get_running_loop()
        with ExitStack() as undo:
            # -P: what happens to lie in the current folder is not imported. A session of its own:
            # Ctrl-C in a terminal is meant for the process that serves.
            worker = [sys.executable, "-P", "-m", "octavo.engine.worker"]
            self._process = subprocess.Popen(
                [*worker, self._endpoint, scheduling, str(os.getpid())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            undo.callback(self._discard)
            self._socket = self._context.socket(zmq.PAIR)
            undo.callback(self.close)
            for option in (zmq.SNDHWM, zmq.RCVHWM, zmq.LINGER):
                self._socket.setsockopt(option, 0)
            self._socket.setsockopt(zmq.RECONNECT_IVL, 10)  # until it listens
            self._socket.connect(self._endpoint)
            self._loop.add_reader(self._socket.FD, self._read)
            self.send(spec)
            threading.Thread(target=self._watch, name="octavo-core-end", daemon=True).start()
            # The last, since it closes stderr itself.
            threading.Thread(target=self._listen, name="octavo-core-stderr", daemon=True).start()
            undo.pop_all()

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def send(self, command: Command) -> None:
        """Hand over a command; returns at once. Lost if the process has ended."""
        if self._closed:
            return
        self._socket.send(pack(command), zmq.NOBLOCK)
        # Sending takes note of what has come, and then nobody is woken for it.
        if int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            self._loop.call_soon(self._read)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()

    async def ended(self) -> str:
        """Wait for its end, and for what it said before; returns why it ended, in words."""
        await self._ended.wait()
        await asyncio.sleep(_AFTERMATH_S)
        self._read()
        status = self._process.returncode
        how = f"signal {-status}: {_signal_name(-status)}" if status < 0 else f"status {status}"
        words = f"the engine's process ended ({how})"
        return ": ".join((words, self._lines[-1])) if self._lines else words

    @property
    def last_lines(self) -> list[str]:
        """What it wrote last on stderr."""
        return list(self._lines)

    def close(self) -> None:
        """Hear no more. The process must have ended."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket.FD)
        self._socket.close(linger=0)

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _discard(self) -> None:
        """End a process to which nobody listens."""
        self._process.kill()
        self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()

    def _read(self) -> None:
        """Hear what has come. Woken at an edge: until there is nothing more, or once again."""
        for _ in range(_AT_ONCE):
            if self._closed:
                return
            try:
                report = read_report(self._socket.recv(zmq.NOBLOCK))
            except zmq.Again:
                return
            except (zmq.ZMQError, msgspec.DecodeError) as error:
                # Whoever waits for what was lost would wait for ever.
                self._note_line(f"the engine cannot be heard: {type(error).__name__}: {error}")
                self.kill()
                return
            try:
                self._hear(report)
            except BaseException:
                self._loop.call_soon(self._read)  # one that is told badly must not stop the others
                raise
        self._loop.call_soon(self._read)

    def _listen(self) -> None:
        stream = self._process.stderr
        assert stream is not None
        try:
            with stream:
                for line in stream:
                    self._tell(self._note_line, line.decode("utf-8", "replace").rstrip())
        except (OSError, ValueError) as error:
            # It goes on without: nothing that it does hangs on what it says there.
            said = f"{type(error).__name__}: {error}"
            self._tell(self._note_line, f"the engine's stderr is read no more: {said}")

    def _watch(self) -> None:
        self._process.wait()
        self._tell(self._ended.set)

    def _note_line(self, line: str) -> None:
        if line:
            self._lines.append(line)
            self._say(line)

    def _tell(self, function: Callable[..., None], *arguments: str) -> None:
        # An event loop that is closed: nobody is there to be told.
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function, *arguments)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


def private_folder() -> Path:
    """Make a folder that nobody else may enter, with a path short enough for sockets.

    Raises ConfigError if there is none.
    """
    for parent in (None, "/tmp"):
        folder = Path(tempfile.mkdtemp(prefix="octavo-", dir=parent))
        if len(str(folder).encode()) <= _LONGEST_PATH:
            return folder
        folder.rmdir()
    raise ConfigError(
        f"the path of the folder for temporary files is too long for sockets: {folder}; set TMPDIR "
        "to a shorter one"
    )
