"""Rotary frequencies: by which angle each pair of a head turns from one position to the next.

Worked out as transformers does, in the same order and in float32, since at long positions the last
bits of a frequency show; powers are rounded correctly, which torch does not do. Needs numpy only,
so that every executor shares it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from octavo.contract.model import (
    DefaultRope,
    DynamicRope,
    LinearRope,
    Llama3Rope,
    ModelSpec,
    TabledRope,
    YarnRope,
)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Frequencies:
    """How the queries and keys of some layers turn."""

    values: Floats
    """[head_dim / 2] radians per position."""
    scale: float = 1.0
    """What the rotated queries and keys are multiplied by."""


def rope_frequencies(spec: ModelSpec) -> tuple[Frequencies, ...]:
    """Return a model's frequencies: one set for all layers, or without and with a window."""
    if spec.local_rope_theta is None:
        return (_of(spec),)
    local = msgspec.structs.replace(
        spec, rope_theta=spec.local_rope_theta, rope_scaling=DefaultRope()
    )
    return _of(spec), _of(local)


def _of(spec: ModelSpec) -> Frequencies:
    plain = np.float32(1) / _powers(spec)
    match spec.rope_scaling:
        case DefaultRope() | DynamicRope():
            return Frequencies(plain)
        case LinearRope(factor=factor):
            return Frequencies(plain / np.float32(factor))
        case TabledRope(factors=factors):
            return Frequencies(plain / np.array(factors, np.float32))
        case Llama3Rope() as scaling:
            return Frequencies(_llama3(plain, scaling))
        case YarnRope() as scaling:
            return Frequencies(_yarn(spec, scaling), scaling.attention_factor)


def _powers(spec: ModelSpec) -> Floats:
    exponents = np.arange(0, spec.head_dim, 2, dtype=np.float32) / np.float32(spec.head_dim)
    return np.power(spec.rope_theta, exponents.astype(np.float64)).astype(np.float32)


def _llama3(plain: Floats, scaling: Llama3Rope) -> Floats:
    """Source: the Llama 3.1 models' reference code."""
    original, low, high = (
        scaling.original_context,
        scaling.low_freq_factor,
        scaling.high_freq_factor,
    )
    factor = np.float32(scaling.factor)
    # A number over an array is the reciprocal times the number, as torch has it.
    wavelengths = np.reciprocal(plain) * np.float32(2 * math.pi)
    turns = np.reciprocal(wavelengths) * np.float32(original)
    blend = (turns - np.float32(low)) / np.float32(high - low)
    blended = (1 - blend) * plain / factor + blend * plain
    slow, fast = wavelengths > original / low, wavelengths < original / high
    return np.where(slow, plain / factor, np.where(fast, plain, blended)).astype(np.float32)


def _yarn(spec: ModelSpec, scaling: YarnRope) -> Floats:
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
    ramp = (np.arange(spec.head_dim // 2, dtype=np.float32) - np.float32(first)) / np.float32(
        last - first
    )
    kept = 1 - np.clip(ramp, 0, 1)
    slow = np.float32(1) / (np.float32(scaling.factor) * powers)
    return (slow * (1 - kept) + np.float32(1) / powers * kept).astype(np.float32)
