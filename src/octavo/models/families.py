"""Which decoders we run: one row of data per family.

A row says how a family's files name their weights and settings, and what its decoder has beyond
the plain one. Adding a family is adding a row; reading files is the business of `settings` and
`checkpoint`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from octavo.contract.model import ModelSpec
from octavo.errors import ModelError
from octavo.models.weights import weight_shapes


@dataclass(frozen=True, slots=True)
class ExpertKeys:
    """Where config.json of a mixture of experts states what differs between families."""

    width: str
    normalized: str | None
    """Whether routing weights are normalized; None: always."""


@dataclass(frozen=True, slots=True)
class WindowKeys:
    """Where config.json states which layers have a sliding window; `layer_types` comes first."""

    switch: str | None = None
    """The key that turns windows on; None: a stated sliding_window is on."""
    first: str | None = None
    """The key of the first layer with a window; None: all layers have it."""
    period: str | None = None
    """The key of a number: of so many layers the last one sees everything."""
    gguf_period: int | None = None
    """This number where a GGUF header does not state it; None: all layers have the window."""


@dataclass(frozen=True, slots=True)
class Family:
    """How the files of one architecture name things, and what its decoder has."""

    name: str
    """`model_type` of config.json."""
    gguf_name: str | None
    """`general.architecture` of GGUF; None: such models are written under another family's."""
    defaults: dict[str, Any]
    """Values of keys that config.json may leave out, as transformers has them; any JSON value."""
    folder_weights: dict[str, str]
    """The names in safetensors by ours; `{i}` is the layer, `{j}` the expert."""
    gguf_weights: dict[str, str]
    """GGUF's names by ours. An expert's name without `{j}`: all experts lie in one tensor."""
    gguf_paired_rows: frozenset[str] = frozenset()
    """Weights whose rows GGUF orders by rotary pairs of neighbours instead of halves of a head."""
    qkv_bias: bool = False
    qk_norm: bool = False
    experts: ExpertKeys | None = None
    windows: WindowKeys | None = None
    """None: a sliding_window in config.json means nothing, as in transformers."""
    beyond: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Other fields of `ModelSpec`, of their types, that all models of the family share."""
    folder_norms_less_one: bool = False
    """Folders store the weights of all RMSNorms less one; GGUF files store them whole."""
    context_is_stretched: bool = False
    """A stated context is the one after stretching positions, of whatever kind."""
    local_rope_key: str | None = None
    """Where config.json states the rotary base of layers with a window; None: they have no own."""
    float16_overflows: bool = False
    """Rows between layers grow beyond 65,504, the largest number of float16."""
    gguf_query_scalars: Mapping[int, int] = field(default_factory=dict[int, int])
    """Square of what scores are divided by, by number of layers, if it is not head_dim.

    GGUF does not state it; config.json does, as query_pre_attn_scalar.
    """


_GGUF_ATTENTION = {
    "embedding": "token_embd.weight",
    "layers.{i}.attn_norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.q": "blk.{i}.attn_q.weight",
    "layers.{i}.k": "blk.{i}.attn_k.weight",
    "layers.{i}.v": "blk.{i}.attn_v.weight",
    "layers.{i}.o": "blk.{i}.attn_output.weight",
    "layers.{i}.ffn_norm": "blk.{i}.ffn_norm.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
}
_GGUF_DENSE = {
    "layers.{i}.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.down": "blk.{i}.ffn_down.weight",
}
_GGUF_EXPERTS = {
    "layers.{i}.router": "blk.{i}.ffn_gate_inp.weight",
    "layers.{i}.experts.{j}.gate": "blk.{i}.ffn_gate_exps.weight",
    "layers.{i}.experts.{j}.up": "blk.{i}.ffn_up_exps.weight",
    "layers.{i}.experts.{j}.down": "blk.{i}.ffn_down_exps.weight",
}
_GGUF_BIASES = {f"layers.{{i}}.{one}_bias": f"blk.{{i}}.attn_{one}.bias" for one in "qkv"}
_GGUF_QK_NORMS = {f"layers.{{i}}.{one}_norm": f"blk.{{i}}.attn_{one}_norm.weight" for one in "qk"}

_FOLDER_ATTENTION = {
    "embedding": "model.embed_tokens.weight",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "norm": "model.norm.weight",
    "output": "lm_head.weight",
}
_FOLDER_DENSE = {
    "layers.{i}.gate": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down": "model.layers.{i}.mlp.down_proj.weight",
}
_FOLDER_BIASES = {
    f"layers.{{i}}.{one}_bias": f"model.layers.{{i}}.self_attn.{one}_proj.bias" for one in "qkv"
}
_FOLDER_QK_NORMS = {
    f"layers.{{i}}.{one}_norm": f"model.layers.{{i}}.self_attn.{one}_norm.weight" for one in "qk"
}

_GGUF_POST_NORMS = {
    "layers.{i}.attn_post_norm": "blk.{i}.post_attention_norm.weight",
    "layers.{i}.ffn_post_norm": "blk.{i}.post_ffw_norm.weight",
}
_FOLDER_POST_NORMS = {
    "layers.{i}.attn_post_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.pre_feedforward_layernorm.weight",
    "layers.{i}.ffn_post_norm": "model.layers.{i}.post_feedforward_layernorm.weight",
}

_MIXTRAL_EXPERT = "model.layers.{i}.block_sparse_moe.experts.{j}."

_ALL_DEFAULTS = {"hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False}
_QWEN_DEFAULTS = {
    **_ALL_DEFAULTS,
    "max_position_embeddings": 32768,
    "rope_theta": 10000.0,
    "sliding_window": 4096,
}
_QWEN_WINDOWS = WindowKeys(switch="use_sliding_window", first="max_window_layers")
_ROTARY_PAIRS = frozenset({"q", "k"})

_ROWS = (
    Family(
        name="llama",
        gguf_name="llama",
        defaults={**_ALL_DEFAULTS, "max_position_embeddings": 2048, "rope_theta": 10000.0},
        folder_weights={**_FOLDER_ATTENTION, **_FOLDER_DENSE},
        gguf_weights={**_GGUF_ATTENTION, **_GGUF_DENSE},
        gguf_paired_rows=_ROTARY_PAIRS,
    ),
    Family(
        name="mistral",
        gguf_name=None,
        defaults={
            **_ALL_DEFAULTS,
            "max_position_embeddings": 131072,
            "rope_theta": 10000.0,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        folder_weights={**_FOLDER_ATTENTION, **_FOLDER_DENSE},
        gguf_weights={},
        windows=WindowKeys(),
    ),
    Family(
        name="mixtral",
        gguf_name="llama",
        defaults={
            **_ALL_DEFAULTS,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "rope_theta": 1e6,
            "num_key_value_heads": 8,
            "num_experts_per_tok": 2,
        },
        folder_weights={
            **_FOLDER_ATTENTION,
            "layers.{i}.router": "model.layers.{i}.block_sparse_moe.gate.weight",
            "layers.{i}.experts.{j}.gate": _MIXTRAL_EXPERT + "w1.weight",
            "layers.{i}.experts.{j}.up": _MIXTRAL_EXPERT + "w3.weight",
            "layers.{i}.experts.{j}.down": _MIXTRAL_EXPERT + "w2.weight",
        },
        gguf_weights={**_GGUF_ATTENTION, **_GGUF_EXPERTS},
        gguf_paired_rows=_ROTARY_PAIRS,
        experts=ExpertKeys("intermediate_size", None),
        windows=WindowKeys(),
    ),
    Family(
        name="qwen2",
        gguf_name="qwen2",
        defaults={**_QWEN_DEFAULTS, "max_window_layers": 28},
        folder_weights={**_FOLDER_ATTENTION, **_FOLDER_BIASES, **_FOLDER_DENSE},
        gguf_weights={**_GGUF_ATTENTION, **_GGUF_BIASES, **_GGUF_DENSE},
        qkv_bias=True,
        windows=_QWEN_WINDOWS,
    ),
    Family(
        name="qwen3",
        gguf_name="qwen3",
        defaults={**_QWEN_DEFAULTS, "head_dim": 128, "max_window_layers": 28},
        folder_weights={**_FOLDER_ATTENTION, **_FOLDER_QK_NORMS, **_FOLDER_DENSE},
        gguf_weights={**_GGUF_ATTENTION, **_GGUF_QK_NORMS, **_GGUF_DENSE},
        qk_norm=True,
        windows=_QWEN_WINDOWS,
    ),
    Family(
        name="qwen3_moe",
        gguf_name="qwen3moe",
        defaults={
            **_QWEN_DEFAULTS,
            "num_key_value_heads": 4,
            "num_experts_per_tok": 8,
            "moe_intermediate_size": 768,
            "norm_topk_prob": False,
        },
        folder_weights={
            **_FOLDER_ATTENTION,
            **_FOLDER_QK_NORMS,
            "layers.{i}.router": "model.layers.{i}.mlp.gate.weight",
            "layers.{i}.experts.{j}.gate": "model.layers.{i}.mlp.experts.{j}.gate_proj.weight",
            "layers.{i}.experts.{j}.up": "model.layers.{i}.mlp.experts.{j}.up_proj.weight",
            "layers.{i}.experts.{j}.down": "model.layers.{i}.mlp.experts.{j}.down_proj.weight",
        },
        gguf_weights={**_GGUF_ATTENTION, **_GGUF_QK_NORMS, **_GGUF_EXPERTS},
        qk_norm=True,
        experts=ExpertKeys("moe_intermediate_size", "norm_topk_prob"),
        # All layers, whatever max_window_layers says: so has transformers.
        windows=WindowKeys(switch="use_sliding_window"),
    ),
    Family(
        name="gemma3_text",
        gguf_name="gemma3",
        defaults={
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131072,
            "rms_norm_eps": 1e-6,
            "hidden_activation": "gelu_pytorch_tanh",
            "tie_word_embeddings": True,
            "query_pre_attn_scalar": 256,
            "rope_theta": 1e6,
            "rope_local_base_freq": 10000.0,
            "sliding_window": 4096,
            "sliding_window_pattern": 6,
        },
        folder_weights={
            **_FOLDER_ATTENTION,
            **_FOLDER_QK_NORMS,
            **_FOLDER_POST_NORMS,
            **_FOLDER_DENSE,
        },
        gguf_weights={**_GGUF_ATTENTION, **_GGUF_QK_NORMS, **_GGUF_POST_NORMS, **_GGUF_DENSE},
        qk_norm=True,
        windows=WindowKeys(period="sliding_window_pattern", gguf_period=6),
        beyond={
            "post_norms": True,
            "float32_norms": True,
            "scaled_embedding": True,
            "activation": "gelu_tanh",
        },
        folder_norms_less_one=True,
        context_is_stretched=True,
        local_rope_key="rope_local_base_freq",
        float16_overflows=True,
        # The one with 27 billion parameters.
        gguf_query_scalars={62: 168},
    ),
)

FAMILIES = {family.name: family for family in _ROWS}
"""Rows by the name that config.json uses."""


_TEXT_PARTS = {"gemma3": "language_model."}
"""By the model_type of models of several media, how the names of their text's weights begin."""


