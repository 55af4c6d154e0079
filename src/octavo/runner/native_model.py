"""From a checkpoint to the native executor's model: matrices packed, vectors in float32."""

from __future__ import annotations

import math
import mmap
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from octavo.contract.layout import KVLayout
from octavo.cpu import NativeUnfit, require_native
from octavo.errors import ModelError
from octavo.models.checkpoint import Checkpoint
from octavo.models.frequencies import rope_frequencies
from octavo.models.weights import weight_shapes
from octavo.runner.native_padding import Heads, filled_up, whole

# Types of the extension, which _cpu.pyi describes. They are not imported: the import linter takes
# an import of the extension for one of all that octavo offers.
Model = PackedMatrix = ThreadPool = Any
_Number = TypeVar("_Number", bound=np.generic)

_FORMATS = {"int8": None, "bf16": "bf16", "float32": "f32"}
_SOURCE_TYPES = {
    "F32": 0, "F16": 1, "Q4_0": 2, "Q4_1": 3, "Q5_0": 6, "Q5_1": 7, "Q8_0": 8, "Q4_K": 12,
    "Q5_K": 13, "Q6_K": 14, "BF16": 30, "float32": 0, "float16": 1, "bfloat16": 30,
}  # fmt: skip

_MOST_COPIED = 32 << 20
"""Bytes of rows in another order than the file's that wait to be packed."""


def check_stored(checkpoint: Checkpoint) -> None:
    """Raise NativeUnfit if a matrix is stored in a way that the native executor does not read."""
    for name, shape in weight_shapes(checkpoint.spec).items():
        if len(shape) > 1:
            source_type(checkpoint.stored_kind(name), name)


def source_type(kind: str, name: str) -> int:
    """Return the number of a way to store weights. Raises NativeUnfit if it is not read."""
    if kind not in _SOURCE_TYPES:
        raise NativeUnfit(f"the backend cpu does not read weights of type {kind} ({name})")
    return _SOURCE_TYPES[kind]


def packed_form(arithmetic: str, kinds: list[int]) -> str | None:
    """Choose the format of one packed matrix; None: the smallest that is exact."""
    form, half = _FORMATS[arithmetic], _SOURCE_TYPES["F16"]
    # float16 weights are widened as they are multiplied: the same sums from half the bytes.
    return "f16" if form == "f32" and set(kinds) == {half} else form


