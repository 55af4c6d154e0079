"""Samples in the order in which a device answers them: those that need the same work together.

Needs numpy only. What can be known without the logits is worked out here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from itertools import groupby

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.contract.batch import Sample
from octavo.contract.sampling import SamplingParams
from octavo.runner.history import History
from octavo.runner.inputs import Work
from octavo.runner.masks import Mask
from octavo.runner.philox import uniforms
from octavo.runner.processors import banned_tokens
from octavo.runner.sampler import edits_logits

FEW = 1024
"""So many of the likeliest tokens are selected; where more are wanted, all are sorted."""
PLAIN_BYTES, SORTED_BYTES = 32, 64
"""Memory for each logit of a piece, without a sort and with one: some tensors in float64."""

Ids = list[int] | NDArray[np.intp]
Values = list[float] | NDArray[np.float64]
Listed = tuple[Ids, Values | None]
"""Some tokens, with a number for each where they have one."""


class Way(IntEnum):
    """How a sample is answered."""

    LIKELIEST = 0
    """By the likeliest token of a row that nothing acts on."""
    GREEDY = 1
    """By the likeliest token of a row that something acts on."""
    DRAWN = 2
    CANDIDATES = 3


class Kind(IntEnum):
    """What a list of tokens is for."""

    ALLOWED = 0
    BANNED = 1
    AWAITED = 2
    """Banned if the newest token is the value."""
    BIASED = 3
    """The value is added."""
    SEEN = 4
    """In the text; each once."""
    COUNTED = 5
    """In the output; each once, the value says how often."""


class Real(IntEnum):
    """Columns of `Plan.reals`."""

    TEMPERATURE = 0
    TOP_P = 1
    MIN_P = 2
    REPETITION = 3
    FREQUENCY = 4
    PRESENCE = 5
    DRAW = 6


@dataclass(frozen=True, slots=True)
class Piece:
    """Neighbours in working order that are answered at once."""

    first: int
    last: int
    """Behind the last of them."""
    way: Way = Way.LIKELIEST
    edited: bool = False
    """Something acts on their logits."""
    depth: int = 0
    """How many of the likeliest tokens are looked at; 0: no token is ranked."""


@dataclass(frozen=True, slots=True)
class TokenLists:
    """The lists of one kind, one after the other in working order."""

    ids: NDArray[np.int32]
    values: NDArray[np.float64]
    """One for each id; empty: this kind has none."""
    lengths: NDArray[np.int64]
    """[samples]"""


@dataclass(frozen=True, slots=True)
class Masks:
    """What grammars let come."""

    bits: NDArray[np.int32]
    """[masks, ceil(vocab / 32)], as `masks.Mask`"""
    rows: NDArray[np.int64]
    """[samples] in working order: the mask of each; -1: it has none."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The samples of a step in working order."""

    order: list[int]
    """Their numbers."""
    rows: list[int]
    """The row of the logits that each reads."""
    top_ks: list[int]
    """The size of the vocabulary: none."""
    reals: NDArray[np.float64]
    """[samples, len(Real)]"""
    pieces: list[Piece]
    lists: dict[Kind, TokenLists]
    """Kinds that somebody uses."""
    masks: Masks | None
    """None: no grammar binds any of them."""
    pending: bool
    """Some history that matters lacks its newest token."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One sample as it is sorted into pieces."""

    way: Way
    lists: dict[Kind, Listed]
    pending: bool
    depth: int
    constrained: bool

    @property
    def edited(self) -> bool:
        return bool(self.lists) or self.pending or self.constrained

    @property
    def key(self) -> tuple[bool, Way, int]:
        """Equal for samples that need the same work."""
        return self.edited, self.way, reach(self.depth)


def have_own_rows(work: Work) -> bool:
    """Tell whether no two samples read one row of the logits, and none is out of order."""
    return work.sample_rows == list(range(len(work.samples)))


