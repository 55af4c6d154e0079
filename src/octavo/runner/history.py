"""The text before a sampled token, for options that look back at it."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Slice
from octavo.contract.ids import SeqId
from octavo.runner.column import Column

Ids = NDArray[np.intp]


class History:
    """One text, with a count of each token of its output. A new token costs O(1)."""

    __slots__ = ("_ids", "_places", "_prompt", "_prompt_length", "_seen", "_times", "tokens")

    def __init__(self, tokens: Iterable[int], prompt_length: int) -> None:
        self.tokens = list(tokens)
        """Prompt and output, in order."""
        self._prompt_length = prompt_length
        self._prompt = frozenset(self.tokens[:prompt_length])
        self._seen = Column(sorted(self._prompt), dtype=np.intp)
        self._places: dict[int, int] = {}
        self._ids = Column(dtype=np.intp)
        self._times = Column(dtype=np.float64)
        self._count(self.tokens[prompt_length:])

    def extend(self, tokens: Iterable[int]) -> None:
        """Append output tokens."""
        tokens = list(tokens)
        self.tokens += tokens
        self._count(tokens)

    def counts(self) -> tuple[Ids, NDArray[np.float64]]:
        """Return the output's tokens, each once, and how often each stands there.

        Valid until the text grows.
        """
        return self._ids.values(), self._times.values()

    def output_end(self, count: int) -> list[int] | None:
        """Return the last `count` tokens of the output; None: it has fewer."""
        if len(self.tokens) - count < self._prompt_length:
            return None
        return self.tokens[-count:]

    def seen(self) -> Ids:
        """Return the tokens of prompt and output, each once. Valid until the text grows."""
        return self._seen.values()

    def _count(self, tokens: list[int]) -> None:
        for token in tokens:
            place = self._places.setdefault(token, len(self._ids))
            if place < len(self._ids):
                self._times.increment(place)
                continue
            self._ids.append(token)
            self._times.append(1)
            if token not in self._prompt:
                self._seen.append(token)


class Histories:
    """The texts of the sequences that look back; no others are kept.

    A text begins with the past of the first slice that samples; later slices go on where the
    one before ended.
    """

    def __init__(self) -> None:
        self._by_seq: dict[SeqId, History] = {}

    def forget(self, seq: SeqId) -> None:
        """Drop a sequence's text. Unknown: no effect."""
        self._by_seq.pop(seq, None)

    def extend(self, seq: SeqId, token: int) -> None:
        """Append a token that the text lacked when a slice went on from it. Unknown: no effect."""
        known = self._by_seq.get(seq)
        if known is not None:
            known.extend((token,))

    def check(self, part: Slice, where: str, *, ended: bool) -> None:
        """Assert that the text before a slice is known if it is needed; changes nothing."""
        known = None if ended else self._by_seq.get(part.seq)
        if known is not None:
            assert not part.past, f"{where}: its past is known already"
            have = len(known.tokens)
        elif any(sample.looks_back for sample in part.samples):
            have = len(part.past)
        else:
            assert not part.past, f"{where}: a past, but no sample looks back"
            return
        assert have == part.start, f"{where}: starts at {part.start}, its past has {have} tokens"

    def follow(self, part: Slice, tokens: Iterable[int]) -> History | None:
        """Append a slice's tokens; returns the text up to its end, None: nobody looks back."""
        known = self._by_seq.get(part.seq)
        if known is not None:
            known.extend(tokens)
        elif any(sample.looks_back for sample in part.samples):
            length = part.samples[0].prompt_length
            known = self._by_seq[part.seq] = History((*part.past, *tokens), length)
        return known
