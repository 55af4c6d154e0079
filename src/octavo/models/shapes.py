"""Published models as shapes, to be measured without their weights: facts from their config.json.

A shape stands for what a model costs, not for what it says. So positions are never stretched: the
frequencies of Llama 3's are as many numbers as the plain ones.
"""

from __future__ import annotations

from typing import Any

from octavo.contract.model import ExpertSpec, ModelSpec
from octavo.errors import ConfigError

_Fields = dict[str, Any]
"""Fields of `ModelSpec`, of their types."""

_LLAMA_2: _Fields = {
    "family": "llama",
    "vocab_size": 32_000,
    "head_dim": 128,
    "context": 4096,
    "norm_eps": 1e-5,
    "rope_theta": 1e4,
    "tied_embeddings": False,
}
_LLAMA_3: _Fields = {
    "family": "llama",
    "vocab_size": 128_256,
    "num_kv_heads": 8,
    "context": 131_072,
    "norm_eps": 1e-5,
    "rope_theta": 5e5,
}
_MISTRAL: _Fields = {
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_layers": 32,
    "num_heads": 32,
    "num_kv_heads": 8,
    "head_dim": 128,
    "context": 32_768,
    "norm_eps": 1e-5,
    "rope_theta": 1e6,
    "tied_embeddings": False,
}
_QWEN_3: _Fields = {
    "vocab_size": 151_936,
    "head_dim": 128,
    "context": 40_960,
    "norm_eps": 1e-6,
    "rope_theta": 1e6,
    "qk_norm": True,
}

SHAPES: dict[str, ModelSpec] = {
    "llama-2-7b": ModelSpec(
        **_LLAMA_2,
        hidden_size=4096,
        intermediate_size=11_008,
        num_layers=32,
        num_heads=32,
        num_kv_heads=32,
    ),
    "llama-2-13b": ModelSpec(
        **_LLAMA_2,
        hidden_size=5120,
        intermediate_size=13_824,
        num_layers=40,
        num_heads=40,
        num_kv_heads=40,
    ),
    "llama-3.1-8b": ModelSpec(
        **_LLAMA_3,
        hidden_size=4096,
        intermediate_size=14_336,
        num_layers=32,
        num_heads=32,
        head_dim=128,
        tied_embeddings=False,
    ),
    "llama-3.1-70b": ModelSpec(
        **_LLAMA_3,
        hidden_size=8192,
        intermediate_size=28_672,
        num_layers=80,
        num_heads=64,
        head_dim=128,
        tied_embeddings=False,
    ),
    "llama-3.2-1b": ModelSpec(
        **_LLAMA_3,
        hidden_size=2048,
        intermediate_size=8192,
        num_layers=16,
        num_heads=32,
        head_dim=64,
        tied_embeddings=True,
    ),
    "llama-3.2-3b": ModelSpec(
        **_LLAMA_3,
        hidden_size=3072,
        intermediate_size=8192,
        num_layers=28,
        num_heads=24,
        head_dim=128,
        tied_embeddings=True,
    ),
    # v0.3, which has no window.
    "mistral-7b": ModelSpec(**_MISTRAL, family="mistral", vocab_size=32_768),
    "mixtral-8x7b": ModelSpec(
        **_MISTRAL,
        family="mixtral",
        vocab_size=32_000,
        experts=ExpertSpec(number=8, per_token=2, intermediate_size=14_336, normalized=True),
    ),
    "qwen2.5-7b": ModelSpec(
        family="qwen2",
        vocab_size=152_064,
        hidden_size=3584,
        intermediate_size=18_944,
        num_layers=28,
        num_heads=28,
        num_kv_heads=4,
        head_dim=128,
        context=32_768,
        norm_eps=1e-6,
        rope_theta=1e6,
        tied_embeddings=False,
        qkv_bias=True,
    ),
    "qwen3-0.6b": ModelSpec(
        **_QWEN_3,
        family="qwen3",
        hidden_size=1024,
        intermediate_size=3072,
        num_layers=28,
        num_heads=16,
        num_kv_heads=8,
        tied_embeddings=True,
    ),
    "qwen3-8b": ModelSpec(
        **_QWEN_3,
        family="qwen3",
        hidden_size=4096,
        intermediate_size=12_288,
        num_layers=36,
        num_heads=32,
        num_kv_heads=8,
        tied_embeddings=False,
    ),
    "qwen3-32b": ModelSpec(
        **_QWEN_3,
        family="qwen3",
        hidden_size=5120,
        intermediate_size=25_600,
        num_layers=64,
        num_heads=64,
        num_kv_heads=8,
        tied_embeddings=False,
    ),
    "qwen3-30b-a3b": ModelSpec(
        **_QWEN_3,
        family="qwen3_moe",
        hidden_size=2048,
        intermediate_size=6144,
        num_layers=48,
        num_heads=32,
        num_kv_heads=4,
        tied_embeddings=False,
        experts=ExpertSpec(number=128, per_token=8, intermediate_size=768, normalized=True),
    ),
}
"""Shapes by their names; their weights are 16-bit numbers."""


def find_shape(name: str) -> ModelSpec:
    """Return a shape by its name. Raises ConfigError that lists all of them."""
    if name not in SHAPES:
        raise ConfigError(
            f"shape {name!r} is not one of {', '.join(SHAPES)}: choose one, or name a folder with "
            "a config.json as the model"
        )
    return SHAPES[name]
