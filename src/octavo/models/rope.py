"""Rotary factors as tensors: how far each pair of a head turns, at each position."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from octavo.contract.model import ModelSpec
from octavo.models.frequencies import Frequencies, rope_frequencies


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary factors of some rows: [rows, 1, head_dim / 2], float32 values in the model's dtype."""

    cos: Tensor
    sin: Tensor

    def split(self, sizes: tuple[int, ...]) -> list[Rotation]:
        """Cut into runs of rows."""
        pairs = zip(self.cos.split(sizes), self.sin.split(sizes), strict=True)
        return [Rotation(cos, sin) for cos, sin in pairs]

    def turn(self, heads: Tensor) -> Tensor:
        """Turn the pairs of every head: [rows, heads, head_dim] → the same shape.

        Pair i is elements i and i + head_dim / 2.
        """
        low, high = heads.chunk(2, dim=-1)
        return torch.cat(
            (low * self.cos - high * self.sin, high * self.cos + low * self.sin), dim=-1
        )


class Rotary:
    """The rotary positions of a model's layers; pure."""

    def __init__(self, turns: Frequencies, device: torch.device, dtype: torch.dtype) -> None:
        self._frequencies = torch.from_numpy(turns.values).to(device)
        self._dtype = dtype
        self._scale = turns.scale

    def __call__(self, positions: Tensor) -> Rotation:
        """Work out the rotary factors of positions: [rows] → [rows, 1, head_dim / 2] each."""
        angles = (positions.float()[:, None] * self._frequencies)[:, None, :]
        cos, sin = angles.cos(), angles.sin()
        if self._scale != 1.0:
            cos, sin = cos * self._scale, sin * self._scale
        return Rotation(cos.to(self._dtype), sin.to(self._dtype))


def rotaries(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> tuple[Rotary, ...]:
    """Return the rotary positions of a model: one for all layers, or without and with window."""
    return tuple(Rotary(turns, device, dtype) for turns in rope_frequencies(spec))