def make_plan(work: Work, vocab_size: int, room_bytes: int) -> Plan:
    """Put samples into working order, in pieces that need no more memory than that.

    What stands in the histories is copied.
    """
    masks = work.masks or [None] * len(work.samples)
    asked = [
        _ask(one, history, position, vocab_size, mask)
        for one, history, position, mask in zip(
            work.samples, work.histories, work.positions, masks, strict=True
        )
    ]
    order = sorted(range(len(asked)), key=lambda number: asked[number].key)
    ordered = [asked[number] for number in order]
    samples = [work.samples[number] for number in order]
    lists = {kind: _join(kind, ordered, vocab_size) for kind in Kind}
    return Plan(
        order=order,
        rows=[work.sample_rows[number] for number in order],
        top_ks=[_top_k(one.params, vocab_size) or vocab_size for one in samples],
        reals=_reals(samples, [work.positions[number] for number in order]),
        pieces=_cut(ordered, vocab_size, room_bytes),
        lists={kind: joined for kind, joined in lists.items() if joined is not None},
        masks=_masks(work, order),
        pending=any(one.pending for one in asked),
    )


def reach(depth: int) -> int:
    """Return 0 if no token is ranked, 1 if a few are, 2 if more are."""
    return 0 if depth == 0 else 1 if depth <= FEW else 2


