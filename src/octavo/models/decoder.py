"""The torch decoder: runs any `ModelSpec`, one step at a time.

It knows arithmetic; it must not know sequences, blocks or sampling. The arithmetic follows
Hugging Face's models: norms and rotary tables in float32, everything else in the weights' dtype.
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
from octavo.models.experts import Dense, Mixture
from octavo.models.rope import Rotary, Rotation
from octavo.models.rows import RowTiles
from octavo.models.weights import weight_shapes


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
    qkv_bias: Tensor | None
    """[(heads + 2 * kv_heads) * head_dim]"""
    qk_norm: Tensor | None
    """[heads + kv_heads, head_dim]: the norm of queries for each head, then that of keys."""
    o: Tensor
    ffn_norm: Tensor
    feed_forward: Dense | Mixture


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
        self.rotation = Rotary(spec, embedding.device, embedding.dtype)
        """Works out the rotary factors of positions."""

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
        return self.score(self.states(inputs, backend, tiles), tiles)

    def states(self, inputs: StepInputs, backend: AttentionBackend, tiles: RowTiles) -> Tensor:
        """Compute a step up to the last layer; return the sampled rows: [sampled, hidden_size]."""
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
                self.finish(layer, x, y, tiles)
                for x, y in zip(rows, attended.split(sizes), strict=True)
            ]
        if not sizes:
            return self._embedding.new_empty(0, self.spec.hidden_size)
        return _joined(list(rows))[: inputs.sample_rows.shape[0]]

    def score(self, states: Tensor, tiles: RowTiles) -> Tensor:
        """Score the vocabulary after some of the rows that `states` returned.

        states: [rows, hidden_size]; returns [rows, vocab_size] float32.
        """
        count = states.shape[0]
        sizes = tiles.split(count)
        if not sizes:
            return self._embedding.new_empty(0, self.spec.vocab_size, dtype=torch.float32)
        padded = F.pad(states, (0, 0, 0, sum(sizes) - count))
        return _joined([self.logits(x) for x in padded.split(sizes)])[:count]

    def project(
        self, layer: LayerWeights, x: Tensor, turn: Rotation
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Compute rotated queries, rotated keys and values of rows: [rows, heads, head_dim] each.

        x: [rows, hidden_size].
        """
        spec = self.spec
        states = linear(self._normed(x, layer.attn_norm), layer.qkv)
        if layer.qkv_bias is not None:
            states = states + layer.qkv_bias
        states = states.view(x.shape[0], -1, spec.head_dim)
        rotated = spec.num_heads + spec.num_kv_heads
        heads = states[:, :rotated]
        if layer.qk_norm is not None:
            heads = self._normed(heads, layer.qk_norm)
        turned = turn.turn(heads)
        return turned[:, : spec.num_heads], turned[:, spec.num_heads :], states[:, rotated:]

    def finish(self, layer: LayerWeights, x: Tensor, attended: Tensor, tiles: RowTiles) -> Tensor:
        """Add attention's output and the feed-forward part to rows.

        x: [rows, hidden_size]; attended: [rows, num_heads * head_dim]; tiles: how an expert's
        rows are cut. Returns [rows, hidden_size].
        """
        x, normed = self.enter_feed_forward(layer, x, attended)
        if isinstance(layer.feed_forward, Dense):
            return x + layer.feed_forward(normed)
        return x + layer.feed_forward(normed, tiles)

    def enter_feed_forward(
        self, layer: LayerWeights, x: Tensor, attended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add attention's output to rows; return them, and what the feed-forward part reads."""
        x = x + linear(attended, layer.o)
        return x, self._normed(x, layer.ffn_norm)

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
    shapes = weight_shapes(spec)

    def read(name: str) -> Tensor:
        values, shape = source.tensor(name), shapes[name]
        if values.shape != shape:
            raise ModelError(f"tensor {name} has shape {values.shape}, {spec.family} needs {shape}")
        # A copy: the source may give a read-only view of a mapped file.
        tensor = torch.empty(shape, dtype=TORCH_DTYPES[dtype], device=device)
        tensor.copy_(torch.from_numpy(np.require(values, requirements=["C", "W"])))
        return tensor

    def together(head: str, *names: str) -> Tensor:
        return torch.cat([read(head + name) for name in names])

    def dense(head: str) -> Dense:
        return Dense(together(head, "gate", "up"), read(head + "down"))

    def feed_forward(head: str) -> Dense | Mixture:
        if spec.experts is None:
            return dense(head)
        experts = (dense(f"{head}experts.{number}.") for number in range(spec.experts.number))
        return Mixture(spec.experts, read(head + "router"), tuple(experts))

    def qk_norm(head: str) -> Tensor:
        norms = (read(head + "q_norm"), spec.num_heads), (read(head + "k_norm"), spec.num_kv_heads)
        return torch.cat([norm.expand(heads, -1) for norm, heads in norms])

    def layer(number: int) -> LayerWeights:
        head = f"layers.{number}."
        return LayerWeights(
            attn_norm=read(head + "attn_norm"),
            qkv=together(head, "q", "k", "v"),
            qkv_bias=together(head, "q_bias", "k_bias", "v_bias") if spec.qkv_bias else None,
            qk_norm=qk_norm(head) if spec.qk_norm else None,
            o=read(head + "o"),
            ffn_norm=read(head + "ffn_norm"),
            feed_forward=feed_forward(head),
        )

    embedding = read("embedding")
    return Decoder(
        spec,
        embedding=embedding,
        layers=tuple(layer(number) for number in range(spec.num_layers)),
        norm=read("norm"),
        output=embedding if spec.tied_embeddings else read("output"),
    )


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)
