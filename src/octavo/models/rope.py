"""Rotary factors: which angle each pair of a head turns by, at each position.

Frequencies are worked out as transformers does, in the same order and in float32, since at long
positions the last bit of a frequency shows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import torch
from torch import Tensor

from octavo.contract.model import (
    DefaultRope,
    DynamicRope,
    LinearRope,
    Llama3Rope,
    ModelSpec,
    TabledRope,
    YarnRope,
)


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

    def __init__(self, spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> None:
        self._frequencies = frequencies(spec).to(device)
        self._dtype = dtype
        scaling = spec.rope_scaling
        self._scale = scaling.attention_factor if isinstance(scaling, YarnRope) else 1.0

    def __call__(self, positions: Tensor) -> Rotation:
        """Work out the rotary factors of positions: [rows] → [rows, 1, head_dim / 2] each."""
        angles = (positions.float()[:, None] * self._frequencies)[:, None, :]
        cos, sin = angles.cos(), angles.sin()
        if self._scale != 1.0:
            cos, sin = cos * self._scale, sin * self._scale
        return Rotation(cos.to(self._dtype), sin.to(self._dtype))


def rotaries(spec: ModelSpec, device: torch.device, dtype: torch.dtype) -> tuple[Rotary, ...]:
    """Return the rotary positions of a model: one for all layers, or without and with window."""
    if spec.local_rope_theta is None:
        return (Rotary(spec, device, dtype),)
    local = msgspec.structs.replace(
        spec, rope_theta=spec.local_rope_theta, rope_scaling=DefaultRope()
    )
    return (Rotary(spec, device, dtype), Rotary(local, device, dtype))


def frequencies(spec: ModelSpec) -> Tensor:
    """Return the radians per position of each rotary pair: [head_dim / 2] float32."""
    plain = _plain(spec)
    match spec.rope_scaling:
        case DefaultRope() | DynamicRope():
            return plain
        case LinearRope(factor=factor):
            return plain / factor
        case TabledRope(factors=factors):
            return plain / torch.tensor(factors, dtype=torch.float32)
        case Llama3Rope() as scaling:
            return _llama3(plain, scaling)
        case YarnRope() as scaling:
            return _yarn(spec, scaling)


def _powers(spec: ModelSpec) -> Tensor:
    exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
    return spec.rope_theta**exponents


def _plain(spec: ModelSpec) -> Tensor:
    return 1.0 / _powers(spec)


def _llama3(plain: Tensor, scaling: Llama3Rope) -> Tensor:
    """Source: the Llama 3.1 models' reference code."""
    original, low, high = (
        scaling.original_context,
        scaling.low_freq_factor,
        scaling.high_freq_factor,
    )
    wavelengths = 2 * math.pi / plain
    blend = (original / wavelengths - low) / (high - low)
    blended = (1 - blend) * plain / scaling.factor + blend * plain
    slow, fast = wavelengths > original / low, wavelengths < original / high
    return torch.where(slow, plain / scaling.factor, torch.where(fast, plain, blended))


def _yarn(spec: ModelSpec, scaling: YarnRope) -> Tensor:
    """Keep fast pairs, divide slow ones, and go over linearly between them."""
    powers = _powers(spec)

    def pair_that_turns(times: float) -> float:
        # The pair, as a real number, that makes so many turns over the original context.
        share = math.log(scaling.original_context / (times * 2 * math.pi))
        return spec.head_dim * share / (2 * math.log(spec.rope_theta))

    first, last = pair_that_turns(scaling.beta_fast), pair_that_turns(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, spec.head_dim - 1)
    if first == last:
        last += 0.001
    ramp = (torch.arange(spec.head_dim // 2, dtype=torch.float32) - first) / (last - first)
    kept = 1 - ramp.clamp(0, 1)
    return (1.0 / (scaling.factor * powers)) * (1 - kept) + (1.0 / powers) * kept
