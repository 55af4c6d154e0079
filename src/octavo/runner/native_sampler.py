"""The native executor's sampler: every option, on the threads that compute the step."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Candidates, Logprobs, Sample, Sampled
from octavo.runner.history import History
from octavo.runner.inputs import Target, Work
from octavo.runner.masks import Mask, mask_words
from octavo.runner.native import NativeExecutor
from octavo.runner.processors import banned_tokens
from octavo.runner.sampler import (
    Answer,
    broken_row,
    names_tokens,
    nothing_left,
    wants_likeliest,
    wants_likeliest_allowed,
)

Logits = NDArray[np.float32]
Tokens = tuple[list[int] | NDArray[np.intp], list[float] | NDArray[np.float64] | None]
"""Some tokens, with a number for each where they have one."""

ROOM = 64 << 20
"""Bytes of logits that are held at once, if that is a row or more."""
_NOBODY: Tokens = ([], None)
_WHOLE, _REAL, _LISTS = 9, 6, 5
_UNKNOWN = -1
_NO_MASK = -1


class Choices(NamedTuple):
    """What the extension returns, one number of each for each sample."""

    tokens: list[int]
    logprobs: list[float]
    broken: list[int]
    ranks: list[int]
    named: list[int]
    """How many of the lists that follow belong to it."""
    starts: list[int]
    """Where they begin there."""
    ids: list[int]
    values: list[float]


class Rows:
    """Samples as the extension reads them: `Sampler.sample` in `_cpu.pyi` says what is what."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._whole: list[int] = []
        self._real: list[float] = []
        self._ends: list[int] = []
        self._lists: list[Tokens] = []
        self._masks: list[Mask] = []
        self._total = 0

    def add(
        self,
        row: int,
        one: Sample,
        position: int,
        history: History | None,
        mask: Mask | None = None,
    ) -> None:
        """Add a sample that reads a row of the logits; mask: as `process` takes it."""
        assert (mask is not None) == one.constrained, (
            f"sequence {one.seq} at position {position}: a mask without a grammar, or none with one"
        )
        p = one.params
        top = p.logprobs
        named = 0 if top is None or one.candidates else self._count(top)
        seed = (one.seed + 2**63) % 2**64 - 2**63
        ranked = top is not None
        top_k = min(p.top_k, self._vocab_size)
        masked = _NO_MASK
        if mask is not None:
            masked = len(self._masks)
            self._masks.append(mask)
        self._whole += row, position, seed, top_k, named, ranked, one.candidates, _UNKNOWN, masked
        self._real += (
            p.temperature,
            p.top_p,
            p.min_p,
            p.repetition_penalty,
            p.frequency_penalty,
            p.presence_penalty,
        )
        if names_tokens(one):
            self._add_lists(one, position, history, mask)
        else:
            self._ends += (self._total,) * _LISTS

    def add_target(self, row: int, target: Target) -> None:
        """Add a token that is given, to be named."""
        self._whole += row, 0, 0, 0, self._count(target.top), True, 0, target.token, _NO_MASK
        self._real += (0.0, 1.0, 0.0, 1.0, 0.0, 0.0)
        self._ends += (self._total,) * _LISTS

    def arrays(self) -> tuple[NDArray[np.generic], ...]:
        """Return what `Sampler.sample` takes after the logits."""
        ids = [np.asarray(ids, dtype=np.int32) for ids, _ in self._lists]
        values = [
            np.zeros(len(ids)) if values is None else np.asarray(values, dtype=np.float64)
            for ids, values in self._lists
        ]
        return (
            np.array(self._whole, dtype=np.int64).reshape(-1, _WHOLE),
            np.array(self._real, dtype=np.float64).reshape(-1, _REAL),
            np.array(self._ends, dtype=np.int64).reshape(-1, _LISTS),
            np.concatenate(ids) if ids else np.empty(0, dtype=np.int32),
            np.concatenate(values) if values else np.empty(0),
            np.array(self._masks, dtype=np.int32).reshape(-1, mask_words(self._vocab_size)),
        )

    def _count(self, top: int) -> int:
        return self._vocab_size if top < 0 else min(top, self._vocab_size)

    def _add_lists(
        self, one: Sample, position: int, history: History | None, mask: Mask | None
    ) -> None:
        p = one.params
        banned = banned_tokens(self._vocab_size, one, history, position, mask)
        bias = p.logit_bias or {}
        seen = counted = _NOBODY
        if p.penalizes:
            assert history is not None, f"sequence {one.seq} looks back at an unknown text"
            if p.repetition_penalty != 1:
                seen = (history.seen(), None)
            if p.frequency_penalty or p.presence_penalty:
                counted = history.counts()
        allowed: Tokens = (list(p.allowed_token_ids or ()), None)
        biased: Tokens = (list(bias), list(bias.values()))
        for given in (allowed, (banned, None), biased, seen, counted):
            self._lists.append(given)
            self._total += len(given[0])
            self._ends.append(self._total)


