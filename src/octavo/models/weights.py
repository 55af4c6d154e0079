"""Our names of a decoder's weights, and the shape of each: what every source must supply.

Torch-free: checkpoints are checked against it, planners count with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from octavo.contract.model import ModelSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

EXPERT_MARK = ".experts."
"""In the name of every weight that belongs to one expert: layers.{i}.experts.{j}.gate."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of one weight in the order of its rows, as its source has them."""

    shape: tuple[int, ...]
    dtype: str
    """float32, float16 or bfloat16."""
    data: NDArray[Any]
    """One axis of float32, or of 16 bits each as uint16, since numpy has no bfloat16; maybe a
    read-only view of a file. Fewer numbers than the shape has are repeated until it is full."""


def float32_numbers(values: NDArray[np.float32]) -> Numbers:
    """Hand out an array as it is."""
    return Numbers(values.shape, "float32", values.reshape(-1))


def weight_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Return the shape of every weight by its name: matrices are [out, in], others [out].

    "output" is absent if the embeddings are tied.
    """
    hidden = spec.hidden_size
    shapes: dict[str, tuple[int, ...]] = {"embedding": (spec.vocab_size, hidden)}
    layer = _layer_shapes(spec)
    for number in range(spec.num_layers):
        shapes |= {f"layers.{number}.{name}": shape for name, shape in layer.items()}
    shapes["norm"] = (hidden,)
    if not spec.tied_embeddings:
        shapes["output"] = (spec.vocab_size, hidden)
    return shapes


def _layer_shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden = spec.hidden_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "ffn_norm": (hidden,),
    }
    if spec.qkv_bias:
        shapes |= {"q_bias": (queries,), "k_bias": (keys,), "v_bias": (keys,)}
    if spec.qk_norm:
        shapes |= {"q_norm": (spec.head_dim,), "k_norm": (spec.head_dim,)}
    if spec.post_norms:
        shapes |= {"attn_post_norm": (hidden,), "ffn_post_norm": (hidden,)}
    if spec.experts is None:
        return shapes | _feed_forward_shapes(hidden, spec.intermediate_size)
    shapes["router"] = (spec.experts.number, hidden)
    one = _feed_forward_shapes(hidden, spec.experts.intermediate_size)
    for expert in range(spec.experts.number):
        shapes |= {f"experts.{expert}.{name}": shape for name, shape in one.items()}
    return shapes


def _feed_forward_shapes(hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {"gate": (inner, hidden), "up": (inner, hidden), "down": (hidden, inner)}
