"""What is told of requests to whoever counts them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One prompt that was answered, or ended otherwise. Times in seconds; None: it never came."""

    tenant: str
    route: str
    """Such as /v1/completions."""
    finish: str
    """Of its first choice: stop, length, abort or error."""
    prompt_tokens: int
    cached_tokens: int
    """Those of them that were in memory."""
    output_tokens: int
    """Of all choices."""
    longest_output: int
    """Of the longest of them."""
    n: int
    max_tokens: int
    """The effective maximum of each choice; 0: it was never accepted."""
    preemptions: int = 0
    queue_s: float | None = None
    """From its arrival to its first step; what it waited for its turn included."""
    prefill_s: float | None = None
    """From its first step to its first token."""
    decode_s: float | None = None
    """From its first token to its last."""
    e2e_s: float
    """From its arrival to its end."""


class Meters(Protocol):
    """Counts; quick, and raises nothing."""

    def first_token(self, tenant: str, seconds: float) -> None:
        """An answer has its first token, so long after its request came."""
        ...

    def next_tokens(self, seconds: float, count: int) -> None:
        """A choice has so many more tokens, so long after those before them."""
        ...

    def prompt(self, tenant: str, *, cached: int, computed: int) -> None:
        """So many tokens of a prompt were in memory, and so many computed."""
        ...

    def output(self, tenant: str, tokens: int) -> None:
        """Answers have so many more tokens."""
        ...

    def ended(self, record: RequestRecord) -> None:
        """A prompt is done with."""
        ...

    def refused(self, tenant: str, status: int) -> None:
        """A request was answered with an error before the engine took it."""
        ...


class NoMeters:
    """Counts nothing."""

    def first_token(self, tenant: str, seconds: float) -> None:
        """Do nothing."""

    def next_tokens(self, seconds: float, count: int) -> None:
        """Do nothing."""

    def prompt(self, tenant: str, *, cached: int, computed: int) -> None:
        """Do nothing."""

    def output(self, tenant: str, tokens: int) -> None:
        """Do nothing."""

    def ended(self, record: RequestRecord) -> None:
        """Do nothing."""

    def refused(self, tenant: str, status: int) -> None:
        """Do nothing."""
