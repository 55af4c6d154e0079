"""Compiling the forms that answers must have: beside the loop, before a request comes into it."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError


class Grammars(Protocol):
    """Compiles forms, each once while it is remembered; for use from any thread.

    The runner of the same engine gets what was compiled from the same object, by its own protocol
    (`runner.masks`).
    """

    def begin(self, form: StructuredOutputs) -> Future[None]:
        """Begin to compile; returns at once.

        The future raises RequestError, which quotes the part that cannot be compiled. One that is
        known already is done. Raises OverLimit, changing nothing, if too many forms wait.
        """
        ...

    def close(self) -> None:
        """Compile nothing more; what waits gets a ConfigError. Once more: no effect."""
        ...


class NoGrammars:
    """Of an engine without a tokenizer, or without a library that makes grammars.

    why: what the caller is told, as the end of a sentence about structured_outputs.
    """

    def __init__(self, why: str = "this engine makes no grammars: leave it out") -> None:
        self._why = why

    def begin(self, form: StructuredOutputs) -> Future[None]:
        """Refuse it."""
        refused: Future[None] = Future()
        refused.set_exception(RequestError(f"structured_outputs: {form.form}: {self._why}"))
        return refused

    def close(self) -> None:
        """Nothing is open."""
