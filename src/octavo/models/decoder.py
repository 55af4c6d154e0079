"""The torch decoder: runs any `ModelSpec`, one step at a time.

It knows arithmetic; it must not know sequences, blocks or sampling. The arithmetic follows
Hugging Face's models: norms and rotary tables in float32, everything else in the weights' dtype.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from octavo.attention.backend import AttentionBackend, StepInputs
from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError, ModelError
from octavo.kernels.dtypes import TORCH_DTYPES
from octavo.kernels.linear import linear
from octavo.models.experts import Dense, Mixture
from octavo.models.families import FAMILIES
from octavo.models.rope import Rotation, rotaries
from octavo.models.rows import RowTiles
from octavo.models.weights import Numbers, weight_shapes


class WeightSource(Protocol):
    """Where weights come from: a checkpoint, or random numbers."""

    @property
    def spec(self) -> ModelSpec:
        """What the weights are for."""
        ...

    def numbers(self, name: str) -> Numbers:
        """Read one weight; matrices are [out, in], rotary pairs are the two halves of a head."""
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
    attn_post_norm: Tensor | None
    ffn_norm: Tensor
    feed_forward: Dense | Mixture
    ffn_post_norm: Tensor | None
    rotary: int
    """Which of the decoder's `rotaries` turns its queries and keys."""


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
        self.norm = norm
        """Of the last states: [hidden_size]"""
        self.output = output
        """[vocab_size, hidden_size]"""
        self.rotaries = rotaries(spec, embedding.device, embedding.dtype)
        """Work out the rotary factors of positions; a layer says which of them it uses."""
        # Rounded, as the row it is multiplied with.
        scale = spec.hidden_size**0.5 if spec.scaled_embedding else 1.0
        self._embedding_scale = torch.tensor(scale, dtype=embedding.dtype).item()

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._embedding.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of the rows between layers."""
        return self._embedding.dtype

    def states(self, inputs: StepInputs, backend: AttentionBackend, tiles: RowTiles) -> Tensor:
        """Compute a step up to the last layer: write the KV of all rows; return the sampled rows.

        The backend has planned `inputs`. Returns [sampled, hidden_size].
        """
        count = inputs.tokens.shape[0]
        sizes = tiles.split(count)
        padding = sum(sizes) - count
        rows = self.embed(F.pad(inputs.tokens, (0, padding))).split(sizes)
        positions = F.pad(inputs.positions, (0, padding))
        turns = [rotary(positions).split(sizes) for rotary in self.rotaries]
        last = len(self.layers) - 1
        for number, layer in enumerate(self.layers):
            pieces = zip(rows, turns[layer.rotary], strict=True)
            parts = [self.project(layer, x, turn) for x, turn in pieces]
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
        feed = layer.feed_forward
        fed = feed(normed) if isinstance(feed, Dense) else feed(normed, tiles)
        return x + self._post_normed(fed, layer.ffn_post_norm)

    def enter_feed_forward(
        self, layer: LayerWeights, x: Tensor, attended: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add attention's output to rows; return them, and what the feed-forward part reads."""
        x = x + self._post_normed(linear(attended, layer.o), layer.attn_post_norm)
        return x, self._normed(x, layer.ffn_norm)

    def logits(self, x: Tensor) -> Tensor:
        """Score the vocabulary after rows: [rows, hidden_size] → [rows, vocab_size] float32."""
        return linear(self._normed(x, self.norm), self.output).float()

    def normed(self, states: Tensor) -> Tensor:
        """Normalize rows that `states` returned, as they are before the vocabulary is scored."""
        return self._normed(states, self.norm)

    def embed(self, tokens: Tensor) -> Tensor:
        """Look up the rows of tokens: [rows] → [rows, hidden_size]."""
        rows = self._embedding[tokens]
        return rows if self._embedding_scale == 1.0 else rows * self._embedding_scale

    def _post_normed(self, x: Tensor, weight: Tensor | None) -> Tensor:
        return x if weight is None else self._normed(x, weight)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        wide = x.float()
        scale = torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + self.spec.norm_eps)
        # The weights' dtype is that of x, or float32.
        return (weight * (wide * scale).to(weight.dtype)).to(x.dtype)


