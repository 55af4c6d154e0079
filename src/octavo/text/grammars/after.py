"""A form that begins behind a marker: all before it is free, such as what a model thinks."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from octavo.text.grammars.backend import TokenMatcher, Vocabulary


class Marker:
    """A text to wait for, over one vocabulary; shared by all outputs that wait for it.

    How much of it the output ends with is found byte by byte, as Knuth, Morris and Pratt have it.
    """

    def __init__(self, text: str, vocabulary: Vocabulary) -> None:
        self._text = text.encode()
        self._spell: Callable[[int], bytes] = vocabulary.spell
        self._back = _borders(self._text)
        self._vocabulary = vocabulary
        self._masks: dict[int, NDArray[np.int32]] = {}
        last = self._text[-1:]
        self._may_end = [
            token for token in range(vocabulary.size) if last in vocabulary.spell(token)
        ]

    @property
    def length(self) -> int:
        """Bytes of the marker: what `advance` returns once it is complete."""
        return len(self._text)

    def advance(self, known: int, token: int) -> int:
        """Return how many bytes of the marker are there after a token, if so many were before."""
        return self._walk(known, self._spell(token))[0]

    def mask(self, known: int) -> NDArray[np.int32]:
        """Return what may come: all but the end, and but what goes on behind the marker.

        White space may: it is no part of the form. Of any other token a part would be free and a
        part bound.
        """
        mask = self._masks.get(known)
        if mask is None:
            allowed = np.ones(-(-self._vocabulary.size // 32) * 32, dtype=np.uint8)
            allowed[self._vocabulary.size :] = 0
            allowed[list(self._vocabulary.ends)] = 0
            for token in self._may_end:
                length, rest = self._walk(known, self._spell(token))
                if length == self.length and rest.strip():
                    allowed[token] = 0
            mask = np.packbits(allowed, bitorder="little").view("<i4").astype(np.int32)
            self._masks[known] = mask
        return mask

    def _walk(self, known: int, text: bytes) -> tuple[int, bytes]:
        """Return how much is known after a text, and what of it comes after the marker."""
        for place, byte in enumerate(text):
            while known and self._text[known] != byte:
                known = self._back[known - 1]
            known += self._text[known] == byte
            if known == len(self._text):
                return known, text[place + 1 :]
        return known, b""


class AfterMatcher:
    """Lets all come until the marker is complete, and then what the form allows."""

    def __init__(self, marker: Marker, form: TokenMatcher) -> None:
        self._marker = marker
        self._form = form
        self._known = 0

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens that follow those before. Raises RequestError where they do not fit."""
        place = 0
        while self._known < self._marker.length and place < len(tokens):
            self._known = self._marker.advance(self._known, tokens[place])
            place += 1
        if place < len(tokens):
            self._form.consume(tokens[place:])

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next. Raises RequestError at a limit on work."""
        if self._known < self._marker.length:
            mask[:] = self._marker.mask(self._known)
        else:
            self._form.fill(mask)


def _borders(text: bytes) -> list[int]:
    """Return for each beginning of a text its longest proper beginning that is its end, too."""
    lengths = [0] * len(text)
    known = 0
    for place in range(1, len(text)):
        while known and text[place] != text[known]:
            known = lengths[known - 1]
        known += text[place] == text[known]
        lengths[place] = known
    return lengths
