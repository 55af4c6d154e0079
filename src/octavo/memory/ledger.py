"""Blocks that a step in flight writes: readable already, not yet safe to keep."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from octavo.contract.ids import SeqId, StepId
from octavo.memory.block import Block
from octavo.memory.table import Table


class Ledger:
    """Who publishes which tentative block in which step."""

    def __init__(self) -> None:
        self._open: dict[StepId, list[tuple[list[Block], SeqId]]] = {}
        self._closed: StepId = 0

    def note(self, step: StepId, blocks: list[Block], writer: SeqId) -> None:
        """Remember blocks that `step` writes for `writer`."""
        assert step > self._closed, f"step {step} has ended: it publishes nothing"
        self._open.setdefault(step, []).append((blocks, writer))

    def close(self, step: StepId) -> list[Block]:
        """Forget a step that went well; return its blocks that still hold what it wrote.

        A block that lost its text since (evicted, then written by a later step) is left out.
        """
        self._closed = step
        entries = self._open.pop(step, [])
        # Evicted and published once more within one step, a block stands here twice.
        return list(
            {
                block: None
                for written, _ in entries
                for block in written
                if block.written_step == step
            }
        )

    def reset(self) -> None:
        """Forget all tentative blocks: no step is in flight."""
        self._open.clear()

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

    def spread(
        self,
        failed: StepId,
        doomed: set[SeqId],
        tables: Mapping[SeqId, Table],
        blocks: list[Block],
    ) -> set[SeqId]:
        """Return the doomed sequences of a failed step and all that hold what they wrote.

        tables: of all sequences alive; blocks: by id. Changes nothing.
        """
        # A fork may hold what a sequence that has left meanwhile was to write.
        doomed = doomed | {seq for seq, table in tables.items() if table.inherited_step >= failed}
        while True:
            bad = {block.id for block in self.tainted(failed, doomed, tables)}
            # Forks also share what nobody can find by its text. Private blocks may be older; then
            # their readers compute once more than needed.
            bad |= {
                i
                for seq in doomed
                if seq in tables
                for i in tables[seq].blocks()
                if blocks[i].key is None or blocks[i].written_step
            }
            readers = {
                seq
                for seq, table in tables.items()
                if seq not in doomed and not bad.isdisjoint(table.blocks())
            }
            if not readers:
                return doomed
            doomed |= readers

    def steps(self) -> Iterable[StepId]:
        """Steps with tentative blocks."""
        return self._open.keys()
