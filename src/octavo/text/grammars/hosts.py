"""Forms in which names of hosts stand: what no grammar tells of them is judged label by label.

The grammar knows no label that begins with xn--, but labels of stand-ins, where a name may stand
and nowhere else. Where a text goes on with xn--, and stand-ins could come instead, it is followed
in one more way: a matcher that is told stand-ins. The label may end once it is an international
one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from octavo.errors import RequestError
from octavo.text.grammars.backend import Grammar, TokenMatcher, Vocabulary
from octavo.text.grammars.schema.hosts import (
    MAX_LABEL,
    STAND_IN,
    UNLIKE,
    is_international,
    may_become_international,
)

MAX_WAYS = 8
"""In which one text is followed."""
_LETTERS = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz-"
_BEGINS = re.compile(rb"(?:^|[^0-9A-Za-z-])[Xx][Nn]-$")
_MARK = re.compile(rb"[Xx][Nn]--")
_BEFORE = len("xn-")
_TAIL = 1 + _BEFORE


class Letters:
    """The tokens of a vocabulary that names are judged by; shared by all outputs."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.spell: Callable[[int], bytes] = vocabulary.spell
        self.ends = frozenset(vocabulary.ends)
        self.tokens: dict[int, int] = {}
        """Of each byte, the token that is nothing else."""
        behind = np.zeros(-(-vocabulary.size // 32) * 32, dtype=np.uint8)
        first = STAND_IN.encode()[:1]
        others = np.ones_like(behind)
        for token in range(vocabulary.size):
            text = vocabulary.spell(token)
            if len(text) == 1:
                self.tokens.setdefault(text[0], token)
            behind[token] = bool(text) and text[0] not in _LETTERS
            others[token] = first not in text
        self.behind: NDArray[np.int32] = np.packbits(behind, bitorder="little").view(np.int32)
        """Tokens that may follow a label, a bit each."""
        self.real: NDArray[np.int32] = np.packbits(others, bitorder="little").view(np.int32)
        """Tokens that spell nothing of a stand-in, nor of letters for private use that begin so."""

    @property
    def complete(self) -> bool:
        """True if all that names are judged by are tokens."""
        return all(byte in self.tokens for byte in _LETTERS + f"{STAND_IN}{UNLIKE}".encode())

    def of(self, text: bytes) -> list[int] | None:
        """Return a text as tokens of a byte; None: it has bytes that are none."""
        found = [self.tokens.get(byte) for byte in text]
        return None if None in found else [token for token in found if token is not None]


@dataclass(slots=True)
class _Way:
    """One way to read the text so far."""

    matcher: TokenMatcher
    told: list[int]
    """What the matcher has consumed."""
    label: str | None = None
    """An international label that has begun."""

    def takes(self, tokens: list[int] | None) -> bool:
        """Tell the matcher; False: it refuses, and is of no use any more."""
        if tokens is None:
            return False
        try:
            self.matcher.consume(tokens)
        except RequestError:
            return False
        self.told += tokens
        return True


class HostGrammar:
    """A `Grammar` over one that knows stand-ins alone of international labels."""

    def __init__(self, grammar: Grammar, letters: Letters) -> None:
        self._grammar = grammar
        self._letters = letters

    def start(self) -> TokenMatcher:
        """Return a matcher at the beginning of an output."""
        return HostMatcher(self._grammar, self._letters)


class HostMatcher:
    """Follows one output."""

    def __init__(self, grammar: Grammar, letters: Letters) -> None:
        self._grammar = grammar
        self._letters = letters
        self._ways = [_Way(grammar.start(), [])]
        self._tail = b""
        """The last bytes of the text."""

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens that follow those before. Raises RequestError where they do not fit."""
        for token in tokens:
            text = self._letters.spell(token)
            if token in self._letters.ends:
                self._ways = [way for way in self._ways if self._ended(way, token)]
            elif STAND_IN.encode() in self._tail + text:
                self._ways = []
            elif _MARK.search(self._tail + text):
                for byte in text:
                    self._ways = self._after(byte)
                    self._tail = (self._tail + bytes([byte]))[-_TAIL:]
            else:
                self._ways = [way for way in self._ways if self._goes_on(way, token, text)]
                self._tail = (self._tail + text)[-_TAIL:]
            if not self._ways:
                raise RequestError(f"structured_outputs: token {token} does not fit the form")

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next. Raises RequestError at a limit on work.

        An international label comes letter by letter.
        """
        mask[:] = 0
        for way in self._ways:
            mask |= self._filled(way, np.zeros_like(mask))
        begins = _BEGINS.search(self._tail) is not None
        if begins and any(self._begun(way) is not None for way in self._ways):
            _allow(mask, self._letters.tokens[ord("-")])

    def _filled(self, way: _Way, mask: NDArray[np.int32]) -> NDArray[np.int32]:
        way.matcher.fill(mask)
        letters = self._letters
        if way.label is None:
            return mask & letters.real
        room = len(way.label) < MAX_LABEL
        more = room and _has(mask, letters.tokens[STAND_IN.encode()[0]])
        mask &= letters.behind & letters.real if is_international(way.label) else 0
        for byte in _LETTERS if more else b"":
            if may_become_international(way.label + chr(byte)):
                _allow(mask, letters.tokens[byte])
        return mask

    def _after(self, byte: int) -> list[_Way]:
        """Return the ways that are left behind one more byte."""
        left: list[_Way] = []
        begins = byte == ord("-") and _BEGINS.search(self._tail) is not None
        tokens = self._letters.of(bytes([byte]))
        for way in self._ways:
            begun = self._begun(way) if begins else None
            if tokens is not None and self._goes_on(way, tokens[0], bytes([byte])):
                left.append(way)
            if begun is not None:
                left.append(begun)
        return left[:MAX_WAYS]

    def _goes_on(self, way: _Way, token: int, text: bytes) -> bool:
        """Tell a way a token; False: it does not fit."""
        if way.label is None:
            return way.takes([token])
        for place, byte in enumerate(text):
            if byte in _LETTERS:
                way.label += chr(byte)
                stand_in = self._letters.of(STAND_IN.encode())
                if len(way.label) > MAX_LABEL or not way.takes(stand_in):
                    return False
            elif is_international(way.label):
                way.label = None
                return way.takes(self._letters.of(text[place:]))
            else:
                return False
        # A token without a text is no letter: it may end an answer, but no name.
        return bool(text)

    def _ended(self, way: _Way, token: int) -> bool:
        """Tell a way the end, all at once: a library may take none once nothing else may come."""
        told = [*way.told, token]
        way.matcher, way.told = self._grammar.start(), []
        return way.label is None and way.takes(told)

    def _begun(self, way: _Way) -> _Way | None:
        """Return one more way, in which xn- begins an international label; None: none can stand."""
        if way.label is not None:
            return None
        told, spelled = list(way.told), b""
        while len(spelled) < _BEFORE:
            spelled = self._letters.spell(told.pop()) + spelled
        before = self._letters.of(spelled[:-_BEFORE])
        if before is None:
            return None
        for letter, fits in ((UNLIKE, False), (STAND_IN, True)):
            letters = self._letters.of(letter.encode() * (_BEFORE + 1))
            found = _Way(self._grammar.start(), [])
            if letters is None or found.takes([*told, *before, *letters]) is not fits:
                return None
        return _Way(found.matcher, found.told, (self._tail[-_BEFORE:] + b"-").decode())


def _has(mask: NDArray[np.int32], token: int) -> bool:
    return bool(int(mask[token // 32]) >> token % 32 & 1)


def _allow(mask: NDArray[np.int32], token: int) -> None:
    mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)