def text_part(config: dict[str, Any], where: str) -> tuple[dict[str, Any], str]:
    """Return the settings of a model's text part, and how the names of its weights begin.

    Of a model of text alone: its config.json as it is, and "". `where` names the file for the
    error.
    """
    prefix = _TEXT_PARTS.get(str(config.get("model_type")))
    if prefix is None:
        return config, ""
    part = config.get("text_config")
    if not isinstance(part, dict):
        raise ModelError(
            f"{where}: text_config is {part!r}, but describes the text part of a "
            f"{config['model_type']} model, which is what is read of it. Download it again."
        )
    return part, prefix


def find_family(name: object, where: str) -> Family:
    """Return the row of a config.json's model_type; `where` names the file for the error."""
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise _unknown(name, where, list(FAMILIES))
    return family


def find_gguf_family(name: object, *, has_experts: bool, where: str) -> Family:
    """Return the row of a GGUF file's architecture, of which mixtures have their own row."""
    rows = [family for family in _ROWS if family.gguf_name is not None]
    same = [family for family in rows if family.gguf_name == name]
    if not same:
        known = dict.fromkeys(str(family.gguf_name) for family in rows)
        raise _unknown(name, where, list(known))
    fitting = [family for family in same if (family.experts is not None) == has_experts]
    if not fitting:
        found = "states experts" if has_experts else "states no experts (expert_count)"
        raise ModelError(
            f"{where}: the architecture is {name!r}, but the header {found}. Architecture and "
            "settings do not belong together: convert the model again."
        )
    return fitting[0]


def weight_names(patterns: Mapping[str, str], spec: ModelSpec) -> dict[str, str]:
    """Spell out a table of names for all layers and experts of a model: stored names by ours."""
    return {ours: _stored_name(patterns, ours) for ours in weight_shapes(spec)}


def _stored_name(patterns: Mapping[str, str], ours: str) -> str:
    """Find the pattern of one of our names, such as layers.3.experts.7.gate, and fill it in."""
    parts = ours.split(".")
    numbers: dict[str, str] = {}
    for mark, word in (("i", "layers"), ("j", "experts")):
        if word in parts[:-1]:
            place = parts.index(word) + 1
            numbers[mark], parts[place] = parts[place], f"{{{mark}}}"
    return patterns[".".join(parts)].format(**numbers)


def _unknown(name: object, where: str, known: list[str]) -> ModelError:
    return ModelError(
        f"{where}: the architecture is {name!r}; supported: {', '.join(known)}. "
        "Use a model of a supported architecture."
    )
