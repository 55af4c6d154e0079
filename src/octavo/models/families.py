"""What a file must hold to be a decoder that we run: one row of data per family.

A row says how a family's files name their weights, and which settings its decoder can honour.
A later family adds a row; reading files is not its business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from octavo.contract.model import ModelSpec
from octavo.errors import ModelError


@dataclass(frozen=True, slots=True)
class Family:
    """How the files of one architecture name things."""

    name: str
    """`general.architecture` of GGUF, `model_type` of config.json."""
    gguf_weights: dict[str, str]
    """GGUF's names by ours; `{i}` is the layer."""
    folder_weights: dict[str, str]
    """The names in safetensors by ours."""
    gguf_paired_rows: frozenset[str]
    """Weights whose rows GGUF orders by rotary pairs of neighbours instead of halves of a head."""
    defaults: dict[str, Any]
    """Values of keys that config.json may leave out; any JSON value."""


_GGUF_DECODER = {
    "embedding": "token_embd.weight",
    "layers.{i}.attn_norm": "blk.{i}.attn_norm.weight",
    "layers.{i}.q": "blk.{i}.attn_q.weight",
    "layers.{i}.k": "blk.{i}.attn_k.weight",
    "layers.{i}.v": "blk.{i}.attn_v.weight",
    "layers.{i}.o": "blk.{i}.attn_output.weight",
    "layers.{i}.ffn_norm": "blk.{i}.ffn_norm.weight",
    "layers.{i}.gate": "blk.{i}.ffn_gate.weight",
    "layers.{i}.up": "blk.{i}.ffn_up.weight",
    "layers.{i}.down": "blk.{i}.ffn_down.weight",
    "norm": "output_norm.weight",
    "output": "output.weight",
}

_FOLDER_DECODER = {
    "embedding": "model.embed_tokens.weight",
    "layers.{i}.attn_norm": "model.layers.{i}.input_layernorm.weight",
    "layers.{i}.q": "model.layers.{i}.self_attn.q_proj.weight",
    "layers.{i}.k": "model.layers.{i}.self_attn.k_proj.weight",
    "layers.{i}.v": "model.layers.{i}.self_attn.v_proj.weight",
    "layers.{i}.o": "model.layers.{i}.self_attn.o_proj.weight",
    "layers.{i}.ffn_norm": "model.layers.{i}.post_attention_layernorm.weight",
    "layers.{i}.gate": "model.layers.{i}.mlp.gate_proj.weight",
    "layers.{i}.up": "model.layers.{i}.mlp.up_proj.weight",
    "layers.{i}.down": "model.layers.{i}.mlp.down_proj.weight",
    "norm": "model.norm.weight",
    "output": "lm_head.weight",
}

FAMILIES = {
    family.name: family
    for family in (
        Family(
            name="llama",
            gguf_weights=_GGUF_DECODER,
            folder_weights=_FOLDER_DECODER,
            gguf_paired_rows=frozenset({"q", "k"}),
            defaults={
                "hidden_act": "silu",
                "max_position_embeddings": 2048,
                "rms_norm_eps": 1e-6,
                "rope_theta": 10000.0,
                "tie_word_embeddings": False,
            },
        ),
    )
}


def find_family(name: object, where: str) -> Family:
    """Return the row of an architecture; `where` names the file for the error."""
    family = FAMILIES.get(name) if isinstance(name, str) else None
    if family is None:
        raise ModelError(
            f"{where}: the architecture is {name!r}; supported: {', '.join(FAMILIES)}. "
            "Use a model of a supported architecture."
        )
    return family


def weight_names(patterns: Mapping[str, str], spec: ModelSpec) -> dict[str, str]:
    """Spell out a table of names for all layers of a model: stored names by ours."""
    names: dict[str, str] = {}
    for ours, stored in patterns.items():
        if "{i}" in ours:
            for layer in range(spec.num_layers):
                names[ours.format(i=layer)] = stored.format(i=layer)
        elif not (ours == "output" and spec.tied_embeddings):
            names[ours] = stored
    return names


def weight_shape(name: str, spec: ModelSpec) -> tuple[int, ...]:
    """Return the shape that a weight, by our name, must have: matrices are [out, in]."""
    hidden, inner = spec.hidden_size, spec.intermediate_size
    queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    shapes = {
        "embedding": (spec.vocab_size, hidden),
        "attn_norm": (hidden,),
        "q": (queries, hidden),
        "k": (keys, hidden),
        "v": (keys, hidden),
        "o": (hidden, queries),
        "ffn_norm": (hidden,),
        "gate": (inner, hidden),
        "up": (inner, hidden),
        "down": (hidden, inner),
        "norm": (hidden,),
        "output": (spec.vocab_size, hidden),
    }
    return shapes[name.rpartition(".")[2]]