def load_decoder(
    source: WeightSource, *, dtype: str = "float32", device: str | torch.device = "cpu"
) -> Decoder:
    """Build a decoder from a source of weights.

    Raises ModelError when a tensor has not the shape that the spec asks for, ConfigError when the
    numbers of the family are too large for the dtype.
    """
    spec = source.spec
    family = FAMILIES.get(spec.family)
    if dtype == "float16" and family is not None and family.float16_overflows:
        raise ConfigError(
            f"{spec.family} models compute with numbers above 65,504, the largest of float16: "
            "choose bfloat16 or float32 as dtype"
        )
    load = _Loader(source, TORCH_DTYPES[dtype], torch.device(device))
    embedding = load.tensor("embedding")
    return Decoder(
        spec,
        embedding=embedding,
        layers=tuple(load.layer(number) for number in range(spec.num_layers)),
        norm=load.norm("norm"),
        output=embedding if spec.tied_embeddings else load.tensor("output"),
    )


class _Loader:
    """Reads weights one by one into the dtype and onto the device of a decoder."""

    def __init__(self, source: WeightSource, dtype: torch.dtype, device: torch.device) -> None:
        self._source = source
        self._spec = source.spec
        self._shapes = weight_shapes(source.spec)
        self._dtype = dtype
        self._device = device

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        tensor = self._empty(self._shapes[name], dtype)
        self._fill(tensor, name)
        return tensor

    def norm(self, name: str) -> Tensor:
        return self.tensor(name, torch.float32 if self._spec.float32_norms else None)

    def layer(self, number: int) -> LayerWeights:
        spec, head = self._spec, f"layers.{number}."
        return LayerWeights(
            attn_norm=self.norm(head + "attn_norm"),
            qkv=self._together(head, "q", "k", "v"),
            qkv_bias=self._together(head, "q_bias", "k_bias", "v_bias") if spec.qkv_bias else None,
            qk_norm=self._qk_norm(head) if spec.qk_norm else None,
            o=self.tensor(head + "o"),
            attn_post_norm=self.norm(head + "attn_post_norm") if spec.post_norms else None,
            ffn_norm=self.norm(head + "ffn_norm"),
            feed_forward=self._feed_forward(head),
            ffn_post_norm=self.norm(head + "ffn_post_norm") if spec.post_norms else None,
            rotary=int(spec.local_rope_theta is not None and number in spec.window_layers),
        )

    def _together(self, head: str, *names: str) -> Tensor:
        """Read weights into one tensor, one below the other; no part exists twice."""
        shapes = [self._shapes[head + name] for name in names]
        rows = [shape[0] for shape in shapes]
        whole = self._empty((sum(rows), *shapes[0][1:]))
        for name, part in zip(names, whole.split(rows), strict=True):
            self._fill(part, head + name)
        return whole

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
        return torch.empty(shape, dtype=dtype or self._dtype, device=self._device)

    def _fill(self, tensor: Tensor, name: str) -> None:
        """Write a weight where it belongs, by one copy from where its source has it."""
        numbers, shape = self._source.numbers(name), self._shapes[name]
        if numbers.shape != shape:
            raise ModelError(
                f"tensor {name} has shape {numbers.shape}, {self._spec.family} needs {shape}"
            )
        values, flat = _as_tensor(numbers), tensor.view(-1)
        if len(values) < len(flat):
            _repeat(values.to(flat.device, flat.dtype), flat)
        else:
            flat.copy_(values)

    def _qk_norm(self, head: str) -> Tensor:
        spec = self._spec
        # The scale goes into the norm: turning does not change it.
        queries, keys = self.norm(head + "q_norm") * spec.query_scale, self.norm(head + "k_norm")
        return torch.cat((queries.expand(spec.num_heads, -1), keys.expand(spec.num_kv_heads, -1)))

    def _feed_forward(self, head: str) -> Dense | Mixture:
        experts = self._spec.experts
        if experts is None:
            return self._dense(head)
        each = tuple(self._dense(f"{head}experts.{number}.") for number in range(experts.number))
        return Mixture(experts, self.tensor(head + "router"), each)

    def _dense(self, head: str) -> Dense:
        gelu = self._spec.activation == "gelu_tanh"
        return Dense(self._together(head, "gate", "up"), self.tensor(head + "down"), gelu)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _as_tensor(numbers: Numbers) -> Tensor:
    """View the numbers of a source as torch knows them; they are not to be written."""
    # Files begin their tensors where they like.
    data = np.require(numbers.data, requirements=["C", "A"])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable", UserWarning)
        return torch.from_numpy(data).view(TORCH_DTYPES[numbers.dtype])


def _repeat(period: Tensor, flat: Tensor) -> None:
    """Fill one axis with a period, over and over; the last one may be cut."""
    count = len(flat) // len(period)
    whole, rest = flat.split([count * len(period), len(flat) - count * len(period)])
    whole.view(count, -1).copy_(period)
    rest.copy_(period[: len(rest)])
