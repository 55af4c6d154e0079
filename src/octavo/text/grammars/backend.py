"""What a library that makes grammars has to bring: a row of a table, and a matcher per output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.contract.structured import StructuredOutputs
from octavo.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The tokens that grammars are made over."""

    definition: str
    """The tokenizer, as tokenizer.json has it."""
    size: int
    """Tokens that the model scores; those without a text are never allowed."""
    ends: tuple[int, ...]
    """Each of them ends an answer; allowed once the answer is complete."""
    spell: Callable[[int], bytes]
    """Gives the bytes that a token contributes to a text."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, size: int) -> Vocabulary:
        """Return that of a tokenizer, for a model that scores so many tokens."""
        ends = sorted(end for end in tokenizer.eos_token_ids if end < size)
        return cls(tokenizer.definition(), size, tuple(ends), tokenizer.token_bytes)


class TokenMatcher(Protocol):
    """Follows one output; what the runner asks of it is in `runner.masks.Matcher`."""

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens that follow those before. Raises RequestError where they do not fit."""
        ...

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next, a bit each. Raises RequestError at a limit on work."""
        ...


class Grammar(Protocol):
    """A form that has been compiled."""

    def start(self) -> TokenMatcher:
        """Return a matcher at the beginning of an output; quick, and independent of all others."""
        ...


class GrammarMaker(Protocol):
    """One library with one vocabulary; for use from one thread at a time."""

    def compile(self, form: StructuredOutputs) -> Grammar:
        """Compile a form, within limits on work and size; others run meanwhile.

        Raises RequestError, which begins with structured_outputs and the form's name, and quotes
        the part that cannot be compiled.
        """
        ...
