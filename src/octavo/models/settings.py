"""Read a model's shape and arithmetic from its header: config.json, or GGUF metadata.

Refuses every setting that the decoder cannot honour; knows no weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from octavo.contract.model import DynamicRope, ExpertSpec, ModelSpec
from octavo.errors import ModelError
from octavo.models.families import ExpertKeys, Family
from octavo.models.scaling import extended_context, rope_from_config, rope_from_gguf
from octavo.models.values import Values


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
        {key.removeprefix(head): value for key, value in metadata.items() if key.startswith(head)},
        where,
    )
    hidden, heads = read.size("embedding_length"), read.size("attention.head_count")
    head_dim = read.size("attention.key_length", default=hidden // heads)
    read.refuse_unless("attention.value_length", (None, head_dim))
    read.refuse_unless("rope.dimension_count", (None, head_dim))
    experts = _experts_from_gguf(family.experts, read)
    scaling = rope_from_gguf(read, rope_factors, head_dim)
    inner = None if experts is None else experts.intermediate_size
    spec = ModelSpec(
        family=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.size("feed_forward_length", default=inner),
        num_layers=read.size("block_count"),
        num_heads=heads,
        num_kv_heads=read.size("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        context=extended_context(read.size("context_length"), scaling),
        norm_eps=read.real("attention.layer_norm_rms_epsilon"),
        rope_theta=read.real("rope.freq_base", default=10000.0),
        tied_embeddings=tied,
        rope_scaling=scaling,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        experts=experts,
    )
    window = read.get("attention.sliding_window")
    return _checked(spec, read.size("attention.sliding_window") if window else None, where)


def spec_from_config(family: Family, config: Mapping[str, Any], *, where: str) -> Reading:
    """Read a model's shape from a Hugging Face config.json.

    Raises `ModelError` for settings that the decoder cannot honour.
    """
    given = {key: value for key, value in config.items() if value is not None}
    read = Values({**family.defaults, **given}, where)
    read.refuse_unless("hidden_act", ("silu",))
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
    spec = ModelSpec(
        family=family.name,
        vocab_size=read.size("vocab_size"),
        hidden_size=hidden,
        intermediate_size=read.size("intermediate_size"),
        num_layers=read.size("num_hidden_layers"),
        num_heads=heads,
        num_kv_heads=read.size("num_key_value_heads", default=heads),
        head_dim=read.size("head_dim", default=hidden // heads),
        context=extended_context(context, scaling),
        norm_eps=read.real("rms_norm_eps"),
        rope_theta=theta,
        tied_embeddings=bool(read.get("tie_word_embeddings")),
        rope_scaling=scaling,
        qkv_bias=family.qkv_bias,
        qk_norm=family.qk_norm,
        experts=_experts_from_config(family.experts, read),
    )
    return _checked(spec, _window(family, read, spec.num_layers), where)


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


def _window(family: Family, read: Values, num_layers: int) -> int | None:
    """Return the sliding window in tokens; None: no layer has one."""
    if not read.get("sliding_window"):
        return None
    if family.window_switch is not None and not read.get(family.window_switch):
        return None
    kinds = read.get("layer_types")
    if isinstance(kinds, list):
        if all(kind == "full_attention" for kind in kinds):
            return None
    elif read.get("max_window_layers") is not None:
        # Layers from this one on have the window.
        first = read.get("max_window_layers")
        if isinstance(first, int) and first >= num_layers:
            return None
    return read.size("sliding_window")


def _checked(spec: ModelSpec, window: int | None, where: str) -> Reading:
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
    if window is not None and window < spec.context:
        notes.append(
            f"texts are limited to {window} tokens of the model's {spec.context}: its layers look "
            "back no further (sliding_window), and up to that length the answers are exact"
        )
        # Within the window, window and full attention agree.
        spec = msgspec.structs.replace(spec, context=window)
    return Reading(spec, tuple(notes))