class NativeSampler:
    """Chooses the tokens that `sampler.sample` would choose, for the native executor.

    If all that is wanted is the likeliest token of each row, or the likeliest of those that its
    grammar lets come, no logits are written.
    """

    def __init__(self, executor: NativeExecutor) -> None:
        self._executor = executor
        self._vocab_size = executor.vocab_size
        self._most = max(1, ROOM // (4 * self._vocab_size))
        self._logits = np.empty((0, self._vocab_size), dtype=np.float32)

    def sample(self, work: Work, logits: Logits | None) -> list[Answer]:
        """Answer each sample of the last step. Raises ModelError."""
        if logits is None and _want_likeliest(work):
            return self._take_likeliest(work)
        answers: list[Answer] = []
        for first in range(0, work.sampled, self._most):
            count = min(self._most, work.sampled - first)
            rows = self._score(first, count) if logits is None else logits[first : first + count]
            # Ascending: forks follow each other.
            begin, end = (bisect_left(work.sample_rows, row) for row in (first, first + count))
            answers += self._choose(rows, first, work, range(begin, end))
        return answers

    def name(self, first: int, targets: list[Target]) -> list[Logprobs]:
        """Say how likely tokens were after some of the sampled rows. Raises ModelError."""
        rows = Rows(self._vocab_size)
        for row, target in enumerate(targets):
            rows.add_target(row, target)
        found = self._run(self._score(first, len(targets)), rows)
        for broken, target in zip(found.broken, targets, strict=True):
            if broken:
                where = f"the prompt of sequence {target.seq}"
                raise broken_row(broken, self._vocab_size, where)
        return [_named(found, place) for place in range(len(targets))]

    def _take_likeliest(self, work: Work) -> list[Answer]:
        masks = work.masks or [None] * work.sampled
        tokens, logprobs, broken = self._executor.find_likeliest(masks)
        if broken.any():
            row = int(np.flatnonzero(broken)[0])
            self._raise_broken(work, work.sample_rows.index(row), int(broken[row]))
        chosen: list[Answer] = list(map(Sampled, tokens.tolist(), logprobs.tolist()))
        for row in np.flatnonzero(tokens < 0).tolist():
            chosen[row] = nothing_left(work.samples[row], work.positions[row])
        if len(chosen) == len(work.samples):
            return chosen
        return [chosen[row] for row in work.sample_rows]

    def _score(self, first: int, count: int) -> Logits:
        """Score rows; they are overwritten by the next call."""
        if len(self._logits) < count:
            self._logits = np.empty((count, self._vocab_size), dtype=np.float32)
        rows = self._logits[:count]
        self._executor.write_logits(first, rows)
        return rows

    def _choose(self, logits: Logits, first: int, work: Work, which: range) -> list[Answer]:
        rows = Rows(self._vocab_size)
        for i in which:
            row = work.sample_rows[i] - first
            mask = work.masks[i] if work.masks else None
            rows.add(row, work.samples[i], work.positions[i], work.histories[i], mask)
        found = self._run(logits, rows)
        answers: list[Answer] = []
        for place, i in enumerate(which):
            one, token = work.samples[i], found.tokens[place]
            if found.broken[place]:
                self._raise_broken(work, i, found.broken[place])
            if one.candidates:
                answers.append(Candidates(*_likeliest(found, place)))
            elif token < 0:
                answers.append(nothing_left(one, work.positions[i]))
            else:
                named = None if one.params.logprobs is None else _named(found, place)
                answers.append(Sampled(token, found.logprobs[place], named))
        return answers

    def _run(self, logits: Logits, rows: Rows) -> Choices:
        found = self._executor.choose(logits, *rows.arrays())
        return Choices(*(array.tolist() for array in found))

    def _raise_broken(self, work: Work, sample: int, broken: int) -> None:
        where = f"sequence {work.samples[sample].seq} at position {work.positions[sample]}"
        raise broken_row(broken, self._vocab_size, where)


def _want_likeliest(work: Work) -> bool:
    """Tell whether each row is asked for one token, the likeliest that may come after it."""
    if not work.masks:
        return all(map(wants_likeliest, work.samples))
    # Forks of one row could have masks that differ.
    return len(work.samples) == work.sampled and all(map(wants_likeliest_allowed, work.samples))


def _likeliest(found: Choices, place: int) -> tuple[tuple[int, ...], tuple[float, ...]]:
    start = found.starts[place]
    end = start + found.named[place]
    return tuple(found.ids[start:end]), tuple(found.values[start:end])


def _named(found: Choices, place: int) -> Logprobs:
    """Return the likeliest tokens of a row, and its own if that is none of them."""
    ids, values = _likeliest(found, place)
    rank, ranks = found.ranks[place], tuple(range(1, len(ids) + 1))
    if rank <= len(ids):
        return Logprobs(ids, values, ranks)
    return Logprobs((*ids, found.tokens[place]), (*values, found.logprobs[place]), (*ranks, rank))
