"""Turns a batch into arrays: the only place that builds indices from slices.

Needs numpy only, so that every executor shares it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Batch, Sample, Slice, StepResult
from octavo.contract.ids import NO_BLOCK, PENDING, BlockId, SeqId, StepId
from octavo.contract.layout import KVLayout
from octavo.runner.column import Column
from octavo.runner.history import Histories, History
from octavo.runner.masks import Mask

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class GroupArrays:
    """Where one KV group's keys and values of this step's slices lie."""

    tables: Ints
    """[blocks of all slices]: the slices' tables one after the other."""
    table_starts: Ints
    """[slices]: where each slice's table begins in `tables`."""
    blocks: Ints
    """[tokens]: the block that each token's KV is written to."""
    offsets: Ints
    """[tokens]: the slot within that block."""


@dataclass(frozen=True, slots=True)
class StepArrays:
    """One step as arrays. Rows are the tokens of all slices, slice after slice."""

    starts: tuple[int, ...]
    """Position of the first token of each slice."""
    lengths: tuple[int, ...]
    """Tokens of each slice, at least one."""
    tokens: Ints
    """-1 - i: the device alone knows it, the i-th token that the last step has chosen."""
    positions: Ints
    """Index of each token in its text."""
    groups: tuple[GroupArrays, ...]
    """One per KV group."""
    sample_rows: Ints
    """The rows whose logits are wanted."""


class Target(NamedTuple):
    """A token of a prompt that is to be scored."""

    seq: SeqId
    token: int
    top: int
    """How many of the most likely tokens to name beside it; -1: all."""


class Pooled(NamedTuple):
    """Rows of one prompt that become one vector."""

    seq: SeqId
    start: int
    """Position of the first."""
    rows: int
    last: bool
    """The vector is told after this step."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one step computes and whom it is for."""

    inputs: StepArrays
    """Its sampled rows are those of the samples, then those of the scores, then those of pools."""
    sampled: int
    """Rows that belong to samples."""
    samples: list[Sample] = field(default_factory=list[Sample])
    sample_rows: list[int] = field(default_factory=list[int])
    """For each sample, the row of the logits that it reads; forks share one."""
    positions: list[int] = field(default_factory=list[int])
    """For each sample, where its token will stand in the text."""
    histories: list[History | None] = field(default_factory=list["History | None"])
    """For each sample, the text before its token if it looks back."""
    pending: list[int] = field(default_factory=list[int])
    """For each sample, which of the tokens that the last step has chosen its history lacks, since
    the device alone knows it; -1: it lacks none."""
    masks: list[Mask | None] = field(default_factory=list["Mask | None"])
    """For each sample, what its grammar lets come, if one binds it; empty: none is bound."""
    targets: list[Target] = field(default_factory=list[Target])
    """For each scored row, the token after it."""
    pools: list[Pooled] = field(default_factory=list["Pooled"])
    """Prompts whose vector is wanted: whose rows come behind the scored ones, one after another."""


