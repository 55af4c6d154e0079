"""A batch goes in, the sampled tokens come out: what all executors have in common.

It knows slices, samples and scores; it must not know requests, keys, stop rules or why a block is
where it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Batch, Candidates, Copy, Logprobs, Sampled, StepResult
from octavo.contract.layout import KVLayout
from octavo.runner.following import Following, name_refusals
from octavo.runner.inputs import InputBuilder, StepArrays, Target, Work
from octavo.runner.masks import Matchers
from octavo.runner.numpy_sampler import NumpySampler
from octavo.runner.pooling import Pools, States
from octavo.runner.sampler import Answer

MAX_IN_FLIGHT = 2
SCORED_ROWS = 64
"""Rows of a prompt whose logits are held at once: 12 MB with a vocabulary of 49,152."""

Logits = NDArray[np.float32]

LogitsObserver = Callable[[Batch, Logits], None]
"""Receives the logits of a step: [slices that sample, vocab_size], in slice order."""


class Executor(Protocol):
    """Holds weights and KV memory, and computes one step at a time."""

    @property
    def layout(self) -> KVLayout:
        """How the KV memory is laid out."""
        ...

    @property
    def num_blocks(self) -> int:
        """Blocks of KV memory."""
        ...

    @property
    def vocab_size(self) -> int:
        """Tokens that are scored."""
        ...

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy whole blocks, in order."""
        ...

    def compute(self, step: StepArrays) -> None:
        """Write the KV of all rows, and keep the last states of the sampled ones."""
        ...

    def logits(self, first: int, count: int) -> Logits:
        """Score the vocabulary after some of the sampled rows of the last step: [count, vocab]."""
        ...

    def states(self, first: int, count: int) -> States:
        """Return the last states of some of the sampled rows of the last step: [count, hidden].

        Normalized as they are before the vocabulary is scored.
        """
        ...

    def close(self) -> None:
        """Stop what goes on in the background; the executor is not used any more."""
        ...


class Sampler(Protocol):
    """Answers what a step asks about its sampled rows; `NumpySampler` says how."""

    def sample(self, work: Work, logits: Logits | None) -> list[Answer]:
        """Answer each sample of the last step. Raises ModelError.

        logits: of the rows that belong to samples, if somebody has looked at them.
        """
        ...

    def name(self, first: int, targets: list[Target]) -> list[Logprobs]:
        """Say how likely tokens were after the sampled rows from `first` on. Raises ModelError."""
        ...


class StepRunner:
    """Runs batches on one executor, in the order in which they are submitted.

    Moves are reported as failed: there is no tier but the device.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        sampler: Sampler | None = None,
        matchers: Matchers | None = None,
        on_logits: LogitsObserver | None = None,
    ) -> None:
        """sampler: None chooses with numpy. matchers: of grammars; None: there are none."""
        self._executor = executor
        self._sampler: Sampler = NumpySampler(executor) if sampler is None else sampler
        self._on_logits = on_logits
        self._inputs = InputBuilder(
            executor.layout, num_blocks=executor.num_blocks, vocab_size=executor.vocab_size
        )
        self._following = Following(matchers, executor.vocab_size)
        self._pools = Pools()
        self._results: deque[StepResult] = deque()
        self._closed = False

    def submit(self, batch: Batch) -> None:
        """Run one step; its result waits for `collect`.

        A batch that contradicts what is known fails an assertion and changes nothing. Whatever
        goes wrong in computing is reported in the result.
        """
        assert not self._closed, "submit after close"
        assert len(self._results) < MAX_IN_FLIGHT, (
            f"step {batch.step} is submitted with {len(self._results)} steps in flight"
        )
        self._inputs.check(batch)
        failed = tuple(move.id for move in batch.moves)
        try:
            result = self._compute(batch, StepResult(step=batch.step, failed=failed))
        except Exception as error:
            self._inputs.lose(batch)
            self._results.append(StepResult(step=batch.step, failed=failed, error=one_line(error)))
        else:
            self._results.append(result)

    def collect(self) -> StepResult:
        """Return the result of the oldest step in flight."""
        assert self._results, "collect without a step in flight"
        return self._results.popleft()

    def close(self) -> None:
        """Drop weights, KV memory and results that nobody collected; once more: no effect."""
        if self._closed:
            return
        self._closed = True
        self._results.clear()
        self._executor.close()
        del self._executor, self._sampler, self._inputs, self._following

    def _compute(self, batch: Batch, result: StepResult) -> StepResult:
        """Run a step; returns the result with what was sampled and scored."""
        self._inputs.advance(batch)
        self._following.forget(batch.ended)
        self._pools.forget(batch.ended)
        self._executor.copy(batch.copies)
        work = self._inputs.build(batch)
        if work is None:
            return result
        self._following.begin(work)
        self._executor.compute(work.inputs)
        if work.targets:
            self._score(work, result)
        if work.pools:
            first = work.sampled + len(work.targets)
            result.pooled.update(self._pools.take(work.pools, first, self._executor.states))
        logits: Logits | None = None
        if self._on_logits is not None:
            logits = self._executor.logits(0, work.sampled)
            self._on_logits(batch, logits)
        if work.samples:
            self._sample(work, logits, result)
            self._inputs.remember(result)
        return result

    def _sample(self, work: Work, logits: Logits | None, result: StepResult) -> None:
        """Choose a token, or find the likeliest ones, for each sample."""
        refusals = self._following.end()
        chosen = self._sampler.sample(work, logits)
        name_refusals(chosen, refusals)
        for one, answer in zip(work.samples, chosen, strict=True):
            if isinstance(answer, Sampled):
                result.sampled[one.seq] = answer
            elif isinstance(answer, Candidates):
                result.candidates[one.seq] = answer
            else:
                result.refused[one.seq] = answer.reason

    def _score(self, work: Work, result: StepResult) -> None:
        """Work out log-probabilities of prompts, a few rows at a time."""
        named: dict[int, list[Logprobs]] = {target.seq: [] for target in work.targets}
        for first in range(0, len(work.targets), SCORED_ROWS):
            tile = work.targets[first : first + SCORED_ROWS]
            for target, row in zip(
                tile, self._sampler.name(work.sampled + first, tile), strict=True
            ):
                named[target.seq].append(row)
        result.scored.update({seq: tuple(rows) for seq, rows in named.items()})


def one_line(error: Exception) -> str:
    """Say what happened: the type and the first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
