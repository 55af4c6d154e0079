"""A form that means nothing, but binds: what may come depends on every token of the output."""

from __future__ import annotations

from concurrent.futures import Future
from hashlib import blake2b

import numpy as np

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.runner.masks import Mask, mask_words

_SHARE = 2 / 3
"""Of the vocabulary, what may come next; at least `_LEAST` tokens."""
_LEAST = 5


def fake_form(number: int) -> StructuredOutputs:
    """Return one of many forms."""
    return StructuredOutputs(regex=f"fake {number}")


def allowed_tokens(form: StructuredOutputs, output: list[int], vocab_size: int) -> frozenset[int]:
    """Return what a form lets come after an output: two thirds of all tokens, by their hash."""
    text = form.text.encode() + np.array(output, dtype="<i4").tobytes()
    state = blake2b(text, person=b"fake form").digest()
    count = min(vocab_size, max(_LEAST, int(vocab_size * _SHARE)))
    ranked = sorted(range(vocab_size), key=lambda token: (state[token % 64] ^ token >> 6, token))
    return frozenset(ranked[:count])


def expected_text(form: StructuredOutputs, count: int, vocab_size: int) -> list[int]:
    """Return an output that a form allows."""
    output: list[int] = []
    for _ in range(count):
        output.append(min(allowed_tokens(form, output, vocab_size)))
    return output


def random_mask(draw: np.random.Generator, size: int) -> Mask:
    """Allow no token, a few, half of them, or all but a few."""
    share = draw.choice([0.0, 0.01, 0.5, 0.99, 1.0], p=[0.05, 0.3, 0.2, 0.3, 0.15])
    bits = np.zeros(32 * mask_words(size), dtype=np.uint8)
    bits[:size] = draw.random(size) < share
    bits[size:] = 1  # of no token
    return np.packbits(bits, bitorder="little").view("<i4").astype(np.int32)


class FakeMatcher:
    """Follows one output; remembers what it has been told."""

    def __init__(self, form: StructuredOutputs, vocab_size: int) -> None:
        self.output: list[int] = []
        self._form = form
        self._vocab_size = vocab_size

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens. Raises RequestError for one that was not allowed."""
        for token in tokens:
            if token not in allowed_tokens(self._form, self.output, self._vocab_size):
                raise RequestError(f"token {token} may not follow {self.output}")
            self.output.append(token)

    def fill(self, mask: Mask) -> None:
        """Write which tokens may come next."""
        bits = np.zeros(32 * len(mask), dtype=np.uint8)
        bits[list(allowed_tokens(self._form, self.output, self._vocab_size))] = 1
        mask[:] = np.packbits(bits, bitorder="little").view("<i4")


class FakeGrammars:
    """Compiles nothing, at once; implements `engine.grammars.Grammars` and `runner.masks.Matchers`.

    started: every matcher that was begun.
    """

    def __init__(self, vocab_size: int) -> None:
        self.started: list[FakeMatcher] = []
        self._vocab_size = vocab_size

    def begin(self, form: StructuredOutputs) -> Future[None]:
        """It is done."""
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def start(self, form: StructuredOutputs) -> FakeMatcher:
        """Return a matcher at the beginning of an output."""
        self.started.append(FakeMatcher(form, self._vocab_size))
        return self.started[-1]

    def close(self) -> None:
        """Nothing is open."""
