"""Read a model's shape and arithmetic from its header: config.json, or GGUF metadata.

Refuses every setting that the decoder cannot honour; knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.contract.model import DynamicRope, ExpertSpec, ModelSpec, RopeScaling
from octavo.errors import ModelError
from octavo.models.families import ExpertKeys, Family
from octavo.models.scaling import (
    extended_context,
    local_rope_from_config,
    rope_from_config,
    rope_from_gguf,
)
from octavo.models.values import Values
from octavo.models.windows import Windows, windows_from_config, windows_from_gguf

_ACTIVATIONS = {
    "silu": ("hidden_act", "silu"),
    "gelu_tanh": ("hidden_activation", "gelu_pytorch_tanh"),
}
"""By our name, the key of config.json that states an activation, and its name there."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a header says."""

    spec: ModelSpec
    notes: tuple[str, ...]
    """What the user should know: why a text must be shorter than the header announces."""


def spec_from_gguf(
    family: Family,
    metadata: Mapping[str, Any],
    *,
    vocab_size: int,
    tied: bool,
    rope_factors: tuple[float, ...] | None = None,
    where: str,
) -> Reading:
    """Read a model's shape from GGUF metadata.

    vocab_size: rows of the embedding, since not every header states it. tied: the file has no
    output matrix. rope_factors: the file's table of them, [head_dim / 2]. Raises `ModelError` for
    settings that the decoder cannot honour.
    """
    head = f"{family.gguf_name}."
    read = Values(
        {key.removeprefix(head): metadata[key] for key in metadata if key.startswith(head)},
        where,
    )
    hidden, heads = read.size("embedding_length"), read.size("attention.head_count")
    head_dim = read.size("attention.key_length", default=hidden // heads)
    read.refuse_unless("attention.value_length", (None, head_dim))
    read.refuse_unless("rope.dimension_count", (None, head_dim))
    read.refuse_unless("attn_logit_softcapping", (None, 0.0))
    read.refuse_unless("final_logit_softcapping", (None, 0.0))
    experts = _experts_from_gguf(family.experts, read)
    scaling = rope_from_gguf(read, rope_factors, head_dim)
    num_layers, context = read.size("block_count"), read.size("context_length")
    windows = windows_from_gguf(family.windows, read, num_layers)
    inner = None if experts is None else experts.intermediate_size
    spec = ModelSpec(
        family=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.size("feed_forward_length", default=inner),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=read.size("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        context=_context(family, context, scaling),
        norm_eps=read.real("attention.layer_norm_rms_epsilon"),
        rope_theta=read.real("rope.freq_base", default=10000.0),
        tied_embeddings=tied,
        rope_scaling=scaling,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        experts=experts,
        local_rope_theta=_local_rope_from_gguf(family, read, windows),
        query_scale=_query_scale(head_dim, family.gguf_query_scalars.get(num_layers, head_dim)),
        **family.beyond,
    )
    return _checked(spec, windows, where)


def spec_from_config(family: Family, config: Mapping[str, Any], *, where: str) -> Reading:
    """Read a model's shape from a Hugging Face config.json.

    Raises `ModelError` for settings that the decoder cannot honour.
    """
    # A window of null is none; elsewhere null means the default.
    given = {k: v for k, v in config.items() if v is not None or k == "sliding_window"}
    read = Values({**family.defaults, **given}, where)
    activation_key, activation = _ACTIVATIONS[family.beyond.get("activation", "silu")]
    read.refuse_unless(activation_key, (activation,))
    read.refuse_unless("attn_logit_softcapping", (None,))
    read.refuse_unless("final_logit_softcapping", (None,))
    read.refuse_unless("use_bidirectional_attention", (None, False))
    read.refuse_unless("attention_bias", (None, False))
    read.refuse_unless("mlp_bias", (None, False))
    read.refuse_unless("tie_word_embeddings", (True, False))
    read.refuse_unless("decoder_sparse_step", (None, 1))
    read.refuse_unless("mlp_only_layers", (None, []))
    if "quantization_config" in given:
        raise ModelError(
            f"{where}: the weights are quantized (quantization_config); folders are read in "
            "float32, float16 and bfloat16. Use the unquantized model, or a GGUF file."
        )
    context = read.size("max_position_embeddings")
    theta, scaling = rope_from_config(read, context)
    hidden, heads = read.size("hidden_size"), read.size("num_attention_heads")
    head_dim = read.size("head_dim", default=hidden // heads)
    num_layers = read.size("num_hidden_layers")
    windows = windows_from_config(family.windows, read, num_layers)
    spec = ModelSpec(
        family=family.name,
        vocab_size=read.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.size("intermediate_size"),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=read.size("num_key_value_heads", default=heads),
        head_dim=head_dim,
        context=_context(family, context, scaling),
        norm_eps=read.real("rms_norm_eps"),
        rope_theta=theta,
        tied_embeddings=bool(read.get("tie_word_embeddings")),
        rope_scaling=scaling,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        experts=_experts_from_config(family.experts, read),
        local_rope_theta=_local_rope_from_config(family, read, windows),
        query_scale=_query_scale(
            head_dim, read.real("query_pre_attn_scalar", default=float(head_dim))
        ),
        **family.beyond,
    )
    return _checked(spec, windows, where)


def _context(family: Family, stated: int, scaling: RopeScaling) -> int:
    return stated if family.context_is_stretched else extended_context(stated, scaling)


def _query_scale(head_dim: int, scalar: float) -> float:
    """Return what turns scores divided by √head_dim into scores divided by √scalar."""
    return 1.0 if scalar == head_dim else (head_dim / scalar) ** 0.5


def _local_rope_from_gguf(family: Family, read: Values, windows: Windows) -> float | None:
    if family.local_rope_key is None or not windows.layers:
        return None
    return read.real("rope.freq_base_swa", default=family.defaults[family.local_rope_key])


def _local_rope_from_config(family: Family, read: Values, windows: Windows) -> float | None:
    if family.local_rope_key is None or not windows.layers:
        return None
    return local_rope_from_config(read, family.local_rope_key)


def _experts_from_config(keys: ExpertKeys | None, read: Values) -> ExpertSpec | None:
    if keys is None:
        return None
    if keys.normalized is not None:
        read.refuse_unless(keys.normalized, (True, False))
    # Qwen's own files say num_experts; transformers 5 writes num_local_experts for all families.
    number = "num_experts" if read.get("num_local_experts") is None else "num_local_experts"
    return _checked_experts(
        ExpertSpec(
            number=read.size(number),
            per_token=read.size("num_experts_per_tok"),
            intermediate_size=read.size(keys.width),
            normalized=keys.normalized is None or bool(read.get(keys.normalized)),
        ),
        read,
        "num_experts_per_tok",
    )


def _experts_from_gguf(keys: ExpertKeys | None, read: Values) -> ExpertSpec | None:
    if keys is None:
        return None
    # llama.cpp normalizes for both architectures, and its converters do not say so.
    read.refuse_unless("expert_weights_norm", (None, True))
    read.refuse_unless("expert_weights_scale", (None, 0.0, 1.0))
    read.refuse_unless("expert_shared_count", (None, 0))
    read.refuse_unless("expert_gating_func", (None, 1))
    read.refuse_unless("leading_dense_block_count", (None, 0))
    stated = read.get("expert_feed_forward_length") is not None
    width = "expert_feed_forward_length" if stated else "feed_forward_length"
    return _checked_experts(
        ExpertSpec(
            number=read.size("expert_count"),
            per_token=read.size("expert_used_count"),
            intermediate_size=read.size(width),
            normalized=True,
        ),
        read,
        "expert_used_count",
    )


def _checked_experts(experts: ExpertSpec, read: Values, key: str) -> ExpertSpec:
    if experts.per_token > experts.number:
        raise ModelError(
            f"{read.where}: {key} is {experts.per_token}, but there are only {experts.number} "
            "experts. Header and model do not belong together: download it again."
        )
    return experts


def _checked(spec: ModelSpec, windows: Windows, where: str) -> Reading:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"{where}: {spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads "
            "evenly."
        )
    if spec.head_dim < 2 or spec.head_dim % 2:
        raise ModelError(
            f"{where}: head_dim must be even, since rotary pairs fill it, found {spec.head_dim}."
        )
    notes: list[str] = []
    if isinstance(spec.rope_scaling, DynamicRope):
        notes.append(
            f"texts are limited to {spec.context} tokens: the model stretches its positions by "
            "the length of the text (rope type dynamic), which no KV cache can follow exactly"
        )
    # A window that no text fills is none, unless its layers differ in more than that.
    narrow = windows.tokens is not None and windows.tokens < spec.context
    if narrow or spec.local_rope_theta is not None:
        spec = msgspec.structs.replace(spec, window=windows.tokens, window_layers=windows.layers)
    return Reading(spec, tuple(notes))
