"""What changes rows of logits before a token is chosen, on a device; `processors` says how.

Every size is known on the host: nothing here waits for the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from octavo.runner.device_rows import Kind, Masks, Piece, Real, TokenLists
from octavo.runner.processors import LARGEST


class Entries(NamedTuple):
    """The lists of one kind that belong to the samples of a piece. All: [entries]."""

    at: Tensor
    """Where they lie in the piece's logits, row after row."""
    owners: Tensor
    """The row of each."""
    ids: Tensor
    values: Tensor | None


@dataclass(frozen=True, slots=True)
class DeviceLists:
    """`TokenLists` on the device."""

    ids: Tensor
    """int64"""
    owners: Tensor
    """int64: in working order, the sample that each token belongs to."""
    values: Tensor | None
    lengths: Tensor
    starts: list[int]
    """On the host: where the list of each sample begins, and where the last one ends."""

    @classmethod
    def make(cls, lists: TokenLists, ids: Tensor, values: Tensor, lengths: Tensor) -> DeviceLists:
        """Describe lists whose arrays have been sent."""
        return cls(
            ids=ids.long(),
            # With the size given, torch need not ask the device.
            owners=torch.repeat_interleave(lengths, output_size=len(lists.ids)),
            values=values if len(lists.values) else None,
            lengths=lengths,
            starts=[0, *accumulate(lists.lengths.tolist())],
        )

    def cut(self, piece: Piece, vocab_size: int) -> Entries | None:
        """Return what belongs to a piece; None: nothing."""
        first, last = self.starts[piece.first], self.starts[piece.last]
        if first == last:
            return None
        ids = self.ids[first:last]
        owners = self.owners[first:last] - piece.first
        values = None if self.values is None else self.values[first:last]
        return Entries(owners * vocab_size + ids, owners, ids, values)


@dataclass(frozen=True, slots=True)
class DeviceMasks:
    """`Masks` on the device."""

    bits: Tensor
    """[masks, words] int32"""
    rows: Tensor
    """[samples] int64"""
    bound: list[bool]
    """On the host: which samples, in working order, have one."""

    @classmethod
    def make(cls, masks: Masks, bits: Tensor, rows: Tensor) -> DeviceMasks:
        """Describe masks whose arrays have been sent."""
        return cls(bits, rows, (masks.rows >= 0).tolist())

    def apply(self, logits: Tensor, piece: Piece) -> None:
        """Ban what the masks of a piece's samples do not name: [rows, vocab]."""
        if not any(self.bound[piece.first : piece.last]):
            return
        rows = self.rows[piece.first : piece.last]
        octets = self.bits.index_select(0, rows.clamp(min=0)).view(torch.uint8)
        shifts = torch.arange(8, dtype=torch.uint8, device=logits.device)
        banned = (octets[:, :, None] >> shifts) & 1 == 0
        banned = banned.view(len(rows), -1)[:, : logits.shape[1]]
        logits.masked_fill_(banned & (rows >= 0)[:, None], -math.inf)


@dataclass(frozen=True, slots=True)
class Edits:
    """Everything that acts on the logits of a step's samples, which are in working order."""

    lists: dict[Kind, DeviceLists]
    reals: Tensor
    """[samples, len(Real)] float64"""
    newest: Tensor | None
    """[samples] int64: the last token of a text whose lists lack it; -1: they lack none."""
    masks: DeviceMasks | None = None
    """Of samples that a grammar binds."""

    def apply(self, logits: Tensor, piece: Piece) -> None:
        """Change the logits of a piece in place: [rows, vocab] float64. Banned: minus infinity."""
        vocab_size = logits.shape[1]
        entries = {kind: lists.cut(piece, vocab_size) for kind, lists in self.lists.items()}
        newest = None if self.newest is None else self.newest[piece.first : piece.last]
        self._shift(logits, piece, entries, newest)
        allowed = entries.get(Kind.ALLOWED)
        if allowed is not None:
            limited = self.lists[Kind.ALLOWED].lengths[piece.first : piece.last] > 0
            others = limited[:, None].repeat(1, vocab_size)
            others.view(-1).index_fill_(0, allowed.at, False)
            logits.masked_fill_(others, -math.inf)
        if self.masks is not None:
            self.masks.apply(logits, piece)
        banned = entries.get(Kind.BANNED)
        if banned is not None:
            logits.view(-1).index_fill_(0, banned.at, -math.inf)
        awaited = entries.get(Kind.AWAITED)
        if awaited is not None and awaited.values is not None and newest is not None:
            follows = newest.index_select(0, awaited.owners) == awaited.values
            # Two words may end with one token: where either is complete, it is banned.
            ceiling = torch.where(follows, -math.inf, math.inf).to(logits.dtype)
            logits.view(-1).scatter_reduce_(0, awaited.at, ceiling, "amin")

    def _shift(
        self,
        logits: Tensor,
        piece: Piece,
        entries: dict[Kind, Entries | None],
        newest: Tensor | None,
    ) -> None:
        """Add biases, then penalize repetition, then frequency and presence."""
        reals = self.reals[piece.first : piece.last]
        biased, seen, counted = (
            entries.get(kind) for kind in (Kind.BIASED, Kind.SEEN, Kind.COUNTED)
        )
        if biased is None and seen is None and counted is None and newest is None:
            return
        if biased is not None and biased.values is not None:
            flat = logits.view(-1)
            flat.index_copy_(0, biased.at, flat.index_select(0, biased.at) + biased.values)

        def repeat(values: Tensor, owners: Tensor, _: Tensor | float) -> Tensor:
            factor = reals[:, Real.REPETITION].index_select(0, owners)
            return torch.where(values > 0, values / factor, values * factor)

        def count(values: Tensor, owners: Tensor, times: Tensor | float) -> Tensor:
            frequency = reals[:, Real.FREQUENCY].index_select(0, owners)
            presence = reals[:, Real.PRESENCE].index_select(0, owners)
            return values - frequency * times - presence

        _change(logits, seen, newest, repeat)
        _change(logits, counted, newest, count)
        logits.clamp_(-LARGEST, LARGEST)


Change = Callable[[Tensor, Tensor, "Tensor | float"], Tensor]
"""Values, the row of each, and how often its token stands in the output → new values."""


def _change(logits: Tensor, entries: Entries | None, newest: Tensor | None, change: Change) -> None:
    """Change listed tokens and the newest one of each row, which counts once more if listed."""
    flat = logits.view(-1)
    changed: Tensor | None = None
    if entries is not None:
        times: Tensor | float = 0.0 if entries.values is None else entries.values
        if newest is not None:
            times = times + (newest.index_select(0, entries.owners) == entries.ids)
        changed = change(flat.index_select(0, entries.at), entries.owners, times)
    if newest is not None:
        rows = torch.arange(len(newest), device=newest.device)
        token = newest.clamp(min=0)[:, None]
        values = logits.gather(1, token).squeeze(1)
        new = torch.where(newest >= 0, change(values, rows, 1.0), values)
        logits.scatter_(1, token, new[:, None])
    if entries is not None and changed is not None:
        # After the newest token, so that one that is listed too is changed once.
        flat.index_copy_(0, entries.at, changed)
