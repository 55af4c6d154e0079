"""The torch decoder: runs any `ModelSpec`, one step at a time.

It knows arithmetic; it must not know sequences, blocks or sampling. The arithmetic follows
Hugging Face's Llama: norms and rotary tables in float32, everything else in the weights' dtype.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from octavo.attention.backend import AttentionBackend, StepInputs
from octavo.contract.model import ModelSpec
from octavo.errors import ModelError
from octavo.kernels.dtypes import TORCH_DTYPES
from octavo.kernels.linear import linear
from octavo.models.rows import RowTiles


class WeightSource(Protocol):
    """Where weights come from: a checkpoint, or random numbers in tests."""

    @property
    def spec(self) -> ModelSpec:
        """What the weights are for."""
        ...

    def tensor(self, name: str) -> NDArray[np.float32]:
        """Read one tensor; matrices are [out, in], rotary pairs are the two halves of a head."""
        ...


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """Weights of one layer. Matrices that read the same input lie together."""

    attn_norm: Tensor
    qkv: Tensor
    """[(heads + 2 * kv_heads) * head_dim, hidden]: queries, keys, values."""
    o: Tensor
    ffn_norm: Tensor
    gate_up: Tensor
    """[2 * intermediate, hidden]: gate, up."""
    down: Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Rotary factors of some rows: [rows, 1, head_dim / 2], float32 values in the model's dtype."""

    cos: Tensor
    sin: Tensor

    def split(self, sizes: tuple[int, ...]) -> list[Rotation]:
        """Cut into runs of rows."""
        pairs = zip(self.cos.split(sizes), self.sin.split(sizes), strict=True)
        return [Rotation(cos, sin) for cos, sin in pairs]


class Decoder:
    """A decoder and its weights; steps leave it unchanged.

    `project`, `finish` and `logits` treat every row alone; only attention mixes rows.
    """

    def __init__(
        self,
        spec: ModelSpec,
        *,
        embedding: Tensor,
        layers: tuple[LayerWeights, ...],
        norm: Tensor,
        output: Tensor,
    ) -> None:
        self.spec = spec
        self.layers = layers
        self._embedding = embedding
        self._norm = norm
        self._output = output
        exponents = torch.arange(0, spec.head_dim, 2, dtype=torch.int64).float() / spec.head_dim
        self._frequencies = (1.0 / spec.rope_theta**exponents).to(embedding.device)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of the rows between layers."""
        return self._embedding.dtype

    def forward(self, inputs: StepInputs, backend: AttentionBackend, tiles: RowTiles) -> Tensor:
        """Compute a step: write the KV of all rows; return the logits of the sampled rows.

        The backend has planned `inputs`. Returns [sampled, vocab_size] float32.
        """
        count = inputs.tokens.shape[0]
        sizes = tiles.split(count)
        padding = sum(sizes) - count
        rows = self._embedding[F.pad(inputs.tokens, (0, padding))].split(sizes)
        turns = self.rotation(F.pad(inputs.positions, (0, padding))).split(sizes)
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            parts = [self.project(layer, x, turn) for x, turn in zip(rows, turns, strict=True)]
            q, k, v = (_joined([part[i] for part in parts])[:count] for i in range(3))
            backend.write(number, k, v)
            attended = backend.run(number, q).flatten(1)
            if number == last:
                # Nothing after the last attention mixes rows: go on with the sampled ones only.
                chosen = inputs.sample_rows
                sizes = tiles.split(chosen.shape[0])
                padding = sum(sizes) - chosen.shape[0]
                attended = attended[chosen]
                rows = F.pad(_joined(list(rows))[chosen], (0, 0, 0, padding)).split(sizes)
            if padding:
                attended = F.pad(attended, (0, 0, 0, padding))
            rows = [
                self.finish(layer, x, y) for x, y in zip(rows, attended.split(sizes), strict=True)
            ]
        if not sizes:
            return self._embedding.new_empty(0, self.spec.vocab_size, dtype=torch.float32)
        return _joined([self.logits(x) for x in rows])[: inputs.sample_rows.shape[0]]

    def rotation(self, positions: Tensor) -> Rotation:
        """Work out the rotary factors of positions: [rows] → [rows, 1, head_dim / 2] each."""
        angles = (positions.float()[:, None] * self._frequencies)[:, None, :]
        return Rotation(angles.cos().to(self.dtype), angles.sin().to(self.dtype))

    def project(
        self, layer: LayerWeights, x: Tensor, turn: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute rotated queries, rotated keys and values of rows: [rows, heads, head_dim] each.

        x: [rows, hidden_size].
        """
        spec = self.spec
        states = linear(self._normed(x, layer.attn_norm), layer.qkv)
        states = states.view(x.shape[0], -1, spec.head_dim)
        rotated = spec.num_heads + spec.num_kv_heads
        low, high = states[:, :rotated].chunk(2, dim=-1)
        turned = torch.cat(
            (low * turn.cos - high * turn.sin, high * turn.cos + low * turn.sin), dim=-1
        )
        return turned[:, : spec.num_heads], turned[:, spec.num_heads :], states[:, rotated:]

    def finish(self, layer: LayerWeights, x: Tensor, attended: Tensor) -> Tensor:
        """Add attention's output and the feed-forward part to rows.

        x: [rows, hidden_size]; attended: [rows, num_heads * head_dim]. Returns [rows, hidden_size].
        """
        x = x + linear(attended, layer.o)
        gate, up = linear(self._normed(x, layer.ffn_norm), layer.gate_up).chunk(2, dim=-1)
        # Not F.silu: on a CPU its last elements take another path, so that bits depend on place.
        gate = gate.float()
        active = (gate / (1.0 + torch.exp(-gate))).to(up.dtype)
        return x + linear(active * up, layer.down)

    def logits(self, x: Tensor) -> Tensor:
        """Score the vocabulary after rows: [rows, hidden_size] → [rows, vocab_size] float32."""
        return linear(self._normed(x, self._norm), self._output).float()

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.spec.norm_eps)
        return weight * (wide * scale).to(x.dtype)


