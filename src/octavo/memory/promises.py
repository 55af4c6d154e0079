"""Blocks that admitted sequences can count on, and that nobody else may be given.

A sequence is admitted only if its known text and one more token fit; from then on it is owed what
it has not taken yet. Behind a window blocks come back while a prompt is computed, so that less
than the whole text is owed; but a block that another sequence shares does not come back, so that
with windows the promise is a good estimate and no guarantee.
"""

from __future__ import annotations

from collections.abc import Iterable

from octavo.contract.request import Sequence
from octavo.errors import Corrupted
from octavo.memory.groups import Groups
from octavo.memory.shares import Shares
from octavo.memory.table import Table


class Promises:
    """Keeps `Table.owed`, and the sum over all tables."""

    def __init__(self, groups: Groups, shares: Shares) -> None:
        self._groups = groups
        self._shares = shares
        self.owed = 0
        """Blocks promised and not taken, all sequences together."""

    def text_of(self, seq: Sequence) -> int:
        """Length of the text for which a sequence is promised room when it is admitted."""
        return max(seq.length + 1, min(seq.spared_until, seq.limit))

    def blocks_of(self, seq: Sequence) -> int:
        """Blocks, shared ones included, that a sequence is promised when it is admitted."""
        tokens = self.text_of(seq)
        return sum(self._groups.peak(group, tokens) for group in range(len(self._groups)))

    def longest_texts(self, prompt: int, limit: int, width: int, blocks: int) -> int:
        """Longest text, up to `limit`, to which `width` beams, or one text, can grow.

        The prompt's full blocks are shared, as far as a prefix of all groups goes: a beam that
        comes back finds no more. With windows, where it may find them gone, nothing is counted on.
        """
        groups = self._groups

        def need(tokens: int) -> int:
            if groups.windowed:
                return width * sum(groups.peak(group, tokens) for group in range(len(groups)))
            shared = [prompt // groups.align * groups.align // size for size in groups.sizes]
            return sum(
                common + width * (-(-tokens // size) - common)
                for common, size in zip(shared, groups.sizes, strict=True)
            )

        low, high = 0, limit + 1
        while high - low > 1:
            middle = (low + high) // 2
            if need(middle) <= blocks:
                low = middle
            else:
                high = middle
        return low

    def make(self, table: Table, seq: Sequence) -> None:
        """Promise a sequence that is being admitted room for its text."""
        table.promised = self.text_of(seq)
        self.update(table)

    def update(self, table: Table) -> None:
        """Work out what a table is owed, after its blocks have changed."""
        owed = 0
        if table.promised > table.room:
            for group, size in enumerate(self._groups.sizes):
                ids = table.ids[group]
                missing = -(-table.promised // size) - len(ids)
                live = len(ids) - table.first[group]
                owed += max(0, min(missing, self._groups.peak(group, table.promised) - live))
        if owed != table.owed:
            self._owe(table, owed)

    def reset(self) -> None:
        """Owe nothing to anybody; the accounts are reset by their owner."""
        self.owed = 0

    def close(self, table: Table) -> None:
        """Owe nothing to a sequence that is released."""
        self._owe(table, 0)

    def _owe(self, table: Table, owed: int) -> None:
        change = owed - table.owed
        self.owed += change
        table.owed = owed
        table.account.owed += change
        if self._shares.several:
            self._shares.touch(table.account)

    def check(self, tables: Iterable[Table], available: int, *, moving: bool) -> None:
        """Recompute the sum. Raises Corrupted if it is wrong, or more than can be given.

        moving: open moves may hold what will come back.
        """
        by_account = dict.fromkeys(self._shares.accounts, 0)
        for table in tables:
            by_account[table.account] += table.owed
        owed = sum(by_account.values())
        if owed != self.owed:
            raise Corrupted(f"{self.owed} blocks owed, tables say {owed}")
        for account, true in by_account.items():
            if account.owed != true:
                raise Corrupted(f"{account.owed} blocks owed to {account.name}, not {true}")
        # Tenants that share a text hold each other's blocks: then a promise is an estimate.
        estimates = moving or self._groups.windowed or self._shares.several
        if owed > available and not estimates:
            raise Corrupted(f"{owed} blocks owed, {available} available")
