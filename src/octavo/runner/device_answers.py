"""The answers of a device's sampler on their way to the host, and how they are read there.

Reading touches host memory only.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from torch import Tensor

from octavo.contract.batch import Candidates, Logprobs, Sampled
from octavo.runner.device_names import Names
from octavo.runner.device_rows import Piece
from octavo.runner.device_staging import Array, Fetched
from octavo.runner.inputs import Target, Work
from octavo.runner.sampler import Answer, broken_row, nothing_left


class Layout(NamedTuple):
    """What comes back after a token, a log-probability and a count of bad logits a sample."""

    order: list[int]
    """The numbers of the samples, as they come back."""
    candidates: list[Piece]
    """Pieces of samples that ask for candidates: ids, then values."""
    names: Names | None
    """At the end: the names of those that ask for log-probabilities; None: nobody does."""


class Launched:
    """What has been begun for one step."""

    def __init__(
        self, tokens: Tensor, returned: Fetched, work: Work, layout: Layout, vocab_size: int
    ) -> None:
        self.tokens = tokens
        """[samples] int64 on the device: what comes next in each text. Some token of the vocabulary
        also where there is none, since a sample is refused or asks for candidates."""
        self._returned = returned
        self._work = work
        self._layout = layout
        self._vocab_size = vocab_size

    def answers(self) -> list[Answer]:
        """Answer each sample; the device must have passed the launch.

        Raises ModelError if a logit is not finite.
        """
        chosen, values, broken, *rest = self._returned.arrays()
        order, pieces, names = self._layout
        self._check_finite(broken)
        tokens, logprobs = chosen.tolist(), values.tolist()
        found = _read_candidates(rest, pieces)
        named: dict[int, Logprobs] = {}
        if names is not None:
            named = names.read(rest[2 * len(pieces) :], tokens, logprobs)
        answers: dict[int, Answer] = {}
        for place, number in enumerate(order):
            one = self._work.samples[number]
            if one.candidates:
                ids, likely = found[place]
                answers[number] = _candidates(ids, likely, one.candidates)
            elif tokens[place] < 0:
                answers[number] = nothing_left(one, self._work.positions[number])
            else:
                answers[number] = Sampled(tokens[place], logprobs[place], named.get(place))
        return [answers[number] for number in range(len(order))]

    def _check_finite(self, broken: Array) -> None:
        if not broken.any():
            return
        counts = dict(zip(self._layout.order, broken.tolist(), strict=True))
        number = min(number for number, count in counts.items() if count)
        seq, position = self._work.samples[number].seq, self._work.positions[number]
        where = f"sequence {seq} at position {position}"
        raise broken_row(counts[number], self._vocab_size, where)


class LaunchedNames:
    """Log-probabilities of prompts that have been begun."""

    def __init__(
        self, returned: Fetched, targets: list[Target], names: Names, vocab_size: int
    ) -> None:
        self._returned = returned
        self._targets = targets
        self._names = names
        self._vocab_size = vocab_size

    def answers(self) -> list[Logprobs]:
        """Describe each target; the device must have passed the launch.

        Raises ModelError if a logit is not finite.
        """
        logprobs, broken, *rest = self._returned.arrays()
        for target, count in zip(self._targets, broken.tolist(), strict=True):
            if count:
                where = f"the prompt of sequence {target.seq}"
                raise broken_row(count, self._vocab_size, where)
        tokens = [target.token for target in self._targets]
        named = self._names.read(rest, tokens, logprobs.tolist())
        return [named[place] for place in range(len(tokens))]


def _read_candidates(
    found: list[Array], pieces: list[Piece]
) -> dict[int, tuple[list[int], list[float]]]:
    """Return ids and values of each place in working order that asks for candidates."""
    likely: dict[int, tuple[list[int], list[float]]] = {}
    for number, piece in enumerate(pieces):
        ids, values = (one.tolist() for one in found[2 * number : 2 * number + 2])
        for row, place in enumerate(range(piece.first, piece.last)):
            likely[place] = ids[row], values[row]
    return likely


def _candidates(ids: list[int], values: list[float], count: int) -> Candidates:
    """Banned tokens come last: they are left out."""
    count = min(count, sum(value > -math.inf for value in values))
    return Candidates(tuple(ids[:count]), tuple(values[:count]))