def spec_from_gguf(
    family: Family, metadata: Mapping[str, Any], *, vocab_size: int, tied: bool, where: str
) -> ModelSpec:
    """Read a model's shape from GGUF metadata.

    vocab_size: rows of the embedding, since not every header states it. tied: the file has no
    output matrix. Raises `ModelError` for settings that the decoder cannot honour.
    """
    head = f"{family.name}."
    values = {
        key.removeprefix(head): value for key, value in metadata.items() if key.startswith(head)
    }
    read = _Settings(values, where)
    read.refuse_unless("rope.scaling.type", (None, "none"))
    read.refuse_unless("rope.scaling.factor", (None, 0.0, 1.0))
    read.refuse_unless("rope.scale_linear", (None, 0.0, 1.0))
    read.refuse_unless("expert_count", (None, 0))
    read.refuse_unless("attention.sliding_window", (None, 0))
    hidden, heads = read.size("embedding_length"), read.size("attention.head_count")
    head_dim = read.size("attention.key_length", default=hidden // heads)
    read.refuse_unless("attention.value_length", (None, head_dim))
    read.refuse_unless("rope.dimension_count", (None, head_dim))
    spec = ModelSpec(
        family=family.name,
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=read.size("feed_forward_length"),
        num_layers=read.size("block_count"),
        num_heads=heads,
        num_kv_heads=read.size("attention.head_count_kv", default=heads),
        head_dim=head_dim,
        context=read.size("context_length"),
        norm_eps=read.real("attention.layer_norm_rms_epsilon"),
        rope_theta=read.real("rope.freq_base", default=10000.0),
        tied_embeddings=tied,
    )
    return _checked(spec, where)


def spec_from_config(family: Family, config: Mapping[str, Any], *, where: str) -> ModelSpec:
    """Read a model's shape from a Hugging Face config.json.

    Raises `ModelError` for settings that the decoder cannot honour.
    """
    given = {key: value for key, value in config.items() if value is not None}
    rope = _rope_settings(given, where)
    read = _Settings({**family.defaults, **given, **rope}, where)
    read.refuse_unless("hidden_act", ("silu",))
    read.refuse_unless("rope_type", ("default",))
    read.refuse_unless("partial_rotary_factor", (None, 1.0))
    read.refuse_unless("attention_bias", (None, False))
    read.refuse_unless("mlp_bias", (None, False))
    read.refuse_unless("tie_word_embeddings", (True, False))
    if "quantization_config" in given:
        raise ModelError(
            f"{where}: the weights are quantized (quantization_config); folders are read in "
            "float32, float16 and bfloat16. Use the unquantized model, or a GGUF file."
        )
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
        context=read.size("max_position_embeddings"),
        norm_eps=read.real("rms_norm_eps"),
        rope_theta=read.real("rope_theta"),
        tied_embeddings=bool(read.get("tie_word_embeddings")),
    )
    return _checked(spec, where)


def _rope_settings(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return rotary settings under one set of names; transformers 5 moved and renamed them."""
    settings: dict[str, Any] = {}
    kinds: list[Any] = []
    for key in ("rope_scaling", "rope_parameters"):
        table = config.get(key, {})
        if not isinstance(table, dict):
            raise ModelError(f"{where}: {key} is {table!r}, not a table.")
        stated = {name: value for name, value in table.items() if value is not None}
        kinds += [stated[name] for name in ("type", "rope_type") if name in stated]
        for name in ("rope_theta", "partial_rotary_factor"):
            if name in stated:
                settings[name] = stated[name]
    # Any table that asks for scaling counts, even if another one does not.
    unusual = [kind for kind in kinds if kind != "default"]
    return settings | {"rope_type": unusual[0] if unusual else "default"}


class _Settings:
    """Reads settings of a file, whose values nobody has checked yet."""

    def __init__(self, values: Mapping[str, Any], where: str) -> None:
        self._values = values
        self._where = where

    def get(self, key: str) -> Any:  # whatever the file says
        return self._values.get(key)

    def size(self, key: str, *, default: int | None = None) -> int:
        value = self._values.get(key, default)
        if isinstance(value, list) and len(set(map(str, value))) == 1:
            value = value[0]
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise ModelError(
                f"{self._where}: {key} must be a positive whole number, found {value!r}."
            )
        return value

    def real(self, key: str, *, default: float | None = None) -> float:
        value = self._values.get(key, default)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not 0 < value < 1e30:
            raise ModelError(f"{self._where}: {key} must be a positive number, found {value!r}.")
        return float(value)

    def refuse_unless(self, key: str, supported: tuple[Any, ...]) -> None:
        value = self._values.get(key)
        if value not in supported:
            known = " or ".join("absent" if one is None else repr(one) for one in supported)
            raise ModelError(
                f"{self._where}: {key} is {value!r}; supported: {known}. "
                "Use a model without this setting: running it anyway would give wrong text."
            )


def _checked(spec: ModelSpec, where: str) -> ModelSpec:
    if spec.num_heads % spec.num_kv_heads:
        raise ModelError(
            f"{where}: {spec.num_heads} query heads cannot share {spec.num_kv_heads} KV heads "
            "evenly."
        )
    if spec.head_dim < 2 or spec.head_dim % 2:
        raise ModelError(
            f"{where}: head_dim must be even, since rotary pairs fill it, found {spec.head_dim}."
        )
    return spec
