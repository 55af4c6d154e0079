"""A runner that computes nothing: it answers every sample with some token."""

from __future__ import annotations

from collections import deque

from octavo.contract.batch import Batch, Sampled, StepResult

_GOLDEN = 0x9E3779B97F4A7C15
_ALL_TOKENS = 2**31


class CountingRunner:
    """Stores no slot and no text; for measurements of the deciding plane.

    Tokens differ between sequences and steps, so that no two texts become equal by accident
    and the prefix cache finds only what is really shared.
    """

    def __init__(self, vocab_size: int = _ALL_TOKENS) -> None:
        self._vocab_size = vocab_size
        self._queue: deque[Batch] = deque()

    def submit(self, batch: Batch) -> None:
        """Queue a batch."""
        self._queue.append(batch)

    def collect(self) -> StepResult:
        """Return the oldest result. Every move ends well at once."""
        batch = self._queue.popleft()
        turn = batch.step * _GOLDEN
        sampled = {
            sample.seq: Sampled((sample.seed ^ turn) % self._vocab_size, 0.0)
            for piece in batch.slices
            for sample in piece.samples
        }
        return StepResult(batch.step, sampled, moved=tuple(move.id for move in batch.moves))

    def close(self) -> None:
        """Nothing to release."""
