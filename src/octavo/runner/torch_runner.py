"""The torch executor: a batch goes in, the sampled tokens come out.

It holds bytes and computes; it must not know requests, keys, stop rules or why a block is where
it is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor

from octavo.attention.backend import AttentionBackend
from octavo.contract.batch import Batch, Candidates, Logprobs, StepResult
from octavo.errors import ConfigError
from octavo.models.decoder import Decoder
from octavo.models.exact import exact_row_tiles
from octavo.models.rows import ALL_AT_ONCE
from octavo.pages.arena import Arena
from octavo.runner.inputs import InputBuilder, Work
from octavo.runner.logprobs import name_likely
from octavo.runner.sampler import Refused, check_finite, sample
from octavo.runner.tensors import step_tensors

MAX_IN_FLIGHT = 2
SCORED_ROWS = 64
"""Rows of a prompt whose logits are held at once: 12 MB with a vocabulary of 49,152."""

LogitsObserver = Callable[[Batch, Tensor], None]
"""Receives the logits of a step: [slices that sample, vocab_size] float32, in slice order."""


class TorchRunner:
    """Runs batches on one torch device, in the order in which they are submitted.

    deterministic: a token's logits have the same bits whether its prefix was reused or computed,
    whatever else is in the step and however the prompt was cut. Raises ConfigError if the backend
    cannot promise that, or cannot read what the arena stores. Moves are reported as failed: there
    is no tier but the device.
    """

    def __init__(
        self,
        decoder: Decoder,
        arena: Arena,
        backend: AttentionBackend,
        *,
        deterministic: bool = False,
        on_logits: LogitsObserver | None = None,
    ) -> None:
        if deterministic and not backend.batch_invariant:
            raise ConfigError(
                f"{type(backend).__name__} cannot give the same bits in every batch on "
                f"{arena.device}; choose another backend or turn deterministic off"
            )
        _check_formats(backend, arena)
        self.row_tiles = exact_row_tiles(decoder) if deterministic else ALL_AT_ONCE
        """In which row counts steps are computed; `sizes` is empty unless deterministic."""
        self._decoder = decoder
        self._arena = arena
        self._backend = backend
        self._on_logits = on_logits
        self._inputs = InputBuilder(
            arena.layout,
            num_blocks=arena.num_blocks,
            vocab_size=decoder.spec.vocab_size,
        )
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
            self._results.append(StepResult(step=batch.step, failed=failed, error=_one_line(error)))
        else:
            self._results.append(result)

    def collect(self) -> StepResult:
        """Return the result of the oldest step in flight."""
        assert self._results, "collect without a step in flight"
        return self._results.popleft()

    def close(self) -> None:
        """Drop results that nobody collected; a second call has no effect."""
        self._closed = True
        self._results.clear()

    @torch.inference_mode()
    def _compute(self, batch: Batch, result: StepResult) -> StepResult:
        """Run a step; returns the result with what was sampled and scored."""
        self._inputs.advance(batch)
        self._arena.copy(batch.copies)
        work = self._inputs.build(batch)
        if work is None:
            return result
        inputs = step_tensors(work.inputs, self._arena.device)
        self._backend.plan(inputs)
        if work.scores:
            states = self._decoder.states(inputs, self._backend, self.row_tiles)
            logits = self._decoder.score(states[: work.sampled], self.row_tiles)
            self._score(work, states[work.sampled :], result)
        else:
            logits = self._decoder.forward(inputs, self._backend, self.row_tiles)
        if self._on_logits is not None:
            self._on_logits(batch, logits)
        if work.samples:
            self._sample(work, logits, result)
            self._inputs.remember(result)
        return result

    def _sample(self, work: Work, logits: Tensor, result: StepResult) -> None:
        """Choose a token, or find the likeliest ones, for each sample."""
        rows = logits.cpu().numpy()
        if len(rows) != len(work.samples):
            rows = rows[work.sample_rows]
        chosen = sample(rows, work.samples, work.positions, work.histories)
        for one, answer in zip(work.samples, chosen, strict=True):
            if isinstance(answer, Refused):
                result.refused[one.seq] = answer.reason
            elif isinstance(answer, Candidates):
                result.candidates[one.seq] = answer
            else:
                result.sampled[one.seq] = answer

    def _score(self, work: Work, states: Tensor, result: StepResult) -> None:
        """Work out log-probabilities of prompts, a few rows at a time.

        states: one row of the last layer for each target.
        """
        wanted = ((seq, score.top, t) for seq, score in work.scores for t in score.targets)
        named: dict[int, list[Logprobs]] = {seq: [] for seq, _ in work.scores}
        for tile in states.split(SCORED_ROWS):
            for row in self._decoder.score(tile, self.row_tiles).cpu().numpy():
                seq, top, target = next(wanted)
                check_finite(row, f"the prompt of sequence {seq}")
                named[seq].append(name_likely(row, target, top))
        result.scored.update({seq: tuple(rows) for seq, rows in named.items()})


def _check_formats(backend: AttentionBackend, arena: Arena) -> None:
    """Raise ConfigError if a backend cannot read what the arena stores."""
    if backend.reads is None:
        return
    strange = {arena.layout.keys.name, arena.layout.values.name} - backend.reads
    if strange:
        raise ConfigError(
            f"{type(backend).__name__} reads KV stored as {', '.join(sorted(backend.reads))}, not "
            f"as {' or '.join(sorted(strange))}: choose one of these as kv_cache_dtype, or another "
            "attention_backend"
        )


def _one_line(error: Exception) -> str:
    """Say what happened: the type and the first line of the message."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
