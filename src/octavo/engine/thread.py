"""An engine in a thread of its own: requests in from any thread, news out through callbacks."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future

import msgspec

from octavo.contract.request import Request
from octavo.contract.structured import StructuredOutputs
from octavo.engine.engine import Engine, Output
from octavo.errors import ConfigError, OctavoError


class Accepted(msgspec.Struct, frozen=True):
    """A request is in the queue."""

    effective_max_tokens: int


Listener = Callable[["Accepted | Output | Exception"], None]
"""Told, in the engine's thread, that a request is queued, each news of it, or what ends it."""


class EngineThread:
    """Owns an engine and steps it while there is work; idle, it waits without polling.

    An error of the engine itself ends every request with it; the thread then takes no more. It is
    not in a process that is forked: there a request is a ConfigError.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._process = os.getpid()
        self._commands: deque[Callable[[], None]] = deque()
        self._listeners: dict[str, tuple[Listener, int]] = {}
        """Per request, who listens and how many choices are not finished."""
        self._wake = threading.Condition()
        self._closed = False
        self._broken: Exception | None = None
        self._thread = threading.Thread(target=self._loop, name="octavo-engine", daemon=True)
        self._thread.start()

    def add(self, request: Request, listener: Listener) -> None:
        """Queue a request; a RequestError reaches the listener like any other news."""

        def command() -> None:
            try:
                effective = self._engine.add(request)
            except OctavoError as error:
                listener(error)
            else:
                self._listeners[request.id] = (listener, request.sampling.choices)
                listener(Accepted(effective))

        self._send(command)

    def begin(self, form: StructuredOutputs) -> Future[None]:
        """Begin to compile the form of an answer, as `Grammars.begin` does, beside the steps.

        `add` waits for that in the engine's thread, and all requests with it, unless it is done.
        """
        return self._engine.loop.grammars.begin(form)

    def abort(self, request_id: str) -> None:
        """End a request; its listener hears no more. Unknown or ended: no effect."""

        def command() -> None:
            if self._listeners.pop(request_id, None) is not None:
                self._engine.abort(request_id)

        self._send(command, always=True)

    def call(self, function: Callable[[Engine], None]) -> None:
        """Run a function on the engine between two steps and wait for it.

        Raises what it raises.
        """
        done = threading.Event()
        errors: list[Exception] = []

        def command() -> None:
            try:
                function(self._engine)
            except Exception as error:
                errors.append(error)
            finally:
                done.set()

        self._send(command)
        done.wait()
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Stop after the step that is running; requests that are not finished hear of it."""
        if os.getpid() != self._process:
            return
        with self._wake:
            self._closed = True
            self._wake.notify()
        self._thread.join()

    def _send(self, command: Callable[[], None], *, always: bool = False) -> None:
        # Before the lock, which the thread may have held when this process was made.
        if os.getpid() != self._process:
            if always:
                return
            raise ConfigError(
                f"the engine's thread is in process {self._process}, from which this one was "
                "forked: build the engine here"
            )
        with self._wake:
            if self._closed or self._broken is not None:
                if always:
                    return
                raise self._broken or ConfigError("the engine is closed: build another one")
            self._commands.append(command)
            self._wake.notify()

    def _loop(self) -> None:
        try:
            while self._obey():
                for news in self._engine.step():
                    self._tell(news)
            self._end_all(ConfigError("the engine is closed: build another one"))
        except Exception as error:
            self._broken = error
            self._end_all(error)
        finally:
            self._engine.close()

    def _obey(self) -> bool:
        """Run waiting commands; sleep while there is nothing to do. False: closed."""
        with self._wake:
            while not (self._closed or self._commands or self._engine.busy):
                self._wake.wait()
            commands = list(self._commands)
            self._commands.clear()
            closed = self._closed
        for command in commands:
            command()
        return not closed

    def _tell(self, news: Output) -> None:
        entry = self._listeners.get(news.request_id)
        if entry is None:
            return
        listener, open_choices = entry
        if news.finish is not None:
            open_choices -= 1
            self._listeners[news.request_id] = (listener, open_choices)
        if open_choices == 0:
            del self._listeners[news.request_id]
        listener(news)

    def _end_all(self, error: Exception) -> None:
        with self._wake:
            commands = list(self._commands)
            self._commands.clear()
        for command in commands:
            command()
        for listener, _ in self._listeners.values():
            listener(error)
        self._listeners.clear()
