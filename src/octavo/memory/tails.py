"""Parts of blocks: copied or taken over where a text begins in one, kept where it ends in one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from octavo.contract.ids import BlockId, StepId
from octavo.contract.request import Sequence
from octavo.memory.allocator import Allocator
from octavo.memory.block import Block
from octavo.memory.groups import Groups
from octavo.memory.kept import kept_at
from octavo.memory.keys import TOKEN_BYTES, chain, extend_keys, token_bytes
from octavo.memory.shares import Account
from octavo.memory.table import Table
from octavo.memory.tier import Text, Tier


class Tails:
    """Gives new tables what a hit has of its last block, and keeps what old ones have of theirs."""

    def __init__(self, groups: Groups, device: Tier, allocator: Allocator) -> None:
        self._sizes = groups.sizes
        self._groups = groups
        self._device = device
        self._pool = device.pool
        self._allocator = allocator

    def begin(self, table: Table, tails: Iterable[Block | None], end: int, step: StepId) -> None:
        """Let a new table's text go on, up to position `end`, in parts of blocks.

        tails: per group, the block that begins with what the text goes on with, or None. What a
        text of the same tenant has left behind as its end is taken over, if nobody else wants it;
        the rest is copied by `step`. As many blocks are taken as there are tails, and that many
        must be available.
        """
        sources = {group: tail for group, tail in enumerate(tails) if tail is not None}
        mine: dict[int, BlockId] = {}
        for group, source in sources.items():
            shared = end % self._sizes[group]
            wanted = source.refs or self._pool.shelves.pins.payer(source)
            if len(source.tokens) == shared * TOKEN_BYTES and not wanted and _free(source, table):
                self._device.claim(source)
                mine[group] = source.id
            # A token or two, such as the one that every text begins with, are no use of a block.
            elif 2 * shared >= self._sizes[group]:
                self._pool.reuse([source.id])
                self._pool.drop([source.id])
        copied = {group: one for group, one in sources.items() if group not in mine}
        self._copy(copied, mine, table.account, end, step)
        for group, block in mine.items():
            table.append(group, [block])
        # Copying is writing, and whoever has no share in the step depends on it all the same.
        table.inherited_step = step
        table.note_write(step, end // self._groups.align * self._groups.align)

    def _copy(
        self,
        sources: dict[int, Block],
        mine: dict[int, BlockId],
        account: Account,
        end: int,
        step: StepId,
    ) -> None:
        """Add to `mine` a block with the content of each group's source."""
        pool = self._pool
        taken = [pool.take(1, group, account)[0] for group in sources]
        spare = list(set(taken) - {source.id for source in sources.values()})
        for group, source in sources.items():
            # A source that was evicted for this table holds what it should already.
            new = source.id if source.id in taken else spare.pop()
            pool.assign(new, group)
            pool.fill(new, end % self._sizes[group])
            mine[group] = new
            if new != source.id:
                self._allocator.copy(source, new, step)

    def keep(self, seq: Sequence, table: Table) -> None:
        """Publish the last, partly filled blocks of a table that is about to be given up.

        Only what collected steps have written counts, and only what no other block holds too.
        """
        for block, text, end in self._ends(seq, table, {}):
            self._device.publish(block, text)
            block.kept = kept_at(table.keeps, end)

    def kept(self, seq: Sequence, table: Table, gone: Mapping[BlockId, int]) -> set[BlockId]:
        """Return what `keep` would publish, once so many holders of each block are gone."""
        return {block.id for block, _, _ in self._ends(seq, table, gone)}

    def _ends(
        self, seq: Sequence, table: Table, gone: Mapping[BlockId, int]
    ) -> Iterator[tuple[Block, Text, int]]:
        """Yield the blocks to be kept, with their texts and where these end."""
        siblings, end = self._device.siblings, self._written(seq, table)
        if siblings is None or not end:
            return
        groups = self._groups
        extend_keys(seq, groups.unit, end)
        for group, size in enumerate(self._sizes):
            index = end // size
            if end % size == 0 or index < table.first[group]:
                continue
            block = self._pool.blocks[table.ids[group][index]]
            if block.key is not None or block.refs > max(1, gone.get(block.id, 0)):
                continue
            start = index * size
            parent = seq.keys[start // groups.unit - 1] if start else seq.root
            tokens = token_bytes(seq.tokens[start:end])
            known = siblings.best(group, parent, tokens)
            if known is None or known[1] < end - start:
                yield block, Text(chain(parent, tokens), parent, tokens, index), end

    def _written(self, seq: Sequence, table: Table) -> int:
        """Return how many leading tokens collected steps have written for certain."""
        collected = self._allocator.collected
        if table.tainted:
            return 0
        if table.last_step <= collected:
            return min(seq.scheduled, seq.length)
        if table.earlier_step <= collected:
            return min(table.last_start, seq.length)
        return 0


def _free(source: Block, table: Table) -> bool:
    """True if a text may take over another's end: on one account, and not kept in any way."""
    return source.account is table.account and source.kept is None