def most_rows(depth: int, vocab_size: int, room_bytes: int) -> int:
    """Return how many rows fit some memory if so many of their tokens are ranked: at least one."""
    size = SORTED_BYTES if reach(depth) == 2 else PLAIN_BYTES
    return max(1, room_bytes // (size * vocab_size))


def _ask(
    one: Sample, history: History | None, position: int, vocab_size: int, mask: Mask | None
) -> _Asked:
    lists: dict[Kind, Listed] = {}
    pending = False
    if edits_logits(one):
        pending = _lacks_newest(one, history, position)
        lists = _find_lists(one, history, position, vocab_size, pending, mask)
    acts = bool(lists) or (pending and one.params.penalizes)
    pending = acts and pending
    if one.candidates:
        depth = min(one.candidates, vocab_size)
        return _Asked(Way.CANDIDATES, lists, pending, depth, one.constrained)
    if one.params.greedy:
        way = Way.GREEDY if acts or one.constrained else Way.LIKELIEST
        return _Asked(way, lists, pending, 0, one.constrained)
    depth = _top_k(one.params, vocab_size)
    if depth > FEW or (depth == 0 and one.params.top_p < 1):
        depth = vocab_size
    return _Asked(Way.DRAWN, lists, pending, depth, one.constrained)


def _lacks_newest(one: Sample, history: History | None, position: int) -> bool:
    if not one.looks_back:
        return False
    assert history is not None, f"sequence {one.seq} looks back at an unknown text"
    have = len(history.tokens)
    assert position - 1 <= have <= position, (
        f"sequence {one.seq}: {have} tokens are known of a text that goes on at {position}"
    )
    return have < position


def _find_lists(
    one: Sample,
    history: History | None,
    position: int,
    vocab_size: int,
    pending: bool,
    mask: Mask | None,
) -> dict[Kind, Listed]:
    """Return the lists that are not empty."""
    p = one.params
    bias = p.logit_bias or {}
    lists: dict[Kind, Listed] = {
        Kind.ALLOWED: (list(p.allowed_token_ids or ()), None),
        Kind.BIASED: (list(bias), list(bias.values())),
    }
    if pending and one.bad_words:
        assert history is not None
        lists[Kind.AWAITED] = _awaited(one.bad_words, history, vocab_size)
        single = tuple(word for word in one.bad_words if len(word) == 1)
        one = msgspec.structs.replace(one, bad_words=single)
    lists[Kind.BANNED] = (banned_tokens(vocab_size, one, history, position, mask), None)
    if p.penalizes:
        assert history is not None
        if p.repetition_penalty != 1:
            lists[Kind.SEEN] = (history.seen(), None)
        if p.frequency_penalty or p.presence_penalty:
            lists[Kind.COUNTED] = history.counts()
    return {kind: listed for kind, listed in lists.items() if len(listed[0])}


def _awaited(words: tuple[tuple[int, ...], ...], history: History, vocab_size: int) -> Listed:
    """Return the last tokens of words that need the newest token yet, which is the value."""
    ends: list[int] = []
    before: list[float] = []
    for word in words:
        known = list(word[:-2])
        if len(word) == 1 or not 0 <= word[-1] < vocab_size:
            continue
        if not known or history.output_end(len(known)) == known:
            ends.append(word[-1])
            before.append(word[-2])
    return ends, before


def _masks(work: Work, order: list[int]) -> Masks | None:
    """Put the masks of a step's samples one below the other; None: there are none."""
    given = work.masks or [None] * len(work.samples)
    for one, mask in zip(work.samples, given, strict=True):
        assert (mask is not None) == one.constrained, (
            f"sequence {one.seq}: a mask without a grammar, or none with one"
        )
    bits = [mask for number in order if (mask := given[number]) is not None]
    if not bits:
        return None
    there = np.array([given[number] is not None for number in order])
    return Masks(np.array(bits, dtype=np.int32), np.where(there, np.cumsum(there) - 1, -1))


def _join(kind: Kind, ordered: list[_Asked], vocab_size: int) -> TokenLists | None:
    """Put the lists of one kind one after the other; None: there are none."""
    given = [one.lists.get(kind) for one in ordered]
    listed = [one for one in given if one is not None]
    if not listed:
        return None
    ids = np.concatenate([np.asarray(one, dtype=np.int64) for one, _ in listed])
    # On a GPU an index that is out of range stops the whole process.
    low, high = int(ids.min()), int(ids.max())
    assert 0 <= low <= high < vocab_size, (
        f"{kind.name.lower()} tokens from {low} to {high} in a vocabulary of {vocab_size}"
    )
    values = [np.asarray(one, dtype=np.float64) for _, one in listed if one is not None]
    return TokenLists(
        ids=ids.astype(np.int32),
        values=np.concatenate(values) if values else np.empty(0),
        lengths=np.array([0 if one is None else len(one[0]) for one in given], dtype=np.int64),
    )


def _top_k(params: SamplingParams, vocab_size: int) -> int:
    """Return 0 if all tokens are kept."""
    return params.top_k if 0 < params.top_k < vocab_size else 0


def _reals(samples: list[Sample], positions: list[int]) -> NDArray[np.float64]:
    reals = np.zeros((len(samples), len(Real)))
    for place, one in enumerate(samples):
        p = one.params
        reals[place, : Real.DRAW] = (
            p.temperature,
            p.top_p,
            p.min_p,
            p.repetition_penalty,
            p.frequency_penalty,
            p.presence_penalty,
        )
    drawn = [place for place, one in enumerate(samples) if not one.params.greedy]
    if drawn:
        seeds = [samples[place].seed for place in drawn]
        reals[drawn, Real.DRAW] = uniforms(seeds, [positions[place] for place in drawn])
    return reals


def _cut(ordered: list[_Asked], vocab_size: int, room_bytes: int) -> list[Piece]:
    pieces: list[Piece] = []
    first = 0
    for (edited, way, _), group in groupby(ordered, key=lambda one: one.key):
        depths = [one.depth for one in group]
        end = first + len(depths)
        # These are known before: nothing is computed for them.
        most = most_rows(max(depths), vocab_size, room_bytes)
        step = len(depths) if way is Way.LIKELIEST else most
        for start in range(first, end, step):
            last = min(start + step, end)
            depth = max(depths[start - first : last - first])
            pieces.append(Piece(start, last, way, edited, depth))
        first = end
    return pieces
