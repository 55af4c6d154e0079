"""How long to wait before something that ended is started again."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Twice as long each time, from the first wait again after a long enough life."""

    first_s: float = 0.5
    most_s: float = 30.0
    healthy_s: float = 60.0
    """A life of this length is not held against the next."""
    _next_s: float = 0.0

    def after(self, life_s: float) -> float:
        """Return the wait after a life of so many seconds."""
        if life_s >= self.healthy_s or not self._next_s:
            self._next_s = self.first_s
        wait_s = self._next_s
        self._next_s = min(self.most_s, 2 * wait_s)
        return wait_s
