"""Texts of a wanted number of tokens that no cache has seen, from single words."""

from __future__ import annotations

import re
from collections.abc import Iterable
from random import Random

from octavo.bench.texts import read_text

_SPACES = ("Ġ", "▁", " ")
"""How token strings begin that stand for a word with a space before it."""
_MOST_LETTERS = 5
_FEWEST_WORDS = 50


class Words:
    """Words that are a token each, with the space before them.

    Since a tokenizer splits texts at spaces first, a row of them has as many tokens as words.
    """

    def __init__(self, words: Iterable[str], *, exact: bool) -> None:
        self._words = sorted(set(words))
        self.exact = exact
        """False: no tokenizer was asked; short, frequent words are a token each as a rule."""

    @classmethod
    def from_tokens(cls, strings: list[str]) -> Words | None:
        """Take the words of a tokenized text. None: its tokens do not show spaces, or are few."""
        marks = [next((m for m in _SPACES if string.startswith(m)), "") for string in strings]
        words = {
            string.removeprefix(mark)
            for string, mark, follows in zip(strings, marks, marks[1:], strict=False)
            if mark and follows and string.removeprefix(mark).isalpha() and string.isprintable()
        }
        plain = [word for word in words if word.isascii()]
        return cls(plain, exact=True) if len(plain) >= _FEWEST_WORDS else None

    @classmethod
    def guessed(cls) -> Words:
        """Take short words of our own text."""
        found = re.findall(r"[a-z]+", read_text(None))
        return cls((word for word in found if len(word) <= _MOST_LETTERS), exact=False)

    @classmethod
    def numbers(cls, vocab_size: int) -> Words:
        """Take the token ids of a vocabulary, for a server that reads no texts."""
        return cls(map(str, range(vocab_size)), exact=True)

    def shuffled(self, salt: str) -> Words:
        """Return the same words in another order, so that the same draws give other texts."""
        other = Words(self._words, exact=self.exact)
        Random(f"words {salt}").shuffle(other._words)
        return other

    def text(self, tokens: int, random: Random) -> str:
        """Draw a text of so many tokens; it begins with a space."""
        return "".join(f" {word}" for word in random.choices(self._words, k=tokens))
