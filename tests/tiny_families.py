"""Small random models of every family, made and written by transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch
from transformers import (
    Gemma3ForCausalLM,
    Gemma3TextConfig,
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

from octavo.models.checkpoint import open_checkpoint
from octavo.models.decoder import load_decoder
from octavo.testing.tiny import hand_for

TOLERANCE = 1e-4
"""Of float32 logits, absolute; they are about as large as 3."""

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
    # Scores are not divided by √head_dim, and one layer of four sees everything.
    "gemma3": (
        Gemma3TextConfig,
        Gemma3ForCausalLM,
        {
            "num_hidden_layers": 4,
            "head_dim": 24,
            "num_key_value_heads": 1,
            "query_pre_attn_scalar": 16,
            "sliding_window": 40,
            "layer_types": [*(["sliding_attention"] * 2), "full_attention", "sliding_attention"],
            "tie_word_embeddings": True,
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
                # Gemma's are stored less one.
                values.normal_(0.0 if name == "gemma3" else 1.0, 0.1)
            elif key.endswith("bias"):
                values.normal_()
            else:
                values.normal_(0.0, 0.3 if "embed" in key else 1.2 / values.shape[-1] ** 0.5)
    folder.mkdir(exist_ok=True)
    model.to(getattr(torch, dtype)).save_pretrained(folder, max_shard_size=max_shard_size)
    return model


def words(model, count, seed=0):
    """Draw token ids of a model."""
    return np.random.default_rng(seed).integers(0, model.config.vocab_size, count).tolist()


def reference_logits(model, ids):
    """Run transformers over a whole text: [tokens, vocab_size]."""
    with torch.inference_mode():
        return model(torch.tensor([ids])).logits[0]


def served(decoder, prompt, *, chunks=(), new=4, deterministic=False, dtype="float32", reuse=False):
    """Run a prompt in chunks and decode; returns the text and the logits of each new token."""
    hand = hand_for(
        decoder,
        num_blocks=400,
        block_size=4,
        deterministic=deterministic,
        dtype=dtype,
        reuse=reuse,
    )
    hand.start(1, prompt)
    hand.generate(1, new, chunks=chunks)
    return hand.texts[1], torch.stack(hand.logits[1])


def assert_equals_transformers(model, folder, prompt, **how):
    """Serve a model from its folder; its logits are those of the model in memory."""
    text, got = served(load_decoder(open_checkpoint(folder)), prompt, **how)

    expected = reference_logits(model, text[:-1])[len(prompt) - 1 :]
    assert expected.abs().max() > 0.5, "logits that say nothing"
    torch.testing.assert_close(got, expected, atol=TOLERANCE, rtol=0)


def change(folder, **values):
    """Change settings in a folder's config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
