"""Tokens a minute, as a bucket that fills evenly."""

from __future__ import annotations

_MINUTE_S = 60.0


class TokenBucket:
    """Holds the tokens of one minute at most.

    What is taken may be more than there is, since nobody knows an answer's length beforehand; then
    nothing more is let through until the debt is paid.
    """

    def __init__(self, per_minute: int, *, now_s: float) -> None:
        self._rate = per_minute / _MINUTE_S
        self._most = float(per_minute)
        self._level = self._most
        self._at_s = now_s

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until something is let through; 0: now."""
        self._fill(now_s)
        return 0.0 if self._level >= 1 else (1 - self._level) / self._rate

    def take(self, tokens: int, now_s: float) -> None:
        """Take tokens, whether they are there or not."""
        self._fill(now_s)
        self._level -= tokens

    def _fill(self, now_s: float) -> None:
        self._level = min(self._most, self._level + (now_s - self._at_s) * self._rate)
        self._at_s = now_s
