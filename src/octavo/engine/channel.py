"""The engine's end of the socket between the process that serves and the engine's own."""

from __future__ import annotations

import os
from typing import cast

import msgspec
import zmq

from octavo.engine.messages import Command, Refused, Report, pack, read_command
from octavo.errors import EngineGone

FLUSH_MS = 2000
"""How long a socket that is closed goes on sending what it was given."""


class SocketChannel:
    """A ZeroMQ PAIR socket to which the process that started this one connects.

    Its queues have no bound: who serves reads at once, and each request bounds its own news.
    parent: the id of that process, which may have ended before this one could ask for it.
    """

    def __init__(self, endpoint: str, parent: int) -> None:
        self._parent = parent
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, FLUSH_MS)
        self._socket.bind(endpoint)

    def receive(self, timeout_s: float) -> Command | None:
        """Return the next command; None: there was none for so long. 0: do not wait."""
        while True:
            # An exception each step would take longer than the question.
            if not int(self._socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN and not (
                timeout_s and self._socket.poll(round(timeout_s * 1000))
            ):
                return None
            frame = self._socket.recv()
            try:
                return read_command(frame)
            except msgspec.ValidationError as error:
                # A request whose options contradict each other is its own fault alone.
                self.send(Refused(_request_in(frame), str(error)))

    def send(self, report: Report) -> None:
        """Hand over a report. Raises EngineGone if the other end has closed."""
        try:
            self._socket.send(pack(report), zmq.NOBLOCK)
        except zmq.Again:
            raise EngineGone("the process that serves has ended") from None

    @property
    def abandoned(self) -> bool:
        """True once the process that started this one has ended."""
        return os.getppid() != self._parent

    def close(self) -> None:
        """Send what has not been sent, and close."""
        self._socket.close()
        self._context.term()


def _request_in(frame: bytes) -> str:
    """Return the id of the request in a command that was not understood; raises if it has none."""
    command = cast("dict[str, dict[str, object]]", msgspec.msgpack.decode(frame))
    return str(command["request"]["id"])
