"""Attention by torch's own fused kernel, one slice after the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.attention.backend import StepInputs
from octavo.contract.model import ModelSpec
from octavo.kernels.reference import gather_kv, write_kv
from octavo.pages.arena import Arena


class SdpaAttention:
    """Gathers a sequence's keys and values and leaves the rest to torch."""

    def __init__(self, arena: Arena) -> None:
        self._arena = arena
        self._home = {
            layer: (number, index)
            for number, group in enumerate(arena.layout.groups)
            for index, layer in enumerate(group.layers)
        }
        self._inputs: StepInputs | None = None

    @property
    def batch_invariant(self) -> bool:
        """False: torch's kernel chooses its code by the shape of the slice."""
        return False

    def plan(self, inputs: StepInputs) -> None:
        """Keep the step's tables."""
        self._inputs = inputs

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values of all rows of the step."""
        assert self._inputs is not None, "write before plan"
        number, index = self._home[layer]
        where = self._inputs.groups[number]
        write_kv(self._arena.pages(number, index), where.blocks, where.offsets, k, v)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attend: [tokens, heads, head_dim] → the same shape."""
        assert self._inputs is not None, "run before plan"
        number, index = self._home[layer]
        where = self._inputs.groups[number]
        pages = self._arena.pages(number, index)
        outputs: list[Tensor] = []
        slices = zip(
            q.split(list(self._inputs.lengths)),
            self._inputs.starts,
            where.table_starts,
            strict=True,
        )
        for queries, start, table_start in slices:
            end = start + len(queries)
            blocks = -(-end // self._arena.layout.groups[number].block_size)
            table = where.tables[table_start : table_start + blocks]
            keys, values = gather_kv(pages, table, end)
            positions = torch.arange(end, device=q.device)
            visible = positions <= positions[start:, None]
            attended = scaled_dot_product_attention(
                queries.transpose(0, 1)[None],
                keys.transpose(0, 1)[None],
                values.transpose(0, 1)[None],
                attn_mask=visible,
                enable_gqa=True,
            )
            outputs.append(attended[0].transpose(0, 1))
        return torch.cat(outputs)


def make_sdpa(arena: Arena, spec: ModelSpec) -> SdpaAttention:
    """Make the backend for a model."""
    return SdpaAttention(arena)
