"""Finds the row tiles with which a decoder gives the same bits however rows are batched."""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.errors import ConfigError
from octavo.models.decoder import Decoder
from octavo.models.experts import Dense, Mixture
from octavo.models.rows import RowTiles

CANDIDATES = (128, 96, 64, 48, 32, 24, 16, 12, 8, 4, 2, 1)
"""Row counts that are tried, largest first."""

_SHUFFLES = 3


def exact_row_tiles(decoder: Decoder) -> RowTiles:
    """Try the decoder's own matrices on random rows; return the tiles that pass.

    The largest tile is the largest count at which a row's bits do not depend on its place among
    its neighbours; one row alone always qualifies. Smaller counts join if their rows are
    bit-equal to those of the largest. Costs a few dozen passes over one layer and the output.
    Raises ConfigError if the device cannot even repeat itself.
    """
    probe = _Probe(decoder)
    for place, largest in enumerate(CANDIDATES):
        if probe.place_matters(largest):
            continue
        smaller = [size for size in CANDIDATES[place + 1 :] if probe.agrees(size, largest)]
        return RowTiles((*reversed(smaller), largest))
    raise ConfigError(
        f"{decoder.device} gives other bits for the same product when it is repeated: turn "
        "deterministic off, or choose another device"
    )


class _Probe:
    """Random rows through everything that a decoder computes row by row."""

    def __init__(self, decoder: Decoder) -> None:
        spec, count = decoder.spec, CANDIDATES[0]
        source = torch.Generator().manual_seed(0)

        def rows(width: int) -> Tensor:
            values = torch.randn(count, width, generator=source)
            return values.to(device=decoder.device, dtype=decoder.dtype)

        self._decoder = decoder
        self._x = rows(spec.hidden_size)
        self._attended = rows(spec.num_heads * spec.head_dim)
        self._positions = torch.randint(0, spec.context, (count,), generator=source)
        self._shuffles = [torch.randperm(count, generator=source) for _ in range(_SHUFFLES)]

    def place_matters(self, size: int) -> bool:
        """True if shuffling `size` rows changes the bits of one."""
        first = torch.arange(size)
        plain = self._outputs(first)
        orders = [shuffle[shuffle < size] for shuffle in self._shuffles]
        orders.append(first.flip(0))
        return not all(_equal(self._outputs(order), plain, order) for order in orders)

    def agrees(self, size: int, largest: int) -> bool:
        """True if rows computed `size` at a time equal those computed `largest` at a time."""
        plain = self._outputs(torch.arange(largest))
        firsts = {0, (largest - size) // 2, largest - size}
        pieces = [torch.arange(first, first + size) for first in firsts]
        return all(_equal(self._outputs(piece), plain, piece) for piece in pieces)

    @torch.inference_mode()
    def _outputs(self, rows: Tensor) -> list[Tensor]:
        decoder, layer = self._decoder, self._decoder.layers[0]
        rows = rows.to(decoder.device)
        x, turn = self._x[rows], decoder.rotaries[0](self._positions.to(rows.device)[rows])
        middle, normed = decoder.enter_feed_forward(layer, x, self._attended[rows])
        feed = layer.feed_forward
        # A mixture cuts the rows of an expert into these very tiles, whatever the step holds.
        fed = [feed(normed)] if isinstance(feed, Dense) else _mixed(feed, normed)
        return [*decoder.project(layer, x, turn), middle, *fed, decoder.logits(x)]


def _mixed(feed: Mixture, rows: Tensor) -> list[Tensor]:
    return [feed.route(rows), feed.experts[0](rows)]


def _equal(got: list[Tensor], plain: list[Tensor], rows: Tensor) -> bool:
    return all(torch.equal(a, b[rows.to(b.device)]) for a, b in zip(got, plain, strict=True))
