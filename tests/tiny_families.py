"""Small random models of every family, made and written by transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM, {"rms_norm_eps": 1e-5}),
    # Like SmolLM2: an odd number of heads, tied embeddings.
    "smollm": (
        LlamaConfig,
        LlamaForCausalLM,
        {
            "hidden_size": 63,
            "num_attention_heads": 9,
            "num_key_value_heads": 3,
            "head_dim": 16,
            "tie_word_embeddings": True,
        },
    ),
    "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
    "qwen2": (
        Qwen2Config,
        Qwen2ForCausalLM,
        {"num_attention_heads": 7, "num_key_value_heads": 1, "hidden_size": 56},
    ),
    "qwen3": (
        Qwen3Config,
        Qwen3ForCausalLM,
        {
            "head_dim": 20,
            "tie_word_embeddings": True,
            "num_attention_heads": 5,
            "num_key_value_heads": 1,
        },
    ),
    "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4}),
    "qwen3_moe": (
        Qwen3MoeConfig,
        Qwen3MoeForCausalLM,
        {
            "head_dim": 16,
            "num_experts": 6,
            "num_experts_per_tok": 3,
            "moe_intermediate_size": 40,
            "norm_topk_prob": True,
        },
    ),
}
"""Config and model class by name, and what the config has beyond `SHAPE`."""

ROPES = {
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0},
    "llama3": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
        "rope_theta": 500.0,
    },
    "yarn": {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "rope_theta": 10000.0,
    },
}
"""rope_parameters by kind, for models whose original context is 128 tokens or less."""


def make_model(
    name: str,
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "float32",
    max_shard_size: str = "1GB",
    **settings: object,
) -> PreTrainedModel:
    """Make a random model and write it to `folder`; settings: values of its config."""
    config_class, model_class, beyond = FAMILIES[name]
    config = config_class(**(SHAPE | beyond | settings))
    torch.manual_seed(seed)
    model = model_class(config).eval()
    with torch.no_grad():
        for key, values in model.named_parameters():
            # Spread so that attention, routing and scores have something to choose between.
            if key.endswith("norm.weight"):
                values.normal_(1.0, 0.1)
            elif key.endswith("bias"):
                values.normal_()
            else:
                values.normal_(0.0, 0.3 if "embed" in key else 1.2 / values.shape[-1] ** 0.5)
    folder.mkdir(exist_ok=True)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    return model
