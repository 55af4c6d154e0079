"""How tokens are chosen and ranked on a device, whole rows at a time; `sampler` says which.

Every size is known on the host: nothing here waits for the device. Rows that are not finite give
numbers without meaning, but tokens of the vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from octavo.runner.device_rows import Real

SURVEY_BYTES = 16
"""Memory for each logit that is surveyed at once."""


class Survey(NamedTuple):
    """What is asked of most rows. All: [rows]."""

    levels: Tensor
    """float64: logarithm of the sum of the exponentials."""
    broken: Tensor
    """int32: how many logits are not finite."""
    likeliest: Tensor
    """int64: the lowest id of the likeliest tokens."""


class Options(NamedTuple):
    """What the draws of some rows keep to. All: [rows, 1]."""

    reals: Tensor
    """[rows, len(Real)] float64"""
    top_ks: Tensor
    """int64; the size of the vocabulary: none."""

    def column(self, which: Real) -> Tensor:
        """Return one of the numbers: [rows, 1]."""
        return self.reals[:, which, None]


class Limits(NamedTuple):
    """Which of the options any row of a piece has; known on the host."""

    depth: int
    """How many of the likeliest tokens are ranked; 0: none."""
    min_p: bool
    top_p: bool


def survey(logits: Tensor, room_bytes: int) -> Survey:
    """Look at each row once: [rows, vocab]."""
    most = max(1, room_bytes // (SURVEY_BYTES * logits.shape[1]))
    pieces = [_survey_piece(piece) for piece in logits.split(most)]
    return pieces[0] if len(pieces) == 1 else Survey(*map(torch.cat, zip(*pieces, strict=True)))


def first_place(found: Tensor) -> Tensor:
    """Return the first column of each row that is true; none is: the last column."""
    size = found.shape[1]
    columns = torch.arange(size, dtype=torch.int32, device=found.device)
    return torch.where(found, columns, size).amin(1).clamp_(max=size - 1).long()


def draw(x: Tensor, likeliest: Tensor, options: Options, limits: Limits) -> Tensor:
    """Draw one token a row: temperature, min_p, top_k, top_p, the inverse of the distribution.

    x: [rows, vocab]; likeliest: [rows]; returns [rows] int64.
    """
    likeliest = likeliest[:, None]
    top = x.gather(1, likeliest).double()
    ids: Tensor | None = None
    if limits.depth == 0:
        weights = _weigh(x, top, options)
        if limits.min_p:
            weights.masked_fill_(weights < options.column(Real.MIN_P), 0)
    else:
        ranked = _rank(x, limits.depth)
        kept = _mark_likeliest(x, ranked, _count_kept(ranked, top, options, limits))
        if limits.depth == x.shape[1]:
            weights = _weigh(x, top, options)
        else:
            ids, kept = _columns(kept, limits.depth)
            weights = _weigh(x.gather(1, ids), top, options)
        weights.masked_fill_(~kept, 0)
    place = _invert(weights, options.column(Real.DRAW))
    token = place if ids is None else ids.gather(1, place)
    # A device adds pieces of a row before it adds these up, so that a sum may be rounded
    # differently from the one before it although nothing was added.
    return torch.where(weights.gather(1, place) > 0, token, likeliest).squeeze(1)


def find_best(x: Tensor, depth: int) -> Tensor:
    """Find the largest numbers of each row, best first, ties by ascending id: [rows, depth]."""
    if depth == x.shape[1]:
        return x.sort(dim=1, descending=True, stable=True).indices
    if depth == 0:
        return torch.empty((len(x), 0), dtype=torch.int64, device=x.device)
    ranked = _rank(x, depth)
    count = torch.full((len(x), 1), depth, device=x.device)
    ids, _ = _columns(_mark_likeliest(x, ranked, count), depth)
    # Stable, so that equal numbers stay in the order of their ids.
    order = x.gather(1, ids).sort(dim=1, descending=True, stable=True).indices
    return ids.gather(1, order)


def rank_of(x: Tensor, tokens: Tensor) -> Tensor:
    """Return the rank of one token of each row, from 1, ties by ascending id: [rows] int32."""
    tokens = tokens[:, None]
    own = x.gather(1, tokens)
    columns = torch.arange(x.shape[1], device=x.device)
    level = (x == own) & (columns <= tokens)
    return ((x > own) | level).sum(1).int()


def log_probabilities(logits: Tensor, levels: Tensor) -> Tensor:
    """Work out logarithms of probabilities from some logits of each row: [rows, …] float32.

    They are float32 so that the order in which a device has added a row does not show.
    """
    return (logits.double() - levels.view(-1, *(1,) * (logits.dim() - 1))).float()


def _survey_piece(x: Tensor) -> Survey:
    top = x.amax(1, keepdim=True)
    likeliest = first_place(x == top)
    broken = x.shape[1] - torch.isfinite(x).sum(1)
    top = top.double()
    total = (x - top).exp_().sum(1)
    return Survey(top.squeeze(1) + total.log(), broken.int(), likeliest)


def _weigh(x: Tensor, top: Tensor, options: Options) -> Tensor:
    """Return weights of which the largest is 1; top: [rows, 1] float64, and so are these."""
    return (x - top).div_(options.column(Real.TEMPERATURE)).exp_()


def _rank(x: Tensor, depth: int) -> Tensor:
    """Return the largest numbers of each row, descending: [rows, depth]."""
    if depth == x.shape[1]:
        return x.sort(dim=1, descending=True).values
    return x.topk(depth, dim=1).values


def _count_kept(ranked: Tensor, top: Tensor, options: Options, limits: Limits) -> Tensor:
    """Return how many of the ranked numbers may be drawn: [rows, 1], at least 1."""
    weights = _weigh(ranked, top, options)
    count = options.top_ks.clamp(max=ranked.shape[1])
    if limits.min_p:
        likely = (weights >= options.column(Real.MIN_P)).sum(1, keepdim=True)
        count = torch.minimum(count, likely)
    if limits.top_p:
        places = torch.arange(ranked.shape[1], device=ranked.device)
        sums = weights.masked_fill_(places >= count, 0).cumsum(1)
        top_p = options.column(Real.TOP_P)
        reached = (sums < top_p * sums[:, -1:]).sum(1, keepdim=True) + 1
        count = torch.where(top_p < 1, torch.minimum(count, reached), count)
    return count.clamp(min=1)


def _mark_likeliest(x: Tensor, ranked: Tensor, count: Tensor) -> Tensor:
    """Mark the `count` largest numbers of each row, ties by ascending id: [rows, vocab] bool.

    ranked: as many of them as are counted, descending.
    """
    smallest = ranked.gather(1, count - 1)
    level = x == smallest
    wanted = count - (ranked > smallest).sum(1, keepdim=True)
    return (x > smallest) | (level & (level.cumsum(1, dtype=torch.int32) <= wanted))


def _columns(marked: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Return the first marked columns of each row, ascending, and which of these there are.

    Both: [rows, most].
    """
    sums = marked.cumsum(1, dtype=torch.int32)
    wanted = torch.arange(1, most + 1, dtype=torch.int32, device=marked.device)
    columns = torch.searchsorted(sums, wanted.repeat(len(sums), 1))
    return columns.clamp(max=marked.shape[1] - 1), columns < marked.shape[1]


def _invert(weights: Tensor, draws: Tensor) -> Tensor:
    """Return the first place of each row at which the sum exceeds draw times the total."""
    size = weights.shape[1]
    sums = weights.cumsum(1)
    total = sums[:, -1:].contiguous()
    place = torch.searchsorted(sums, (draws * total).contiguous(), right=True)
    # The product may be rounded up to the total: then the last place that adds to it.
    last = torch.searchsorted(sums, total)
    return torch.where(place < size, place, last).clamp_(max=size - 1)
