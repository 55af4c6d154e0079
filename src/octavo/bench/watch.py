"""Counts the blocks of each request, step by step, from what a runner is told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from octavo.contract.batch import Batch, Slice
from octavo.contract.ids import BlockId, SeqId


class Moment(NamedTuple):
    """What one request holds in one step."""

    step: int
    """Steps since the watch began."""
    logical: int
    """Entries of its tables: blocks that it would hold without sharing."""
    physical: int
    """Distinct blocks."""


class Watch:
    """Rebuilds the tables of all sequences from the batches, for models with one KV group.

    Requests are told apart by the seed in their sampling options, which therefore has to be
    theirs alone. Requests must not share blocks with each other.
    """

    def __init__(self) -> None:
        self.moments: dict[int, list[Moment]] = {}
        """Of each request, by its seed, in order."""
        self.steps = 0
        self._tables: dict[SeqId, list[BlockId]] = {}
        self._owners: dict[SeqId, int] = {}

    def note(self, batch: Batch) -> None:
        """Take in one step, as it is before the step's result is known."""
        for seq in batch.ended:
            self._tables.pop(seq, None)
            self._owners.pop(seq, None)
        for piece in batch.slices:
            self._take(piece)
        entries: dict[int, int] = {}
        blocks: dict[int, set[BlockId]] = {}
        for seq, table in self._tables.items():
            owner = self._owners.get(seq)
            if owner is not None:
                entries[owner] = entries.get(owner, 0) + len(table)
                blocks.setdefault(owner, set()).update(table)
        for owner, count in entries.items():
            moment = Moment(self.steps, count, len(blocks[owner]))
            self.moments.setdefault(owner, []).append(moment)
        self.steps += 1

    def _take(self, piece: Slice) -> None:
        (kept,), (grown,) = piece.kept, piece.blocks
        table = self._tables.setdefault(piece.seq, [])
        table[kept:] = grown
        for sample in piece.samples:
            if sample.params.seed is not None:
                self._owners[sample.seq] = sample.params.seed
            if sample.seq != piece.seq:
                self._tables[sample.seq] = list(table)  # a fork: the same blocks for now


@dataclass(slots=True)
class Tap:
    """Stands where a runner shows its logits: every step passes, and each has its watch."""

    watch: Watch | None = None
    advance: Callable[[float], None] | None = None
    """Told how many tokens each step computes."""
    computed: int = 0
    """Tokens that all steps computed."""

    def __call__(self, batch: Batch, logits: object) -> None:
        """Take in one step."""
        if self.watch is not None:
            self.watch.note(batch)
        tokens = sum(len(piece.tokens) for piece in batch.slices)
        self.computed += tokens
        if self.advance is not None:
            self.advance(tokens)
