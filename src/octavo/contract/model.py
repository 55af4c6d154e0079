"""A decoder described by data."""

from __future__ import annotations

from typing import Literal

import msgspec


class DefaultRope(msgspec.Struct, frozen=True, kw_only=True, tag="default", tag_field="kind"):
    """Rotary frequencies as they are: pair i of a head turns by theta^(-2i/head_dim) a position."""


class LinearRope(msgspec.Struct, frozen=True, kw_only=True, tag="linear", tag_field="kind"):
    """All frequencies divided by one number. Source: Chen et al. 2023, arXiv 2306.15595."""

    factor: float


class DynamicRope(msgspec.Struct, frozen=True, kw_only=True, tag="dynamic", tag_field="kind"):
    """Frequencies that would follow the length of the text, beyond the original context.

    Within it they are the plain ones, and a spec's `context` ends there: a longer text would
    need all its keys turned again at every token, so that neither a cache nor sharing is exact.
    """

    factor: float


class Llama3Rope(msgspec.Struct, frozen=True, kw_only=True, tag="llama3", tag_field="kind"):
    """Slow frequencies divided by `factor`, fast ones kept, a blend between (Llama 3.1)."""

    factor: float
    low_freq_factor: float
    """Wavelengths above original_context / low_freq_factor positions are slow."""
    high_freq_factor: float
    """Wavelengths below original_context / high_freq_factor positions are fast."""
    original_context: int
    """Tokens."""


class YarnRope(msgspec.Struct, frozen=True, kw_only=True, tag="yarn", tag_field="kind"):
    """YaRN: as `Llama3Rope` with a ramp over pairs, and queries and keys scaled.

    Source: Peng et al. 2023, arXiv 2309.00071.
    """

    factor: float
    original_context: int
    """Tokens."""
    attention_factor: float
    """What the rotated queries and keys are multiplied by."""
    beta_fast: float = 32.0
    """Pairs that turn more often than this over the original context are kept."""
    beta_slow: float = 1.0
    """Pairs that turn less often are divided by `factor`."""
    truncate: bool = True
    """The ramp begins and ends at whole pairs."""


class TabledRope(msgspec.Struct, frozen=True, kw_only=True, tag="table", tag_field="kind"):
    """Each frequency divided by its own number: how GGUF files store Llama 3's scaling."""

    factors: tuple[float, ...]
    """[head_dim / 2]"""


RopeScaling = DefaultRope | LinearRope | DynamicRope | Llama3Rope | YarnRope | TabledRope


class ExpertSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The feed-forward part as a mixture of experts, in every layer; no expert is shared.

    A row goes through the `per_token` experts to which a softmax over the router's scores
    gives most weight; their results are added with these weights.
    """

    number: int
    per_token: int
    intermediate_size: int
    """Width of one expert."""
    normalized: bool
    """The weights of the chosen experts are divided by their sum."""


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Shape and arithmetic of a decoder; executors run any spec, families are rows of data.

    The decoder: token embedding; per layer RMSNorm, attention with rotary positions (pairs
    are the two halves of a head) and grouped KV heads, RMSNorm, gated feed-forward part or
    experts; final RMSNorm; output matrix. Fields with a default are left out of the encoded form
    that weights are identified by, so that a new field leaves the identity of other models as it
    is.
    """

    family: str
    """Row of `models.families`, named as config.json names it, such as "llama"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    """Width of the feed-forward part; means nothing where there are experts."""
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    """Longest text, in tokens, for which the decoder is what its makers meant."""
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    """The output matrix is the embedding matrix."""
    rope_scaling: RopeScaling = DefaultRope()
    qkv_bias: bool = False
    """Queries, keys and values have a bias."""
    qk_norm: bool = False
    """Each head's query and key goes through an RMSNorm before it is rotated."""
    experts: ExpertSpec | None = None
    """None: one dense feed-forward part per layer."""
    window: int | None = None
    """Positions that a query sees in `window_layers`, its own included."""
    window_layers: tuple[int, ...] = ()
    """Layers that look back no further than the window."""
    local_rope_theta: float | None = None
    """Rotary base of `window_layers`, whose positions are not stretched; None: as the others."""
    query_scale: float = 1.0
    """What queries are multiplied by besides 1 / √head_dim; other than 1 only with `qk_norm`."""
    post_norms: bool = False
    """What attention and feed-forward part give goes through an RMSNorm before it is added."""
    float32_norms: bool = False
    """RMSNorms multiply by their weights in float32, and round to the weights' dtype after that."""
    scaled_embedding: bool = False
    """Rows of the embedding are multiplied by √hidden_size, rounded to the weights' dtype."""
    activation: Literal["silu", "gelu_tanh"] = "silu"
    """Of the gate: x · sigmoid(x), or GELU in its approximation by tanh."""
