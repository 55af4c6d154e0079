"""The sampler of every executor that has none of its own: whole rows of logits, and numpy."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Logprobs
from octavo.runner.inputs import Target, Work
from octavo.runner.logprobs import name_likely
from octavo.runner.sampler import Answer, check_finite, sample


class Scores(Protocol):
    """What is asked of an executor."""

    def logits(self, first: int, count: int) -> NDArray[np.float32]:
        """Score the vocabulary after some of the sampled rows of the last step: [count, vocab]."""
        ...


class NumpySampler:
    """Chooses with `sampler.sample`."""

    def __init__(self, executor: Scores) -> None:
        self._executor = executor

    def sample(self, work: Work, logits: NDArray[np.float32] | None) -> list[Answer]:
        """Answer each sample of the last step. Raises ModelError."""
        rows = self._executor.logits(0, work.sampled) if logits is None else logits
        if len(rows) != len(work.samples):
            rows = rows[work.sample_rows]
        return sample(rows, work.samples, work.positions, work.histories, work.masks or None)

    def name(self, first: int, targets: list[Target]) -> list[Logprobs]:
        """Say how likely tokens were after some of the sampled rows. Raises ModelError."""
        rows = self._executor.logits(first, len(targets))
        named: list[Logprobs] = []
        for row, target in zip(rows, targets, strict=True):
            check_finite(row, f"the prompt of sequence {target.seq}")
            named.append(name_likely(row, target.token, target.top))
        return named
