"""A decoder described by data."""

from __future__ import annotations

import msgspec


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Shape and arithmetic of a decoder; executors run any spec, families are rows of data.

    The decoder: token embedding; per layer RMSNorm, attention with rotary positions (pairs
    are the two halves of a head) and grouped KV heads, RMSNorm, SwiGLU; final RMSNorm; output
    matrix.
    """

    family: str
    """Architecture as the file names it, such as "llama"."""
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    context: int
    """Longest text, in tokens, that the model was made for."""
    norm_eps: float
    rope_theta: float
    tied_embeddings: bool
    """The output matrix is the embedding matrix."""
