"""Read how a model stretches its rotary positions: typed values from config.json or GGUF.

The arithmetic itself is the business of `rope`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from octavo.contract.model import (
    DefaultRope,
    DynamicRope,
    LinearRope,
    Llama3Rope,
    RopeScaling,
    TabledRope,
    YarnRope,
)
from octavo.errors import ModelError
from octavo.models.values import Values

ROPE_FACTORS = "rope_freqs.weight"
"""GGUF's table of factors that divide the rotary frequencies; Llama 3 has one."""

_MOST = 1e5
"""A greater factor is a broken number."""


def extended_context(context: int, scaling: RopeScaling) -> int:
    """Return the longest text, given the context that a header states.

    Headers of `linear` and `yarn` models commonly state the context before stretching. (vLLM
    multiplies in the same way.) Under `dynamic` it stays as stated; see `DynamicRope`.
    """
    match scaling:
        case LinearRope(factor=factor):
            return int(context * factor)
        case YarnRope(factor=factor, original_context=original):
            return max(context, int(original * factor))
        case _:
            return context


def rope_from_config(read: Values, context: int) -> tuple[float, RopeScaling]:
    """Return the rotary base and the scaling of a config.json; context: as it states, in tokens."""
    table = _merged_tables(read)
    rope = Values(table, read.where)
    rope.refuse_unless("partial_rotary_factor", (None, 1.0))
    theta = rope.real("rope_theta")
    kind = table["rope_type"]
    build = _KINDS.get(kind) if isinstance(kind, str) else None
    if build is None:
        raise ModelError(
            f"{read.where}: rope_type is {kind!r}; supported: {', '.join(_KINDS)}. "
            "Use a model without it: running it anyway would give wrong text."
        )
    return theta, build(rope, context)


def local_rope_from_config(read: Values, key: str) -> float:
    """Return the rotary base of the layers with a window; key: where it is unless in a table."""
    table = _table(read, "rope_parameters").get("sliding_attention")
    if table is None:
        return read.real(key)
    if not isinstance(table, dict):
        raise ModelError(f"{read.where}: rope_parameters.sliding_attention is {table!r}, no table.")
    rope = Values(table, read.where)
    rope.refuse_unless("rope_type", (None, "default"))
    return rope.real("rope_theta", default=read.real(key))


def rope_from_gguf(read: Values, factors: tuple[float, ...] | None, head_dim: int) -> RopeScaling:
    """Return the scaling that GGUF metadata states; factors: the file's own table, if it has one.

    As in llama.cpp, a factor without a type means linear.
    """
    key = "rope.scaling.factor" if read.get("rope.scaling.factor") else "rope.scale_linear"
    factor = read.get(key)
    kind = read.get("rope.scaling.type") or ("linear" if factor else "none")
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(
            f"{read.where}: rope.scaling.type is {kind!r}; supported: none, linear, yarn. "
            "Use a model without it: running it anyway would give wrong text."
        )
    read.refuse_unless("rope.scaling.attn_factor", (None, 1.0))
    read.refuse_unless("rope.scaling.yarn_ext_factor", (None, 1.0, -1.0))
    read.refuse_unless("rope.scaling.yarn_attn_factor", (None, 1.0))
    read.refuse_unless("rope.scaling.yarn_log_multiplier", (None, 0.0))
    stretched = kind != "none" and factor not in (None, 0, 1)
    if factors is not None:
        if stretched:
            raise ModelError(
                f"{read.where}: the file has both a table of rope factors and rope.scaling.type "
                f"{kind!r}. Only one of them can be honoured: convert the model again."
            )
        if len(factors) != head_dim // 2 or not all(0.0 < one < 1e30 for one in factors):
            raise ModelError(
                f"{read.where}: tensor {ROPE_FACTORS!r} has {len(factors)} numbers, not "
                f"{head_dim // 2} positive ones, one for each rotary pair. Convert the model again."
            )
        return TabledRope(factors=factors)
    if not stretched:
        return DefaultRope()
    value = read.real(key, least=1.0, most=_MOST)
    if kind == "linear":
        return LinearRope(factor=value)
    read.real("rope.freq_base", default=10000.0, least=2.0)  # as in `_yarn`
    return YarnRope(
        factor=value,
        original_context=read.size(
            "rope.scaling.original_context_length", default=read.size("context_length")
        ),
        attention_factor=_yarn_scale(value),
        beta_fast=read.real("rope.scaling.yarn_beta_fast", default=32.0),
        beta_slow=read.real("rope.scaling.yarn_beta_slow", default=1.0),
    )