class InputBuilder:
    """Keeps each sequence's tables and last token, and its text if its samples look back.

    Written by the runner that owns it. A sequence is forgotten when a batch names it as ended.
    """

    def __init__(self, layout: KVLayout, *, num_blocks: int, vocab_size: int) -> None:
        self._groups = layout.groups
        self._sizes = layout.block_sizes
        self._num_blocks = num_blocks
        self._vocab_size = vocab_size
        self._tables: dict[SeqId, tuple[Column, ...]] = {}
        # A token; -1 - i while the device alone knows it, the i-th that the last step has chosen.
        self._last: dict[SeqId, int] = {}
        # Which step is to say that token.
        self._due: dict[SeqId, StepId] = {}
        # Which step is to say the token that a history lacks.
        self._owed: dict[SeqId, StepId] = {}
        # Sequences whose token was to come from a step that failed, or was refused.
        self._lost: set[SeqId] = set()
        self._histories = Histories()

    def check(self, batch: Batch) -> None:
        """Assert that a batch fits what is known; changes nothing."""
        for copy in batch.copies:
            for block in (copy.src, copy.dst):
                self._check_block(block, f"step {batch.step}: copy")
        seen: set[SeqId] = set()
        for part in batch.slices:
            where = f"step {batch.step}, sequence {part.seq}"
            assert part.seq not in seen, f"{where}: two slices in one step"
            seen.add(part.seq)
            self._check_tokens(part, where)
            ended = part.seq in batch.ended
            self._check_tables(part, where, ended=ended)
            self._check_score(part, where)
            if part.seq not in self._lost or ended:
                self._histories.check(part, where, ended=ended)

    def advance(self, batch: Batch) -> None:
        """Forget ended sequences and bring the tables up to date."""
        for seq in batch.ended:
            self._tables.pop(seq, None)
            self._last.pop(seq, None)
            self._due.pop(seq, None)
            self._owed.pop(seq, None)
            self._lost.discard(seq)
            self._histories.forget(seq)
        for part in batch.slices:
            tables = self._tables.get(part.seq)
            if tables is None:
                tables = self._tables[part.seq] = tuple(Column() for _ in self._sizes)
            for table, kept, blocks in zip(tables, part.kept, part.blocks, strict=True):
                if blocks or kept < len(table):
                    table.replace_end(kept, blocks)

    def build(self, batch: Batch) -> Work | None:
        """Make the arrays of a batch that has been checked and advanced; None: nothing to do.

        A slice that waits for a token that will never be known is left out: it has no answer.
        """
        slices = [
            part for part in batch.slices if part.tokens[-1] != PENDING or part.seq in self._last
        ]
        if not slices:
            return None
        starts = [part.start for part in slices]
        lengths = [len(part.tokens) for part in slices]
        ends = list(accumulate(lengths))
        tokens = np.array([token for part in slices for token in self._known(part)])
        owner = np.repeat(np.arange(len(slices)), lengths)
        ahead = np.array(starts) - np.array(ends) + np.array(lengths)
        positions = np.arange(len(tokens)) + ahead[owner]
        groups = tuple(
            self._group([self._tables[part.seq][number] for part in slices], owner, positions, size)
            for number, size in enumerate(self._sizes)
        )
        wanted = [end - 1 for part, end in zip(slices, ends, strict=True) if part.samples]
        sampled = len(wanted)
        for part, end in zip(slices, ends, strict=True):
            if part.score is not None:
                first = end - len(part.tokens) + part.score.first
                wanted += range(first, first + len(part.score.targets))
        pools: list[Pooled] = []
        for part, end in zip(slices, ends, strict=True):
            if part.pool is not None:
                count = len(part.tokens) if part.pool.how == "mean" else 1
                position = part.start + len(part.tokens) - count
                pools.append(Pooled(part.seq, position, count, part.pool.last))
                wanted += range(end - count, end)
        inputs = StepArrays(
            starts=tuple(starts),
            lengths=tuple(lengths),
            tokens=tokens,
            positions=positions,
            groups=groups,
            sample_rows=np.array(wanted, dtype=np.int64),
        )
        work = Work(inputs, sampled, pools=pools)
        for part in slices:
            if part.score is not None:
                targets = part.score.targets
                work.targets.extend(Target(part.seq, token, part.score.top) for token in targets)
        for row, part in enumerate(part for part in slices if part.samples):
            known, pending = self._known(part), -1
            if known[-1] < 0 and part.seq in self._due:
                known, pending = known[:-1], -1 - known[-1]
            history = self._histories.follow(part, known)
            if pending >= 0 and history is not None:
                self._owed[part.seq] = self._due[part.seq]
            for one in part.samples:
                work.pending.append(-1 if history is None else pending)
                work.samples.append(one)
                work.sample_rows.append(row)
                work.positions.append(part.start + len(part.tokens))
                work.histories.append(history)
        return work

    def remember(self, result: StepResult) -> None:
        """Keep the last token of each sequence, for the slices that name it as pending."""
        for seq, one in result.sampled.items():
            self._last[seq] = one.token
            self._lost.discard(seq)
        for seq in result.refused:
            self._last.pop(seq, None)
            self._lost.add(seq)

    def expect(self, step: StepId, samples: list[Sample]) -> None:
        """Note that the tokens of a step are being chosen, in this order, and are not known yet."""
        for number, one in enumerate(samples):
            if not one.candidates:
                self._last[one.seq] = -1 - number
                self._due[one.seq] = step
                self._lost.discard(one.seq)

    def settle(self, result: StepResult) -> None:
        """Keep the tokens that were expected, where no later step has been asked for one since."""
        for seq, one in result.sampled.items():
            if self._owed.get(seq) == result.step:
                del self._owed[seq]
                self._histories.extend(seq, one.token)
            if self._due.get(seq) == result.step:
                del self._due[seq]
                self._last[seq] = one.token
        for seq in result.refused:
            self._owed.pop(seq, None)
            if self._due.pop(seq, None) is not None:
                self._last.pop(seq, None)
                self._lost.add(seq)

    def lose(self, batch: Batch) -> None:
        """Note that a batch failed: the tokens it was to sample will never be known."""
        for part in batch.slices:
            for one in part.samples:
                self._last.pop(one.seq, None)
                self._due.pop(one.seq, None)
                self._owed.pop(one.seq, None)
                self._lost.add(one.seq)

    def _known(self, part: Slice) -> tuple[int, ...]:
        if part.tokens[-1] != PENDING:
            return part.tokens
        return (*part.tokens[:-1], self._last[part.seq])

    def _group(
        self,
        tables: list[Column],
        owner: np.ndarray,
        positions: np.ndarray,
        size: int,
    ) -> GroupArrays:
        flat = np.concatenate([table.values() for table in tables])
        counts = np.array([len(table) for table in tables])
        starts = np.cumsum(counts) - counts
        return GroupArrays(
            tables=flat,
            table_starts=starts,
            blocks=flat[starts[owner] + positions // size],
            offsets=positions % size,
        )

    def _check_block(self, block: BlockId, where: str) -> None:
        assert 0 <= block < self._num_blocks, (
            f"{where} names block {block}, but there are {self._num_blocks} blocks"
        )

    def _check_tokens(self, part: Slice, where: str) -> None:
        assert part.tokens, f"{where}: a slice without tokens"
        assert part.start >= 0, f"{where}: a slice that starts at position {part.start}"
        before = part.tokens
        if before[-1] == PENDING:
            assert part.seq in self._last or part.seq in self._lost, (
                f"{where}: its token is pending, but no step has sampled one"
            )
            before = before[:-1]
        if before:
            low, high = min(before), max(before)
            assert 0 <= low <= high < self._vocab_size, (
                f"{where}: token ids from {low} to {high} in a vocabulary of {self._vocab_size}"
            )

    def _check_score(self, part: Slice, where: str) -> None:
        if part.score is None:
            return
        first, targets = part.score.first, part.score.targets
        assert 0 <= first <= len(part.tokens) - len(targets) < len(part.tokens), (
            f"{where}: {len(targets)} targets after {first} of {len(part.tokens)} tokens"
        )
        low, high = min(targets), max(targets)
        assert 0 <= low <= high < self._vocab_size, (
            f"{where}: targets from {low} to {high} in a vocabulary of {self._vocab_size}"
        )

    def _check_tables(self, part: Slice, where: str, *, ended: bool) -> None:
        groups = len(self._sizes)
        assert len(part.kept) == len(part.blocks) == groups, (
            f"{where}: {len(part.kept)} kept and {len(part.blocks)} blocks for {groups} KV groups"
        )
        known = None if ended else self._tables.get(part.seq)
        for number, (kept, blocks) in enumerate(zip(part.kept, part.blocks, strict=True)):
            have = len(known[number]) if known else 0
            assert 0 <= kept <= have, (
                f"{where}: keeps {kept} entries of the table of group {number}, which has {have}"
            )
            seen = self._groups[number].first_seen(part.start)
            for index, block in enumerate(blocks, start=kept):
                if block != NO_BLOCK or index >= seen:
                    self._check_block(block, where)
            room = (kept + len(blocks)) * self._sizes[number]
            end = part.start + len(part.tokens)
            assert end <= room, (
                f"{where}: writes up to position {end - 1}, "
                f"but its table of group {number} holds {room} tokens"
            )
