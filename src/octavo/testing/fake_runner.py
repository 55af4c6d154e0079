"""A runner without a model: it remembers what every slot holds and refuses to be misled."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import blake2b
from itertools import pairwise
from random import Random
from typing import TypeAlias

import msgspec
import numpy as np

from octavo.contract.batch import (
    Batch,
    Candidates,
    Logprobs,
    Move,
    Place,
    Sample,
    Sampled,
    Slice,
    StepResult,
)
from octavo.contract.ids import PENDING, BlockId, MoveId, SeqId, StepId
from octavo.contract.structured import StructuredOutputs
from octavo.runner.following import Following
from octavo.runner.history import History
from octavo.runner.inputs import StepArrays, Work
from octavo.runner.masks import Matchers, allowed_by
from octavo.testing.fake_grammars import FakeGrammars, allowed_tokens

Tokens: TypeAlias = "range | list[int]"
"""Some of the vocabulary, ascending."""

_Slot = tuple[int, int, bytes]
"""Token, position, digest of the text up to and including the token."""

_NONE = np.empty(0, dtype=np.int64)
_NO_ARRAYS = StepArrays((), (), _NONE, _NONE, (), _NONE)

_POISON: _Slot = (-2, -2, b"poison")
"""What a failed step leaves behind; only steps that were in flight then may read it."""

Fate = Callable[[Batch], str | None]
"""Decides whether a step fails, and with which message."""

Refusal = Callable[[Sample, int], str | None]
"""Decides whether no token can be chosen for a position, and with which message."""


def next_token(digest: bytes, seed: int, tokens: Tokens) -> int:
    """Return which of some tokens the fake model samples after a text: by text and seed."""
    data = digest + seed.to_bytes(8, "little")
    return tokens[int.from_bytes(blake2b(data, digest_size=4).digest(), "little") % len(tokens)]


def likeliest(digest: bytes, count: int, tokens: Tokens) -> Candidates:
    """Return which of some tokens the fake model finds likeliest after a text, best first."""
    scored = sorted((-_surprise(digest, token), token) for token in tokens)
    best = [(token, value) for value, token in reversed(scored)][:count]
    return Candidates(tuple(token for token, _ in best), tuple(value for _, value in best))


def _surprise(digest: bytes, token: int) -> float:
    data = blake2b(digest + token.to_bytes(4, "little"), digest_size=4, person=b"beams").digest()
    return 0.1 + int.from_bytes(data, "little") / 2**32 * 4


def text_digest(tokens: list[int]) -> bytes:
    """Digest of a whole text, as the fake runner chains it slot by slot."""
    digest = b""
    for token in tokens:
        digest = _grow(digest, token)
    return digest


def expected_output(
    prompt: list[int],
    seed: int,
    count: int,
    vocab_size: int,
    form: StructuredOutputs | None = None,
) -> list[int]:
    """Return the first `count` tokens that the fake model writes after a prompt, held to a form."""
    digest, output = text_digest(prompt), list[int]()
    for _ in range(count):
        output.append(next_token(digest, seed, eligible_tokens(form, output, vocab_size)))
        digest = _grow(digest, output[-1])
    return output


def eligible_tokens(form: StructuredOutputs | None, output: list[int], vocab_size: int) -> Tokens:
    """Return the tokens that may come after an output, ascending."""
    if form is None:
        return range(vocab_size)
    return sorted(allowed_tokens(form, output, vocab_size))


def _grow(digest: bytes, token: int) -> bytes:
    return blake2b(digest + token.to_bytes(4, "little", signed=True), digest_size=8).digest()


class FakeRunner:
    """Computes in order of submission, as one compute stream does, and as late as may be.

    Asserts that a slice reads only slots that hold the right token at the right position of
    one and the same text, in every KV group; that written blocks are not shared; that moves
    name blocks that hold what their key says. `text` gives the known tokens of a sequence, so
    that reading another sequence's text is caught at once. The past of a slice and the
    targets of a score must be that text too, and come just when they are needed. Moves complete
    late, in any order, or fail, as `random` decides.
    """

    def __init__(
        self,
        block_sizes: tuple[int, ...],
        windows: tuple[int | None, ...] | None = None,
        *,
        vocab_size: int = 50,
        text: Callable[[SeqId], list[int] | None] | None = None,
        fate: Fate | None = None,
        refusal: Refusal | None = None,
        random: Random | None = None,
        move_failure: float = 0.0,
        grammars: Matchers | None = None,
    ) -> None:
        self._sizes = block_sizes
        self._windows = windows or (None,) * len(block_sizes)
        assert 1 not in self._windows, "a window of one token does not see what it continues"
        self.vocab_size = vocab_size
        self._text = text
        self._fate = fate
        self._refusal = refusal
        self._random = random or Random(0)
        self._move_failure = move_failure
        self._memory: dict[tuple[str, BlockId], dict[int, _Slot]] = {}
        self._tables: dict[SeqId, list[list[BlockId]]] = {}
        self._last: dict[SeqId, int] = {}
        self._pasts: dict[SeqId, History] = {}
        """What has been told of the texts that samples look back at."""
        self._following = Following(grammars or FakeGrammars(vocab_size), vocab_size)
        self._queue: deque[Batch] = deque()
        self._misled: set[StepId] = set()
        """Steps submitted before the failure of an earlier one was known."""
        self._pooled: dict[SeqId, int] = {}
        """How many leading tokens of a prompt are in its mean."""
        self._moves: list[Move] = []
        self._may_be_misled = False
        self._collected: StepId = 0

    def submit(self, batch: Batch) -> None:
        """Queue a batch; its moves may run before older batches have computed."""
        assert len(self._queue) < 2, "a third step was submitted before the first was collected"
        for piece in batch.slices:
            assert piece.tokens[-1:] != (PENDING,) or not any(
                s.constrained for s in piece.samples
            ), f"sequence {piece.seq} goes on with a token that its grammar does not know yet"
        self._queue.append(batch)
        self._moves += batch.moves

    def collect(self) -> StepResult:
        """Compute the oldest batch; returns its result and the moves that ended meanwhile."""
        early = self._run_moves()
        batch = self._queue.popleft()
        result = self._compute(batch)
        self._collected = batch.step
        if result.error is not None:
            self._misled |= {later.step for later in self._queue}
        late = self._run_moves()
        return msgspec.structs.replace(result, moved=early[0] + late[0], failed=early[1] + late[1])

    def _compute(self, batch: Batch) -> StepResult:
        for seq in batch.ended:
            self._tables.pop(seq, None)
            self._last.pop(seq, None)
            self._pasts.pop(seq, None)
            self._pooled.pop(seq, None)
        self._following.forget(batch.ended)
        for copy in batch.copies:
            self._memory[self._device(copy.dst)] = dict(self._memory[self._device(copy.src)])
        for piece in batch.slices:
            self._grow_table(piece)
        error = self._fate(batch) if self._fate else None
        self._may_be_misled = batch.step in self._misled
        # What waits for a token that does not exist writes and reads nothing.
        slices = [p for p in batch.slices if p.tokens != (PENDING,) or p.seq in self._last]
        texts = {piece.seq: self._write(piece) for piece in slices}
        result = StepResult(batch.step)
        for piece in slices:
            self._read(piece, texts[piece.seq])
            self._look_back(piece)
            self._pool(piece, texts[piece.seq], result)
            if piece.score is not None:
                result.scored[piece.seq] = self._score(piece)
        asked = [(piece, sample) for piece in slices for sample in piece.samples]
        eligible = self._eligible([s for _, s in asked], [piece.seq for piece, _ in asked])
        for (piece, sample), tokens in zip(asked, eligible, strict=True):
            self._sample(piece, sample, texts[piece.seq], tokens, result)
        if error is None:
            return result
        self._spoil(batch, slices)
        return StepResult(batch.step, error=error)

    def close(self) -> None:
        """Nothing to release."""

    # ── inside ────────────────────────────────────────────────────────────────────────────

    @staticmethod
    def _device(block: BlockId) -> tuple[str, BlockId]:
        return ("device", block)

    def _grow_table(self, piece: Slice) -> None:
        table = self._tables.setdefault(piece.seq, [[] for _ in self._sizes])
        for ids, kept, blocks in zip(table, piece.kept, piece.blocks, strict=True):
            assert kept <= len(ids), f"sequence {piece.seq} keeps {kept} of {len(ids)} blocks"
            ids[kept:] = blocks

    def _write(self, piece: Slice) -> bytes:
        """Write the slice's tokens in every group; returns the digest of the text."""
        assert piece.tokens, "an empty slice"
        tokens = [self._last[piece.seq] if t == PENDING else t for t in piece.tokens]
        self._compare(piece.seq, piece.start, tokens)
        digest = b""
        for group, size in enumerate(self._sizes):
            ids = self._tables[piece.seq][group]
            digest = self._slot(ids, size, piece.start - 1)[2] if piece.start else b""
            for position, token in enumerate(tokens, piece.start):
                poisoned = digest == _POISON[2] or token == _POISON[0]
                digest = _POISON[2] if poisoned else _grow(digest, token)
                block = self._memory.setdefault(self._device(ids[position // size]), {})
                if position % size == 0:
                    block.clear()
                block[position % size] = _POISON if poisoned else (token, position, digest)
        return digest

    def _read(self, piece: Slice, digest: bytes) -> None:
        """Check every slot up to the slice's end that a query of it sees, in every group."""
        end = piece.start + len(piece.tokens)
        # Written after what one group holds of a failed step; the others may hold it right.
        if digest == _POISON[2]:
            assert self._may_be_misled, "a slot of a failed step was read afterwards"
            return
        for group, (size, window) in enumerate(zip(self._sizes, self._windows, strict=True)):
            first = 0 if window is None else max(0, piece.start - window + 1)
            ids = self._tables[piece.seq][group]
            slots = [self._slot(ids, size, position) for position in range(first, end)]
            if _POISON in slots:
                assert self._may_be_misled, "a slot of a failed step was read afterwards"
                return
            assert [slot[1] for slot in slots] == list(range(first, end)), "positions out of order"
            for before, slot in pairwise([(0, -1, b"")] * (first == 0) + slots):
                assert slot[2] == _grow(before[2], slot[0]), "a slot holds another text's token"
            assert slots[-1][2] == digest, "the groups hold different texts"
            self._compare(piece.seq, first, [slot[0] for slot in slots])

    def _compare(self, seq: SeqId, start: int, tokens: list[int]) -> None:
        """Compare with what the sequence's text is known to be."""
        known = self._text(seq) if self._text else None
        if known is None or self._may_be_misled:
            return
        truth = known[start : start + len(tokens)]
        assert tokens[: len(truth)] == truth, f"sequence {seq} at {start}: {tokens}, not {truth}"

    def _slot(self, ids: list[BlockId], size: int, position: int) -> _Slot:
        assert position // size < len(ids), f"position {position} lies behind the table"
        block = self._memory.get(self._device(ids[position // size]), {})
        assert position % size in block, f"position {position} was read before it was written"
        return block[position % size]

    def _pool(self, piece: Slice, digest: bytes, result: StepResult) -> None:
        """Tell a text's digest as its vector; of a mean no token may be left out, or come twice."""
        if piece.pool is None:
            return
        assert not piece.samples, f"sequence {piece.seq} is embedded, and samples"
        if piece.pool.how == "mean" and piece.start:
            known = self._pooled.get(piece.seq, 0)
            assert known == piece.start, f"sequence {piece.seq}: {known} tokens, then {piece.start}"
        self._pooled[piece.seq] = piece.start + len(piece.tokens)
        if piece.pool.last:
            result.pooled[piece.seq] = digest

    def _eligible(self, samples: list[Sample], owners: list[SeqId]) -> list[Tokens]:
        """Return for each sample what may come, as a runner finds it out. owners: of its text."""
        every = range(self.vocab_size)
        if not any(sample.constrained for sample in samples):
            return [every] * len(samples)
        texts = [self._pasts.get(seq) for seq in owners]
        work = Work(_NO_ARRAYS, len(samples), samples=samples, histories=texts)
        self._following.begin(work)
        refusals = self._following.end()
        assert not refusals, f"{refusals}"
        return [
            every if mask is None else np.flatnonzero(allowed_by(mask, self.vocab_size)).tolist()
            for mask in work.masks
        ]

    def _sample(
        self,
        piece: Slice,
        sample: Sample,
        text: bytes,
        tokens: Tokens,
        result: StepResult,
    ) -> None:
        """Choose one of these tokens, or refuse to."""
        end = piece.start + len(piece.tokens)
        assert sample.prompt_length <= end, f"sequence {sample.seq} samples inside its prompt"
        reason = self._refusal(sample, end) if self._refusal else None
        if reason is not None:
            result.refused[sample.seq] = reason
            self._last.pop(sample.seq, None)
            return
        if sample.candidates:
            best = likeliest(text, sample.candidates, tokens)
            result.candidates[sample.seq] = best
            return
        token = next_token(text, sample.seed, tokens)
        if text == _POISON[2]:
            token = _POISON[0]
        logprobs = None
        if sample.params.logprobs is not None:
            logprobs = Logprobs((token,), (-1.0,), (1,))
        result.sampled[sample.seq] = Sampled(token, -1.0, logprobs)
        self._last[sample.seq] = token

    def _look_back(self, piece: Slice) -> None:
        """Check that what was told of the text, once, is all of it up to the slice."""
        wanted = any(sample.looks_back for sample in piece.samples)
        told = self._pasts.get(piece.seq)
        if told is None and wanted:
            assert len(piece.past) == piece.start, (
                f"sequence {piece.seq} at {piece.start}: {len(piece.past)} tokens of the past"
            )
            length = piece.samples[0].prompt_length
            told = self._pasts[piece.seq] = History(piece.past, length)
        else:
            assert not piece.past, f"sequence {piece.seq}: a past that nobody needs"
        if told is None:
            return
        assert len(told.tokens) == piece.start, (
            f"sequence {piece.seq} goes on at {piece.start} after {len(told.tokens)} tokens"
        )
        told.extend([self._last[piece.seq] if t == PENDING else t for t in piece.tokens])
        self._compare(piece.seq, 0, told.tokens)
        first = 0 if self._windows[0] is None else max(0, piece.start - self._windows[0] + 1)
        slots = [
            self._slot(self._tables[piece.seq][0], self._sizes[0], position)
            for position in range(first, len(told.tokens))
        ]
        if _POISON not in slots:
            seen = [slot[0] for slot in slots]
            assert told.tokens[first:] == seen, f"sequence {piece.seq}: another past"

    def _score(self, piece: Slice) -> tuple[Logprobs, ...]:
        """Check that the targets are the text's own; they are all equally likely."""
        score = piece.score
        assert score is not None, "no score"
        assert score.targets, f"sequence {piece.seq}: a score without targets"
        assert 0 <= score.first <= len(piece.tokens) - len(score.targets), (
            f"sequence {piece.seq}: {len(score.targets)} targets from {score.first} in a slice "
            f"of {len(piece.tokens)}"
        )
        self._compare(piece.seq, piece.start + score.first + 1, list(score.targets))
        inside = piece.tokens[score.first + 1 :]
        assert inside[: len(score.targets)] == score.targets[: len(inside)], "other targets"
        return tuple(Logprobs((target,), (-1.0,), (1,)) for target in score.targets)

    def _spoil(self, batch: Batch, slices: list[Slice]) -> None:
        """A failed step leaves garbage wherever it should have written."""
        for piece in slices:
            for ids, size in zip(self._tables[piece.seq], self._sizes, strict=True):
                for position in range(piece.start, piece.start + len(piece.tokens)):
                    self._memory[self._device(ids[position // size])][position % size] = _POISON
        for piece in batch.slices:
            for sample in piece.samples:
                self._last[sample.seq] = _POISON[0]

    def _run_moves(self) -> tuple[tuple[MoveId, ...], tuple[MoveId, ...]]:
        moved: list[MoveId] = []
        failed: list[MoveId] = []
        waiting: list[Move] = []
        for move in self._moves:
            if move.after > self._collected or self._random.random() < 0.5:
                waiting.append(move)
            elif self._random.random() < self._move_failure:
                self._memory.pop((move.dst.tier, move.dst.block), None)
                failed.append(move.id)
            else:
                self._memory[self._at(move.dst)] = dict(self._memory[self._at(move.src)])
                moved.append(move.id)
        self._random.shuffle(waiting)
        self._moves = waiting
        return tuple(moved), tuple(failed)

    @staticmethod
    def _at(place: Place) -> tuple[str, BlockId]:
        return (place.tier, place.block)