def load_decoder(
    source: WeightSource, *, dtype: str = "float32", device: str | torch.device = "cpu"
) -> Decoder:
    """Build a decoder from a source of weights.

    Raises ModelError when a tensor has not the shape that the spec asks for.
    """
    spec = source.spec
    query, kv = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    hidden, wide = spec.hidden_size, spec.intermediate_size

    def read(name: str, *shape: int) -> Tensor:
        values = source.tensor(name)
        if values.shape != shape:
            raise ModelError(f"tensor {name} has shape {values.shape}, {spec.family} needs {shape}")
        # A copy: the source may give a read-only view of a mapped file.
        tensor = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device)
        tensor.copy_(torch.from_numpy(np.require(values, requirements=["C", "W"])))
        return tensor

    def layer(number: int) -> LayerWeights:
        name = f"layers.{number}."
        return LayerWeights(
            attn_norm=read(name + "attn_norm", hidden),
            qkv=torch.cat(
                (
                    read(name + "q", query, hidden),
                    read(name + "k", kv, hidden),
                    read(name + "v", kv, hidden),
                )
            ),
            o=read(name + "o", hidden, query),
            ffn_norm=read(name + "ffn_norm", hidden),
            gate_up=torch.cat((read(name + "gate", wide, hidden), read(name + "up", wide, hidden))),
            down=read(name + "down", hidden, wide),
        )

    embedding = read("embedding", spec.vocab_size, hidden)
    return Decoder(
        spec,
        embedding=embedding,
        layers=tuple(layer(number) for number in range(spec.num_layers)),
        norm=read("norm", hidden),
        output=embedding if spec.tied_embeddings else read("output", spec.vocab_size, hidden),
    )


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
