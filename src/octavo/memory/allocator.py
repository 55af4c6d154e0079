"""Gives blocks to tables and takes them back: on demand, all or nothing, copied on write."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from octavo.contract.batch import Copy
from octavo.contract.ids import BlockId, StepId
from octavo.memory.block import Block
from octavo.memory.groups import Groups
from octavo.memory.pool import BlockPool
from octavo.memory.promises import Promises
from octavo.memory.returns import Returns
from octavo.memory.shares import Account
from octavo.memory.table import Table


class Allocator:
    """Moves blocks between the device's pool and tables; knows no text."""

    def __init__(self, groups: Groups, pool: BlockPool) -> None:
        self.promises = Promises(groups, pool.shares)
        self.collected: StepId = 0
        """The last step whose outcome is known; written by the manager."""
        self._groups = groups
        self._sizes = groups.sizes
        self._pool = pool
        self._copies: list[Copy] = []

    def take_copies(self) -> tuple[Copy, ...]:
        """Return the copies that must run before the next step's first write."""
        copies = tuple(self._copies)
        self._copies.clear()
        return copies

    def copy(self, source: Block, target: BlockId, step: StepId) -> None:
        """Let `step` copy a block that somebody else may have from then on."""
        self._copies.append(Copy(source.id, target))
        source.busy_step = max(source.busy_step, step)

    def reset(self) -> None:
        """No table has a block, and no copy waits for a step."""
        self._copies.clear()
        self.promises.reset()

    def grow(self, *parts: tuple[Table, int, int]) -> bool:
        """Let tables own their partial block and have blocks up to a position; or change nothing.

        parts: (table, start, upto), all of one tenant. Blocks that no query from `start` on sees
        come back first.
        """
        pool, shares = self._pool, self._pool.shares
        account = parts[0][0].account
        changing = [(table, at) for table, at, _ in parts if table.forked or at >= table.frees_at]
        taken, back, lent = self._exchange(account, changing) if changing else (0, 0, 0)
        promised = 0
        missing: list[list[int]] = []
        for table, _, upto in parts:
            counts = self._missing(table, upto)
            missing.append(counts)
            taken += sum(counts)
            promised += min(sum(counts), table.owed)
        need, room = taken - back, max(0, shares.room(account, lent))
        # A tenant may be above its maximum: then it takes nothing, even for what it gives back.
        if taken and (need > shares.takeable(account, lent) or need - promised > room):
            return False
        for table, start in changing:
            self._cut(table, start)
        for counts, (table, start, _) in zip(missing, parts, strict=True):
            if table.forked:
                self._own_tails(table, start)
            for group, count in enumerate(counts):
                if count:
                    table.append(group, pool.take(count, group, account))
            table.measure(self._groups)
            self.promises.update(table)
        return True

    def _exchange(self, account: Account, tables: list[tuple[Table, int]]) -> tuple[int, int, int]:
        """Blocks that tables with these next positions need for copies, and those that come back.

        Returns with them how many come back to other tenants, and can be had of them. Of those who
        share a tail, the last may keep it if nobody else holds it; a passed block comes back with
        its last holder, unless a pin keeps it; or it becomes another tenant's that holds it.
        """
        blocks = self._pool.blocks
        tails = Counter(i for table, start in tables for i in self._tail(table, start))
        passed = Counter(i for table, start in tables for i in self._passed(table, start))
        copies = sum(n - (blocks[i].refs == n) for i, n in tails.items())
        returns = Returns(self._pool.shelves.pins)
        for block_id, count in passed.items():
            block = blocks[block_id]
            for left in range(block.refs - 1, block.refs - count - 1, -1):
                returns.leave(block, account, last=left == 0, cached=block.key is not None)
        return copies, returns.back[account], returns.lent(account)

    def _missing(self, table: Table, upto: int) -> list[int]:
        """Per group, the blocks that a table lacks for `upto` tokens."""
        return [
            max(0, -(-upto // size) - len(ids))
            for ids, size in zip(table.ids, self._sizes, strict=True)
        ]

    def _passed(self, table: Table, start: int) -> list[BlockId]:
        """The blocks that no query from position `start` on sees."""
        if start < table.frees_at:
            return []
        return [
            block
            for group, ids in enumerate(table.ids)
            for block in ids[table.first[group] : self._groups.first_seen(group, start)]
        ]

    def _cut(self, table: Table, start: int) -> None:
        """Give up the blocks that no query from position `start` on sees."""
        if start < table.frees_at:
            return
        for group in range(len(self._groups)):
            gone = table.cut_front(group, self._groups.first_seen(group, start))
            self.drop(gone, table)

    def _tail(self, table: Table, start: int) -> list[BlockId]:
        """The partial blocks about to be written that others hold too."""
        if not table.forked:
            return []
        tails = (
            table.ids[group][start // size]
            for group, size in enumerate(self._sizes)
            if start % size
        )
        return [block for block in tails if self._pool.blocks[block].refs > 1]

    def _own_tails(self, table: Table, start: int) -> None:
        """Copy the partial blocks about to be written that others still hold."""
        pool = self._pool
        for group, size in enumerate(self._sizes):
            index = start // size
            if start % size == 0 or pool.blocks[table.ids[group][index]].refs == 1:
                continue
            old = table.ids[group][index]
            (new,) = pool.take(1, group, table.account)
            pool.fill(new, pool.blocks[old].filled)
            pool.drop([old], table.account)
            table.ids[group][index] = new
            table.sent[group] = min(table.sent[group], index)
            table.told[group] = min(table.told[group], index)
            self._copies.append(Copy(old, new))
        table.forked = False

    def drop(self, ids: Iterable[BlockId], table: Table, last_step: StepId | None = None) -> None:
        """Let go of blocks of a table that steps in flight up to `last_step` may still touch.

        None: the last one that writes there.
        """
        last = table.last_step if last_step is None else last_step
        if last > self.collected:
            ids = list(ids)
            for block_id in ids:
                block = self._pool.blocks[block_id]
                block.busy_step = max(block.busy_step, last)
        self._pool.drop(ids, table.account)
