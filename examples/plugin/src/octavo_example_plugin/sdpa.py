"""Attention by torch's own fused kernel, one slice after the other."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from octavo.attention.backend import StepInputs
from octavo.contract.model import ModelSpec
from octavo.kernels.reference import first_seen
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

    @property
    def reads(self) -> frozenset[str] | None:
        """None: every codec, since planes decode what is read from them."""
        return None

    def plan(self, inputs: StepInputs) -> None:
        """Keep the step's tables."""
        self._inputs = inputs

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values of all rows of the step."""
        assert self._inputs is not None, "write before plan"
        number, index = self._home[layer]
        where = self._inputs.groups[number]
        self._arena.keys(number, index).write(where.blocks, where.offsets, k)
        self._arena.values(number, index).write(where.blocks, where.offsets, v)

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attend: [tokens, heads, head_dim] → the same shape."""
        assert self._inputs is not None, "run before plan"
        number, index = self._home[layer]
        where = self._inputs.groups[number]
        planes = self._arena.keys(number, index), self._arena.values(number, index)
        group = self._arena.layout.groups[number]
        outputs: list[Tensor] = []
        slices = zip(
            q.split(list(self._inputs.lengths)),
            self._inputs.starts,
            where.table_starts,
            strict=True,
        )
        for queries, start, table_start in slices:
            end = start + len(queries)
            blocks = -(-end // group.block_size)
            table = where.tables[table_start : table_start + blocks]
            # What lies behind the first query's window may be gone already.
            first = first_seen(start, group.window)
            positions = torch.arange(first, end, device=q.device)
            slots = table[positions // group.block_size], positions % group.block_size
            keys, values = (plane.read(*slots).to(q.dtype) for plane in planes)
            behind = positions[start - first :, None] - positions
            visible = behind >= 0
            if group.window is not None:
                visible &= behind < group.window
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
