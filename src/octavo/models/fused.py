"""The decoder on a GPU: the weights of `models.decoder`, kernels that do several things at once.

It knows arithmetic; it must not know sequences, blocks or sampling. Norms and rotary positions are
computed in float32; rows between layers are in the weights' dtype.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.attention.paged import PagedAttention, PagedStep
from octavo.kernels.triton.blocks import settle_tokens
from octavo.kernels.triton.gate import gate
from octavo.kernels.triton.matmul import multiply
from octavo.kernels.triton.norm import add_rms_norm
from octavo.kernels.triton.rotary import HeadArithmetic, rotate_and_write
from octavo.kernels.triton.row import multiply_row
from octavo.models.decoder import Decoder, LayerWeights
from octavo.models.experts import Dense
from octavo.models.rope import Rotary, rotaries
from octavo.models.rows import ALL_AT_ONCE

_POSITIONS_AT_ONCE = 8192


class FusedDecoder:
    """Computes steps with a decoder's weights.

    positions: of the longest text. newest: [samples] int32, the tokens that the step before has
    chosen, on the device. exact: a row's bits do not depend on how many are computed with it;
    not for experts.
    """

    def __init__(
        self, decoder: Decoder, *, positions: int, newest: Tensor, exact: bool = False
    ) -> None:
        spec = decoder.spec
        self._multiply = multiply if exact else _multiply
        self.spec = spec
        self._decoder = decoder
        self._newest = newest
        tables = [
            _turn_table(rotary, positions, decoder.device)
            for rotary in rotaries(spec, decoder.device, torch.float32)
        ]
        self._heads = tuple(
            HeadArithmetic(
                heads=spec.num_heads,
                kv_heads=spec.num_kv_heads,
                turns=tables[layer.rotary],
                bias=layer.qkv_bias,
                norm=layer.qk_norm,
                eps=spec.norm_eps,
            )
            for layer in decoder.layers
        )

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self._decoder.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights and of the rows between layers."""
        return self._decoder.dtype

    @property
    def capturable(self) -> bool:
        """True if no part of a step depends on what another part has found."""
        return all(isinstance(layer.feed_forward, Dense) for layer in self._decoder.layers)

    def states(self, step: PagedStep, attention: PagedAttention) -> Tensor:
        """Compute a step: write the KV of all rows; return the last states of the sampled ones.

        Returns [sampled, hidden_size], ready for `score`.
        """
        decoder = self._decoder
        x = decoder.embed(settle_tokens(step.tokens, self._newest))
        delta, post = None, None
        last = len(decoder.layers) - 1
        for number, layer in enumerate(decoder.layers):
            normed = self._add_norm(x, delta, layer.attn_norm, post)
            attended = self._attend(number, layer, normed, step, attention)
            if number == last and step.sample_rows is not None:
                # Nothing after the last attention mixes rows: go on with the sampled ones only.
                attended, x = attended[step.sample_rows], x[step.sample_rows]
                if not len(x):
                    return x
            added = self._multiply(attended, layer.o)
            normed = self._add_norm(x, added, layer.ffn_norm, layer.attn_post_norm)
            delta, post = self._feed_forward(layer, normed), layer.ffn_post_norm
        return self._add_norm(x, delta, decoder.norm, post)

    def score(self, states: Tensor, out: Tensor | None = None) -> Tensor:
        """Score the vocabulary after rows that `states` returned: [rows, vocab] in the dtype.

        out: where to write the scores; None: into new memory.
        """
        return self._multiply(states, self._decoder.output, out)

    def _attend(
        self,
        number: int,
        layer: LayerWeights,
        normed: Tensor,
        step: PagedStep,
        attention: PagedAttention,
    ) -> Tensor:
        qkv = self._multiply(normed, layer.qkv)
        place = step.groups[attention.group(number)]
        q = rotate_and_write(
            qkv,
            self._heads[number],
            step.positions,
            place.blocks,
            place.offsets,
            attention.pages(number),
        )
        return attention.attend(number, q, step).flatten(1)

    def _feed_forward(self, layer: LayerWeights, normed: Tensor) -> Tensor:
        feed = layer.feed_forward
        if not isinstance(feed, Dense):
            return feed(normed, ALL_AT_ONCE)
        return self._multiply(gate(self._multiply(normed, feed.gate_up), gelu=feed.gelu), feed.down)

    def _add_norm(
        self, x: Tensor, delta: Tensor | None, weight: Tensor, post: Tensor | None
    ) -> Tensor:
        return add_rms_norm(x, delta, weight, eps=self.spec.norm_eps, post_weight=post)


def _multiply(x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
    """Multiply rows by a matrix: [rows, in] @ [out, in]ᵀ, one row by our own kernel."""
    if out is None and len(x) == 1:
        return multiply_row(x, weight)
    return torch.mm(x, weight.t(), out=out)


def _turn_table(rotary: Rotary, positions: int, device: torch.device) -> Tensor:
    """Work out the factors of all positions: [positions, head_dim], cosines, then sines."""
    parts = []
    for first in range(0, positions, _POSITIONS_AT_ONCE):
        end = min(first + _POSITIONS_AT_ONCE, positions)
        turn = rotary(torch.arange(first, end, device=device))
        parts.append(torch.cat((turn.cos[:, 0], turn.sin[:, 0]), dim=-1))
    return torch.cat(parts)
