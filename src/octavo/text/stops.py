"""Find stop strings in a text that arrives in pieces."""

from __future__ import annotations

from collections import deque


class StopTable:
    """Some stop strings, ready to be looked for; any number of texts may share it.

    Source: Aho and Corasick 1975.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        assert "" not in stops, "an empty stop string matches at once"
        # One state per distinct beginning of a stop string; state 0 is the empty beginning.
        self._next: list[dict[str, int]] = [{}]
        self.depth = [0]
        """Characters of each state's beginning."""
        self.match: list[str | None] = [None]
        """The longest stop string that each state ends with."""
        for stop in stops:
            self._insert(stop)
        self._fallback = self._link()

    def step(self, state: int, letter: str) -> int:
        """Return the state after one more letter."""
        while state and letter not in self._next[state]:
            state = self._fallback[state]
        return self._next[state].get(letter, 0)

    def _insert(self, stop: str) -> None:
        state = 0
        for letter in stop:
            following = self._next[state].get(letter)
            if following is None:
                following = self._next[state][letter] = len(self._next)
                self._next.append({})
                self.depth.append(self.depth[state] + 1)
                self.match.append(None)
            state = following
        self.match[state] = stop

    def _link(self) -> list[int]:
        """Return, per state, the longest shorter beginning that it ends with."""
        fallback = [0] * len(self._next)
        self._fallback = fallback
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            for letter, following in self._next[state].items():
                fallback[following] = self.step(fallback[state], letter)
                queue.append(following)
            # Shorter states are complete, so one look finds every stop that ends here.
            if self.match[state] is None:
                self.match[state] = self.match[fallback[state]]
        return fallback


class StopMatcher:
    """Passes text on, up to the first stop string; holds back what may begin one.

    The first is the one that ends first; of several that end together, the longest. So the
    result does not depend on how the text is cut into pieces. Each character costs O(1),
    whatever the number of stop strings.
    """

    def __init__(self, stops: StopTable | tuple[str, ...], *, include: bool = False) -> None:
        """Look for any of `stops`. include: the one that is found is passed on too."""
        self._table = stops if isinstance(stops, StopTable) else StopTable(stops)
        self._include = include
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
        table, known = self._table, len(self._held)
        text = self._held + text
        for index in range(known, len(text)):
            self._state = table.step(self._state, text[index])
            found = table.match[self._state]
            if found is not None and counts:
                self.stopped = found
                self._held = ""
                return text[: index + 1 - (0 if self._include else len(found))]
        certain = len(text) - table.depth[self._state]
        self._held = text[certain:]
        return text[:certain]

    def finish(self) -> str:
        """Return the text held back: no more comes that could make it a stop string."""
        held, self._held, self._state = self._held, "", 0
        return held