def _merged_tables(read: Values) -> dict[str, Any]:
    """Return rotary settings under one set of names; transformers 5 moved and renamed them."""
    names = ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
    merged = {name: read.get(name) for name in names if read.get(name) is not None}
    original = merged.get("original_max_position_embeddings")
    kinds: list[Any] = []
    for key in ("rope_scaling", "rope_parameters"):
        table = _table(read, key)
        # One table for each kind of layer: the others have windows, and a function of their own.
        table = table.get("full_attention", table)
        if not isinstance(table, dict):
            raise ModelError(f"{read.where}: full_attention in {key} is {table!r}, not a table.")
        stated = {name: value for name, value in table.items() if value is not None}
        kinds += [stated[name] for name in ("type", "rope_type") if name in stated]
        merged |= stated
    if original is not None:
        merged["original_max_position_embeddings"] = original
    # Any table that asks for scaling counts, even if another one does not.
    unusual = [kind for kind in kinds if kind != "default"]
    return merged | {"rope_type": unusual[0] if unusual else "default"}


def _table(read: Values, key: str) -> dict[str, Any]:  # any JSON
    table = read.get(key)
    if not isinstance(table, dict | None):
        raise ModelError(f"{read.where}: {key} is {table!r}, not a table.")
    return table or {}


def _default(rope: Values, context: int) -> RopeScaling:
    return DefaultRope()


def _linear(rope: Values, context: int) -> RopeScaling:
    return LinearRope(factor=rope.real("factor", least=1.0, most=_MOST))


def _dynamic(rope: Values, context: int) -> RopeScaling:
    return DynamicRope(factor=rope.real("factor", least=1.0, most=_MOST))


def _llama3(rope: Values, context: int) -> RopeScaling:
    low, high = rope.real("low_freq_factor"), rope.real("high_freq_factor")
    if not low < high:
        raise ModelError(
            f"{rope.where}: low_freq_factor ({low:g}) must be less than high_freq_factor "
            f"({high:g}). The config is broken: download it again."
        )
    return Llama3Rope(
        factor=rope.real("factor", least=1.0, most=_MOST),
        low_freq_factor=low,
        high_freq_factor=high,
        original_context=rope.size("original_max_position_embeddings", default=context),
    )


def _yarn(rope: Values, context: int) -> RopeScaling:
    rope.real("rope_theta", least=2.0)  # the ramp divides by its logarithm
    original = rope.size("original_max_position_embeddings", default=context)
    factor = rope.real("factor", default=context / original, least=1.0, most=_MOST)
    scale = _yarn_scale(factor)
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        scale = _yarn_scale(factor, rope.real("mscale"))
        scale /= _yarn_scale(factor, rope.real("mscale_all_dim"))
    rope.refuse_unless("truncate", (None, True, False))
    return YarnRope(
        factor=factor,
        original_context=original,
        attention_factor=rope.real("attention_factor", default=scale),
        beta_fast=rope.real("beta_fast", default=32.0),
        beta_slow=rope.real("beta_slow", default=1.0),
        truncate=rope.get("truncate") is not False,
    )


def _yarn_scale(factor: float, weight: float = 1.0) -> float:
    """Return YaRN's attention factor: 1 + 0.1 ln(factor), weighted."""
    return 1.0 if factor <= 1.0 else 0.1 * weight * math.log(factor) + 1.0


_KINDS: dict[str, Callable[[Values, int], RopeScaling]] = {
    "default": _default,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
