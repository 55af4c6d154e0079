"""Write a random transformers model as GGUF, as llama.cpp's converter does.

Tensor names come from the gguf package's own table, not from ours.
"""

from __future__ import annotations

import re
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import quantize
from transformers import PreTrainedModel

ARCHITECTURES = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3": gguf.MODEL_ARCH.GEMMA3,
}
SETTINGS = {
    # Their header says neither which layers have the window nor what scores are divided by.
    "gemma3": {"num_hidden_layers": 7, "layer_types": None, "query_pre_attn_scalar": 24}
}
"""What a model's config must say for its file to hold the same model."""


def convert(
    model: PreTrainedModel,
    path: Path,
    *,
    kind: str = "F32",
    metadata: dict[str, object] | None = None,
    extra: dict[str, np.ndarray] | None = None,
    drop: str | None = None,
) -> Path:
    """Write a model; kind: of its matrices. metadata, extra and drop change what is written."""
    config = model.config
    arch = ARCHITECTURES[config.model_type.removesuffix("_text")]
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[arch])
    _write_header(writer, config)
    for key, value in (metadata or {}).items():
        add = {
            int: writer.add_uint32,
            float: writer.add_float32,
            str: writer.add_string,
            list: writer.add_array,
        }
        add[type(value)](f"{gguf.MODEL_ARCH_NAMES[arch]}.{key}", value)
    raw_type = gguf.GGMLQuantizationType[kind]
    for name, values in (_tensors(model, arch) | (extra or {})).items():
        if name == drop:
            continue
        if values.ndim == 1 or "ffn_gate_inp" in name:
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, quantize(values, raw_type), raw_dtype=raw_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def llama3_factors(config) -> np.ndarray:
    """The table that the converter writes for Llama 3's scaling: [head_dim / 2]."""
    rope, half = config.rope_parameters, config.head_dim // 2
    original, low, high = (
        rope["original_max_position_embeddings"],
        rope["low_freq_factor"],
        rope["high_freq_factor"],
    )
    factors = []
    for pair in range(half):
        wavelength = 2 * np.pi * rope["rope_theta"] ** (pair / half)
        if wavelength < original / high:
            factors.append(1.0)
        elif wavelength > original / low:
            factors.append(rope["factor"])
        else:
            smooth = (original / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, np.float32)


def _write_header(writer: gguf.GGUFWriter, config) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    rope = config.rope_parameters
    rope = rope.get("full_attention", rope)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "gemma3_text":
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "head_dim", None):
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    if getattr(config, "num_local_experts", None):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])


def _tensors(model: PreTrainedModel, arch: gguf.MODEL_ARCH) -> dict[str, np.ndarray]:
    config = model.config
    names = gguf.get_tensor_name_map(arch, config.num_hidden_layers)
    tensors: dict[str, np.ndarray] = {}
    for key, values in model.state_dict().items():
        if key == "lm_head.weight" and config.tie_word_embeddings:
            continue
        stored = values.float().numpy()
        if arch == gguf.MODEL_ARCH.GEMMA3 and key.endswith("norm.weight"):
            stored = stored + 1.0
        if match := re.fullmatch(r"model\.layers\.(\d+)\.mlp\.experts\.(\w+)", key):
            layer, what = match.groups()
            if what == "gate_up_proj":
                gate, up = np.split(stored, 2, axis=1)
                tensors[f"blk.{layer}.ffn_gate_exps.weight"] = gate.copy()
                tensors[f"blk.{layer}.ffn_up_exps.weight"] = up.copy()
            else:
                tensors[f"blk.{layer}.ffn_down_exps.weight"] = stored
            continue
        if arch == gguf.MODEL_ARCH.LLAMA:
            for part, heads in (
                ("q_proj", config.num_attention_heads),
                ("k_proj", config.num_key_value_heads),
            ):
                if part in key:
                    stored = _permuted(values.float(), heads)
        name = names.get_name(key, try_suffixes=(".weight", ".bias"))
        assert name is not None, key
        tensors[name] = stored
    return tensors


def _permuted(rows: torch.Tensor, heads: int) -> np.ndarray:
    """The row order of the original Llama: within a head, the two halves are interleaved."""
    paired = rows.view(heads, 2, -1, rows.shape[-1]).transpose(1, 2)
    return paired.reshape(rows.shape).contiguous().numpy()
