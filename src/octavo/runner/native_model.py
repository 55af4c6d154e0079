"""From a checkpoint to the native executor's model: matrices packed, vectors in float32."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.contract.layout import KVLayout
from octavo.contract.model import ModelSpec
from octavo.cpu import require_native
from octavo.errors import ConfigError, ModelError
from octavo.models.checkpoint import Checkpoint
from octavo.models.frequencies import rope_frequencies
from octavo.models.weights import weight_shapes

# Types of the extension, which _cpu.pyi describes. They are not imported: the import linter takes
# an import of the extension for one of all that octavo offers.
Model = PackedMatrix = ThreadPool = Any

_FORMATS = {"int8": None, "bf16": "bf16", "float32": "f32"}
_SOURCE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "BF16": 30, "float32": 0, "float16": 1, "bfloat16": 30,
}  # fmt: skip
_GROUP = 32
_TILE = 16


def check_native(spec: ModelSpec, layout: KVLayout) -> None:
    """Raise ConfigError if the native executor cannot run a model with this memory."""
    for size in layout.block_sizes:
        if size % _TILE:
            raise ConfigError(
                f"block_size is {size}, but the backend cpu needs a multiple of {_TILE}: change "
                "it, or choose the reference backend"
            )
    for what, value, unit in (
        ("hidden size", spec.hidden_size, _GROUP),
        ("head size", spec.head_dim, _TILE),
    ):
        if value % unit:
            raise ConfigError(
                f"the model's {what} is {value}, but the backend cpu needs a multiple of {unit}: "
                "choose the reference backend"
            )


class NativeWeights:
    """Packs the weights of one checkpoint; each matrix is read once, strip by strip."""

    def __init__(self, checkpoint: Checkpoint, *, arithmetic: str, pool: ThreadPool) -> None:
        self._native = require_native()
        self._checkpoint = checkpoint
        self._format = _FORMATS[arithmetic]
        self._pool = pool
        self._spec = checkpoint.spec
        self._shapes = weight_shapes(checkpoint.spec)

    def model(self, layout: KVLayout) -> Model:
        """Build the whole model, with every layer's place in the layout."""
        spec, experts = self._spec, self._spec.experts
        inner = spec.intermediate_size if experts is None else experts.intermediate_size
        model = self._native.Model(
            vocab=spec.vocab_size,
            hidden=spec.hidden_size,
            intermediate=_padded(inner),
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            norm_eps=spec.norm_eps,
            embedding_scale=math.sqrt(spec.hidden_size) if spec.scaled_embedding else 1.0,
            gelu=spec.activation == "gelu_tanh",
            experts=0 if experts is None else experts.number,
            experts_per_token=0 if experts is None else experts.per_token,
            normalized_experts=experts is not None and experts.normalized,
        )
        embedding = self._matrix("embedding")
        output = embedding if spec.tied_embeddings else self._matrix("output")
        model.set_ends(embedding, self._vector("norm"), output)
        for turns in rope_frequencies(spec):
            model.add_frequencies(turns.values, turns.scale)
        for number, (group, index) in enumerate(_homes(layout)):
            local = spec.local_rope_theta is not None and number in spec.window_layers
            model.add_layer(
                self._layer(number), rotary=int(local), group=group, index_in_group=index
            )
        return model

    def _layer(self, number: int) -> dict[str, Any]:
        spec, head = self._spec, f"layers.{number}."
        parts: dict[str, Any] = {
            "attn_norm": self._vector(head + "attn_norm"),
            "qkv": self._matrix(head + "q", head + "k", head + "v"),
            "o": self._matrix(head + "o"),
            "ffn_norm": self._vector(head + "ffn_norm"),
        }
        if spec.qkv_bias:
            biases = [self._vector(f"{head}{one}_bias") for one in "qkv"]
            parts["qkv_bias"] = np.concatenate(biases)
        if spec.qk_norm:
            parts["q_norm"] = self._vector(head + "q_norm") * np.float32(spec.query_scale)
            parts["k_norm"] = self._vector(head + "k_norm")
        if spec.post_norms:
            parts["attn_post_norm"] = self._vector(head + "attn_post_norm")
            parts["ffn_post_norm"] = self._vector(head + "ffn_post_norm")
        if spec.experts is None:
            parts["feed_forward"] = [self._feed_forward(head)]
        else:
            parts["router"] = self._matrix(head + "router", form="f32")
            heads = (f"{head}experts.{i}." for i in range(spec.experts.number))
            parts["feed_forward"] = [self._feed_forward(one) for one in heads]
        return parts

    def _feed_forward(self, head: str) -> tuple[PackedMatrix, PackedMatrix]:
        gate_up = self._matrix(head + "gate", head + "up", paired=True)
        return gate_up, self._matrix(head + "down")

    def _vector(self, name: str) -> NDArray[np.float32]:
        values = np.ascontiguousarray(self._checkpoint.tensor(name), dtype=np.float32)
        if values.shape != self._shapes[name]:
            raise self._misshapen(name, len(values))
        return values

    def _matrix(self, *names: str, paired: bool = False, form: str | None = None) -> PackedMatrix:
        parts = [self._part(name, rows=paired) for name in names]
        width = max(width for _, _, width in parts)
        return self._native.pack(
            [(kind, rows) for kind, rows, _ in parts],
            width,
            format=form or self._format,
            paired=paired,
            pool=self._pool,
        )

    def _part(self, name: str, *, rows: bool) -> tuple[int, NDArray[np.uint8], int]:
        """Return a matrix's source type, its bytes and its inputs, padded to whole groups.

        rows: pad its outputs too.
        """
        kind, stored = self._checkpoint.stored_rows(name)
        if kind not in _SOURCE_TYPES:
            raise ConfigError(
                f"the backend cpu does not read weights of type {kind} ({name}): choose the "
                "reference backend"
            )
        out, width = self._shapes[name]
        if len(stored) != out:
            raise self._misshapen(name, len(stored))
        more_out, more_in = _padded(out) - out if rows else 0, _padded(width) - width
        if more_out or more_in:
            # Bytes of 0 are zeros in every type; rows that end within a group are of plain numbers.
            more_bytes = more_in * (stored.shape[1] // width)
            stored = np.pad(stored, ((0, more_out), (0, more_bytes)))
        return _SOURCE_TYPES[kind], np.ascontiguousarray(stored), width + more_in

    def _misshapen(self, name: str, rows: int) -> ModelError:
        wanted = self._shapes[name][0]
        return ModelError(
            f"tensor {name} has {rows} rows, a {self._spec.family} model of this size has {wanted}"
        )


def _homes(layout: KVLayout) -> list[tuple[int, int]]:
    """Return each layer's group, and its place within the group."""
    homes = {
        layer: (number, index)
        for number, group in enumerate(layout.groups)
        for index, layer in enumerate(group.layers)
    }
    return [homes[layer] for layer in sorted(homes)]


def _padded(count: int) -> int:
    return -(-count // _GROUP) * _GROUP
