"""What steps write into the blocks of tables: counted, and findable as soon as a block is full."""

from __future__ import annotations

from octavo.contract.ids import StepId
from octavo.contract.request import Sequence
from octavo.memory.groups import Groups
from octavo.memory.keys import extend_keys
from octavo.memory.ledger import Ledger
from octavo.memory.prefix import run_texts
from octavo.memory.retentions import Retentions
from octavo.memory.table import Table
from octavo.memory.tier import Tier


class Writer:
    """Fills blocks and publishes them, tentative until the step that writes them went well."""

    def __init__(
        self, groups: Groups, device: Tier, ledger: Ledger, retentions: Retentions
    ) -> None:
        self._groups = groups
        self._sizes = groups.sizes
        self._device = device
        self._pool = device.pool
        self._ledger = ledger
        self._retentions = retentions

    def write(self, seq: Sequence, table: Table, start: int, upto: int, step: StepId) -> None:
        """Note that `step` writes positions start … upto - 1, and publish what becomes full."""
        if upto == start:
            return
        for group, size in enumerate(self._sizes):
            ids, end = table.ids[group], upto // size
            if start // size < end:
                self._pool.fill_whole(ids[start // size : end], size)
            if upto % size:
                self._pool.fill(ids[end], upto % size)
        if step != table.last_step:
            table.note_write(step, start)
        known = min(upto, len(seq.tokens))
        if known - table.sealed >= self._groups.unit:
            self._publish(seq, table, known, step)

    def note_copies(self, table: Table, start: int, step: StepId) -> None:
        """Note that `step` may also write what lies before `start` in its block, by copying."""
        table.note_write(step, start // self._groups.align * self._groups.align)

    def seal(self, seq: Sequence, table: Table) -> None:
        """Publish blocks whose last token has become known after they were planned."""
        known = min(seq.scheduled, seq.length)
        if known - table.sealed >= self._groups.unit:
            self._publish(seq, table, known, table.last_step)

    def _publish(self, seq: Sequence, table: Table, known: int, step: StepId) -> None:
        groups = self._groups
        extend_keys(seq, groups.unit, known)
        for group, size in enumerate(self._sizes):
            first, end = max(table.sealed // size, table.first[group]), known // size
            if first < end:
                blocks = [self._pool.blocks[i] for i in table.ids[group][first:end]]
                texts = run_texts(groups, seq, group, first, end)
                published = self._device.publish_run(group, blocks, texts, step)
                if published:
                    self._retentions.keep(table, published)
                    self._ledger.note(step, published, seq.id)
        table.sealed = known // groups.align * groups.align
