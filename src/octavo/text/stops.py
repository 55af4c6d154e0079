"""Find stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections import deque


class StopMatcher:
    """Passes text on, up to the first stop string; holds back what may begin one.

    The first is the one that ends first; of several that end together, the longest. So the
    result does not depend on how the text is cut into pieces. Each character costs O(1),
    whatever the number of stop strings. Source: Aho and Corasick 1975.
    """

    def __init__(self, stops: tuple[str, ...], *, include: bool = False) -> None:
        """Look for any of `stops`. include: the one that is found is passed on too."""
        assert "" not in stops, "an empty stop string matches at once"
        self._include = include
        # One state per distinct beginning of a stop string; state 0 is the empty beginning.
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match: list[str | None] = [None]
        for stop in stops:
            self._insert(stop)
        self._fallback = self._link()
        self._state = 0
        self._held = ""
        """The longest end of the text so far that begins a stop string."""
        self.stopped: str | None = None
        """The stop string that was found."""

    def push(self, text: str, *, counts: bool = True) -> str:
        """Take more text; return what is certain not to belong to a stop string.

        counts: False: a stop string that ends in this text is text like any other.
        """
        if self.stopped is not None:
            return ""
        known = len(self._held)
        text = self._held + text
        for index in range(known, len(text)):
            self._state = self._step(self._state, text[index])
            found = self._match[self._state]
            if found is not None and counts:
                self.stopped = found
                self._held = ""
                return text[: index + 1 - (0 if self._include else len(found))]
        certain = len(text) - self._depth[self._state]
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return the text held back: no more comes that could make it a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held

    def _insert(self, stop: str) -> None:
        state = 0
        for letter in stop:
            following = self._next[state].get(letter)
            if following is None:
                following = self._next[state][letter] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(None)
            state = following
        self._match[state] = stop

    def _link(self) -> list[int]:
        """Return, per state, the longest shorter beginning that it ends with."""
        fallback = [0] * len(self._next)
        self._fallback = fallback
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for letter, following in self._next[state].items():
                fallback[following] = self._step(fallback[state], letter)
                queue.append(following)
            # Shorter states are complete, so one look finds every stop that ends here.
            if self._match[state] is None:
                self._match[state] = self._match[fallback[state]]
        return fallback

    def _step(self, state: int, letter: str) -> int:
        while state and letter not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(letter, 0)
