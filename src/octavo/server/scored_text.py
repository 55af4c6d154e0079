"""Which tokens a text is from, where not all that a model writes is text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from octavo.contract.batch import Logprobs

Scored: TypeAlias = tuple[tuple[int, Logprobs], ...]
"""Tokens, and how likely each was."""


class ScoredText:
    """Follows one answer: its tokens as they come, and its text as it is read out of them.

    Text comes later than its tokens (a character, or what may begin a marker, is held back), and of
    some tokens there is none: markers, reasoning, calls, the end. A token belongs to the first text
    that any of its bytes is in. spell: gives the bytes of a token; none for one that no text has.
    """

    def __init__(self, spell: Callable[[int], bytes]) -> None:
        self._spell = spell
        self._waiting: list[tuple[int, Logprobs]] = []

    def push(self, tokens: Iterable[int], scores: Iterable[Logprobs]) -> None:
        """Take tokens that follow those before."""
        self._waiting += zip(tokens, scores, strict=True)

    def take(self, text: str, *, cut: bool = False) -> Scored:
        """Return the tokens that a new text is from; those before it belong to none.

        cut: the text ends ahead of where the tokens do, and not behind what was read before.
        """
        spelled = [self._spell(token) for token, _ in self._waiting]
        joined, wanted = b"".join(spelled), text.encode()
        place = joined.find(wanted) if cut else joined.rfind(wanted)
        # Bytes that are no text, and texts whose first half came before, are not found.
        begin, end = (place, place + len(wanted)) if place >= 0 else (0, len(joined))
        taken: list[tuple[int, Logprobs]] = []
        at = behind = 0
        for one, data in zip(self._waiting, spelled, strict=True):
            if at >= end:
                break
            at += len(data)
            behind += 1
            if data and at > begin:
                taken.append(one)
        del self._waiting[:behind]
        return tuple(taken)

    def drop(self) -> None:
        """What has come so far belongs to no text."""
        self._waiting.clear()
