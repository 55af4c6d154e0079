"""Which tokens a grammar lets come next: what the runner asks of whoever knows grammars.

Needs numpy only. What was compiled stays with its maker; the runner holds one matcher for each text
that a grammar binds, and tells it the text as it grows.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from octavo.contract.structured import StructuredOutputs

Mask: TypeAlias = NDArray[np.int32]
"""[ceil(vocab / 32)]: token t may come if bit t % 32 of word t // 32 is set; tokens beyond it may
not."""


class Matcher(Protocol):
    """Follows one output through a grammar."""

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens that follow those before. Raises RequestError where they do not fit."""
        ...

    def fill(self, mask: Mask) -> None:
        """Write which tokens may come next; the end of the text among them once it is complete.

        May be called beside the step that computes the logits, for one matcher at a time. Raises
        RequestError if a limit on work is reached.
        """
        ...


class Matchers(Protocol):
    """Begins to follow an output."""

    def start(self, form: StructuredOutputs) -> Matcher:
        """Return a matcher at the beginning of an output.

        Quick if the form was compiled before and is remembered; else it is compiled now. Raises
        RequestError.
        """
        ...


def mask_words(vocab_size: int) -> int:
    """Return how many words a mask has."""
    return -(-vocab_size // 32)


def allowed_by(mask: Mask, vocab_size: int) -> NDArray[np.bool_]:
    """Return for each token whether it may come: [vocab_size]."""
    bits = np.unpackbits(mask.astype("<i4").view(np.uint8), bitorder="little")
    allowed = np.zeros(vocab_size, dtype=np.bool_)
    allowed[: len(bits)] = bits[:vocab_size]
    return allowed
