"""The settings of published models give the number of parameters that their makers state."""

from __future__ import annotations

import math

import pytest

from octavo.contract.layout import kv_layout
from octavo.models.families import find_family
from octavo.models.settings import spec_from_config
from octavo.models.weights import weight_shapes

LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}


def config(family: str, shape: str, **others: object) -> dict[str, object]:
    """Settings from "vocabulary hidden inner layers heads kv_heads context"."""
    keys = (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "max_position_embeddings",
    )
    numbers = dict(zip(keys, map(int, shape.split()), strict=True))
    return {"model_type": family, **numbers, **others}


LINEAR = {"factor": 8.0, "rope_type": "linear"}


def gemma(shape: str, **others: object) -> dict[str, object]:
    """Settings of a Gemma 3, whose heads are all 256 wide."""
    return config("gemma3_text", shape, head_dim=256, query_pre_attn_scalar=256, **others)


PUBLISHED = {
    "Llama 2 7B": (
        config("llama", "32000 4096 11008 32 32 32 4096"),
        6_738_415_616,
        4096,
        524_288,
    ),
    "Llama 3.1 8B": (
        config("llama", "128256 4096 14336 32 32 8 131072", rope_scaling=LLAMA3, rope_theta=5e5),
        8_030_261_248,
        131_072,
        131_072,
    ),
    "Llama 3.1 70B": (
        config("llama", "128256 8192 28672 80 64 8 131072", rope_scaling=LLAMA3, rope_theta=5e5),
        70_553_706_496,
        131_072,
        327_680,
    ),
    "SmolLM2 135M": (
        config("llama", "49152 576 1536 30 9 3 8192", tie_word_embeddings=True),
        134_515_008,
        8192,
        23_040,
    ),
    "Mistral 7B v0.1": (
        config("mistral", "32000 4096 14336 32 32 8 32768", sliding_window=4096),
        7_241_732_096,
        32_768,
        131_072,
    ),
    "Mistral 7B v0.3": (
        config("mistral", "32768 4096 14336 32 32 8 32768", sliding_window=None),
        7_248_023_552,
        32_768,
        131_072,
    ),
    "Mixtral 8x7B": (
        config("mixtral", "32000 4096 14336 32 32 8 32768", num_local_experts=8),
        46_702_792_704,
        32_768,
        131_072,
    ),
    "Qwen2.5 0.5B": (
        config(
            "qwen2",
            "151936 896 4864 24 14 2 32768",
            tie_word_embeddings=True,
            use_sliding_window=False,
            sliding_window=32768,
            max_window_layers=21,
        ),
        494_032_768,
        32_768,
        12_288,
    ),
    "Qwen2.5 7B, stretched": (
        config(
            "qwen2",
            "152064 3584 18944 28 28 4 32768",
            rope_scaling={
                "type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 32768,
            },
        ),
        7_615_616_512,
        131_072,
        57_344,
    ),
    "Qwen3 0.6B": (
        config("qwen3", "151936 1024 3072 28 16 8 40960", head_dim=128, tie_word_embeddings=True),
        596_049_920,
        40_960,
        114_688,
    ),
    "Gemma 3 270M": (
        gemma("262144 640 2048 18 4 1 32768", sliding_window=512),
        268_098_176,
        32_768,
        18_432,
    ),
    "Gemma 3 1B": (
        gemma("262144 1152 6912 26 4 1 32768", sliding_window=512),
        999_885_952,
        32_768,
        26_624,
    ),
    "Gemma 3 4B, its text part": (
        gemma("262208 2560 10240 34 8 4 131072", sliding_window=1024, rope_scaling=LINEAR),
        3_880_263_168,
        131_072,
        143_360,
    ),
    "Qwen3 30B-A3B": (
        config(
            "qwen3_moe",
            "151936 2048 6144 48 32 4 40960",
            head_dim=128,
            num_experts=128,
            num_experts_per_tok=8,
            moe_intermediate_size=768,
            norm_topk_prob=True,
            decoder_sparse_step=1,
            mlp_only_layers=[],
        ),
        30_532_122_624,
        40_960,
        98_304,
    ),
}
"""config.json, parameters, longest text, bytes of KV a token in 16 bits."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_config_gives_the_published_size(name):
    settings, parameters, context, kv_bytes = PUBLISHED[name]
    spec = spec_from_config(find_family(settings["model_type"], name), settings, where=name).spec

    assert sum(map(math.prod, weight_shapes(spec).values())) == parameters
    assert spec.context == context
    assert kv_layout(spec, block_size=16, dtype="float16").bytes_per_token == kv_bytes