class NativeWeights:
    """Packs the weights of one checkpoint; each matrix is read once, strip by strip."""

    def __init__(self, checkpoint: Checkpoint, *, arithmetic: str, pool: ThreadPool) -> None:
        self._native = require_native()
        self._checkpoint = checkpoint
        self._arithmetic = arithmetic
        self._packer = self._native.Packer(pool)
        self._copied = 0
        self.num_bytes = 0
        """Of what has been described: packed matrices, and vectors."""
        self._spec = checkpoint.spec
        self._shapes = weight_shapes(checkpoint.spec)
        self._heads = Heads(checkpoint.spec.head_dim)

    def model(self, layout: KVLayout) -> Model:
        """Describe the whole model, with every layer's place in the layout, to be packed."""
        spec, experts = self._spec, self._spec.experts
        inner = spec.intermediate_size if experts is None else experts.intermediate_size
        model = self._native.Model(
            vocab=spec.vocab_size,
            hidden=spec.hidden_size,
            intermediate=whole(inner),
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
        model.set_ends(embedding, self._norm("norm"), output)
        for turns in rope_frequencies(spec):
            model.add_frequencies(self._heads.pairs(turns.values), turns.scale)
        for number, (group, index) in enumerate(_homes(layout)):
            local = spec.local_rope_theta is not None and number in spec.window_layers
            model.add_layer(
                self._layer(number), rotary=int(local), group=group, index_in_group=index
            )
        return model

    def stop(self) -> None:
        """Let `pack`, in another thread, leave out the rest and return soon."""
        self._packer.stop()

    def pack(self) -> None:
        """Fill the matrices of the model, which is of no use before."""
        self._packer.run()
        self._copied = 0

    def _layer(self, number: int) -> dict[str, Any]:
        spec, head = self._spec, f"layers.{number}."
        parts: dict[str, Any] = {
            "attn_norm": self._norm(head + "attn_norm"),
            "qkv": self._matrix(head + "q", head + "k", head + "v"),
            "o": self._matrix(head + "o", filled=True),
            "ffn_norm": self._norm(head + "ffn_norm"),
        }
        if spec.qkv_bias:
            biases = [f"{head}{one}_bias" for one in "qkv"]
            parts["qkv_bias"] = np.concatenate(
                [self._in_heads(one, self._vector(one)) for one in biases]
            )
        if spec.qk_norm:
            queries = self._vector(head + "q_norm") * np.float32(spec.query_scale)
            parts["q_norm"] = self._heads.halves(queries)
            parts["k_norm"] = self._heads.halves(self._vector(head + "k_norm"))
        if spec.post_norms:
            parts["attn_post_norm"] = self._norm(head + "attn_post_norm")
            parts["ffn_post_norm"] = self._norm(head + "ffn_post_norm")
        if spec.experts is None:
            parts["feed_forward"] = [self._feed_forward(head)]
        else:
            parts["router"] = self._matrix(head + "router", form="f32")
            heads = (f"{head}experts.{i}." for i in range(spec.experts.number))
            parts["feed_forward"] = [self._feed_forward(one) for one in heads]
        return parts

    def _feed_forward(self, head: str) -> tuple[PackedMatrix, PackedMatrix]:
        gate_up = self._matrix(head + "gate", head + "up", paired=True)
        return gate_up, self._matrix(head + "down", filled=True)

    def _norm(self, name: str) -> NDArray[np.float32]:
        """Return the weights of a norm over a whole row."""
        return filled_up(self._vector(name), whole(self._spec.hidden_size))

    def _vector(self, name: str) -> NDArray[np.float32]:
        values = np.ascontiguousarray(self._checkpoint.tensor(name), dtype=np.float32)
        if values.shape != self._shapes[name]:
            raise self._misshapen(name, len(values))
        self.num_bytes += values.nbytes
        return values

    def _matrix(
        self,
        *names: str,
        paired: bool = False,
        filled: bool = False,
        form: str | None = None,
    ) -> PackedMatrix:
        """Pack matrices that are multiplied together.

        paired: by groups of outputs, one matrix's after the other's. filled: outputs are a row.
        """
        parts = [self._part(name, rows=paired or filled) for name in names]
        width = max(width for _, _, width in parts)
        matrix = self._packer.add(
            [(kind, rows, _is_mapped(rows)) for kind, rows, _ in parts],
            width,
            format=form or packed_form(self._arithmetic, [kind for kind, _, _ in parts]),
            paired=paired,
        )
        self.num_bytes += matrix.nbytes
        self._copied += sum(rows.nbytes for _, rows, _ in parts if not _is_mapped(rows))
        if self._copied > _MOST_COPIED:
            self.pack()
        return matrix

    def _part(self, name: str, *, rows: bool) -> tuple[int, NDArray[np.uint8], int]:
        """Return a matrix's source type, its bytes and its inputs, padded to whole groups.

        rows: pad its outputs too.
        """
        kind, stored = self._checkpoint.stored_rows(name)
        number = source_type(kind, name)
        out, width = self._shapes[name]
        if len(stored) != out:
            raise self._misshapen(name, len(stored))
        # Bytes of 0 are zeros in every type; rows that end within a group are of plain numbers.
        stored = self._in_heads(name, stored)
        more_out, more_in = whole(out) - out if rows else 0, whole(width) - width
        if more_out or more_in:
            more_bytes = more_in * (stored.shape[1] // width)
            stored = np.pad(stored, ((0, more_out), (0, more_bytes)))
        stored = np.ascontiguousarray(stored)
        if not _is_mapped(stored):
            self._checkpoint.release(name)  # what was copied
        return number, stored, width + more_in

    def _in_heads(self, name: str, values: NDArray[_Number]) -> NDArray[_Number]:
        """Fill up the heads among the outputs of a matrix, or its biases, if there are heads."""
        match name.rpartition(".")[2].removesuffix("_bias"):
            case "q" | "k":
                return self._heads.halves(values)
            case "v":
                return self._heads.ends(values)
            case _:
                return values

    def _misshapen(self, name: str, rows: int) -> ModelError:
        wanted = self._shapes[name][0]
        return ModelError(
            f"tensor {name} has {rows} rows, a {self._spec.family} model of this size has {wanted}"
        )


def _is_mapped(values: NDArray[Any]) -> bool:
    """Tell whether an array is a view of a mapped file."""
    owner: object = values
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    return isinstance(owner, mmap.mmap)


def _homes(layout: KVLayout) -> list[tuple[int, int]]:
    """Return each layer's group, and its place within the group."""
    homes = {
        layer: (number, index)
        for number, group in enumerate(layout.groups)
        for index, layer in enumerate(group.layers)
    }
    return [homes[layer] for layer in sorted(homes)]
