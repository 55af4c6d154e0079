"""Blocks that a step in flight writes: readable already, not yet safe to keep."""

from __future__ import annotations

from collections.abc import Container, Iterable

from octavo.contract.ids import SeqId, StepId
from octavo.memory.block import Block


class Ledger:
    """Who publishes which tentative block in which step."""

    def __init__(self) -> None:
        self._open: dict[StepId, list[tuple[list[Block], SeqId]]] = {}

    def note(self, step: StepId, blocks: list[Block], writer: SeqId) -> None:
        """Remember blocks that `step` writes for `writer`."""
        self._open.setdefault(step, []).append((blocks, writer))

    def close(self, step: StepId) -> list[Block]:
        """Forget a step that went well; return its blocks that still hold what it wrote.

        A block that lost its text since (evicted, then written by a later step) is left out.
        """
        entries = self._open.pop(step, [])
        # Evicted and published once more within one step, a block stands here twice.
        blocks = dict.fromkeys(
            block for written, _ in entries for block in written if block.written_step == step
        )
        return list(blocks)

    def tainted(self, failed: StepId, doomed: set[SeqId], alive: Container[SeqId]) -> list[Block]:
        """Return the tentative blocks that cannot be trusted after a failed step.

        Those are the blocks of that step, and those that later steps write for a doomed
        sequence, or for one that is no longer alive and may have read them. Forgets nothing.
        """
        return [
            block
            for step, entries in self._open.items()
            if step >= failed
            for blocks, writer in entries
            if step == failed or writer in doomed or writer not in alive
            for block in blocks
            if block.written_step == step
        ]

    def steps(self) -> Iterable[StepId]:
        """Steps with tentative blocks."""
        return self._open.keys()
