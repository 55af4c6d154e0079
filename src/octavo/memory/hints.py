"""Carries what a request says of its KV to the blocks that it lets go of."""

from __future__ import annotations

from octavo.contract.hint import CacheHint
from octavo.memory.pool import BlockPool
from octavo.memory.table import Table


def note_hints(
    pool: BlockPool, table: Table, sizes: tuple[int, ...], hints: tuple[CacheHint, ...]
) -> None:
    """Note hints on the blocks of a table that is about to be dropped.

    A block is spoken of by the hint that its last token falls under; behind the last hint, by
    none. sizes: tokens per block of each group.
    """
    for group, size in enumerate(sizes):
        ids, start = table.ids[group], table.first[group]
        for hint in hints:
            end = len(ids) if hint.tokens is None else hint.tokens // size
            pool.hint(ids[start:end], hint)
            start = max(start, end)
        pool.hint(ids[start:], None)
