"""Attention on a GPU: one step as device tensors, and the backend that uses our own kernels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from octavo.attention.schedule import HostGroup
from octavo.kernels.triton.decode import Entries, Parts, Shape, attend_decode, count_programs
from octavo.kernels.triton.exact import ExactTiles, attend_exact
from octavo.kernels.triton.prefill import QueryTiles, attend_prefill
from octavo.pages.arena import Arena


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """Where one KV group's keys and values of a step lie, and how attention is cut."""

    blocks: Tensor
    """[rows] int32: the block that each row's KV is written to; -1: it is not kept."""
    offsets: Tensor
    """[rows] int32: the slot within that block."""
    entries: Entries | None
    """Single queries."""
    tiles: QueryTiles | None
    """Runs of queries."""
    shared: bool
    """There may be chunks that entries share."""
    parted: bool
    """An entry may have several chunks."""
    exact: ExactTiles | None = None
    """All queries, if no bit may depend on others."""


@dataclass(frozen=True, slots=True)
class PagedStep:
    """One step on the device. Rows are the tokens of all slices, slice after slice."""

    tokens: Tensor
    """[rows] int32 token ids; -1 - i: the i-th token that the step before has chosen."""
    positions: Tensor
    """[rows] int32"""
    groups: tuple[PagedGroup, ...]
    sample_rows: Tensor | None
    """[sampled] int32: the rows whose logits are wanted; None: all, in order."""
    captured: bool = False
    """It belongs to a graph: nothing was planned for it."""


class PagedAttention(Protocol):
    """Attends on the device, layer by layer; the KV of the step is written by the decoder."""

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """What the kernels are compiled for, one per KV group."""
        ...

    @property
    def compiling(self) -> bool:
        """True while kernels are being compiled that it does without until then."""
        ...

    def pages(self, layer: int) -> Tensor:
        """Return a layer's pages: [num_blocks, 2, block_size, kv_heads, head_dim]; strided."""
        ...

    def group(self, layer: int) -> int:
        """Return the number of a layer's KV group."""
        ...

    def wait(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for kernels that are still being compiled; returns why there will be none."""
        ...

    def plan(self, groups: tuple[HostGroup, ...]) -> None:
        """Prepare what all layers of a step share; not called for steps of single queries."""
        ...

    def attend(self, layer: int, q: Tensor, step: PagedStep) -> Tensor:
        """Attend with all rows of a step: [rows, heads, head_dim] → the same shape."""
        ...


class TritonAttention:
    """Attention by the kernels of `kernels.triton`.

    num_heads: query heads of the model. most_parts: parts of chunks that are kept at once.
    most_entries: single queries of a step.
    """

    def __init__(self, arena: Arena, *, num_heads: int, most_parts: int, most_entries: int) -> None:
        groups = arena.layout.groups
        self._home = {
            layer: (number, index)
            for number, group in enumerate(groups)
            for index, layer in enumerate(group.layers)
        }
        self._pages = {
            layer: arena.pages(number, index) for layer, (number, index) in self._home.items()
        }
        programs = count_programs(arena.device)
        self.shapes = tuple(
            Shape(num_heads, g.kv_heads, g.head_dim, g.block_size, g.window, programs)
            for g in groups
        )
        """One per KV group."""
        widest = max(group.head_dim for group in groups)
        self._out = torch.empty(most_parts * num_heads * widest, device=arena.device)
        self._lse = torch.empty(most_parts, num_heads, device=arena.device)
        self._ended = tuple(
            torch.zeros(most_entries, group.kv_heads, dtype=torch.int32, device=arena.device)
            for group in groups
        )
        self.most_parts = most_parts
        on_gpu = arena.device.type == "cuda"
        self._beside = torch.cuda.Stream(arena.device, priority=-1) if on_gpu else None
        """For prompts, beside single queries; its programs come first."""

    def pages(self, layer: int) -> Tensor:
        """Return a layer's pages."""
        return self._pages[layer]

    def group(self, layer: int) -> int:
        """Return the number of a layer's KV group."""
        return self._home[layer][0]

    @property
    def compiling(self) -> bool:
        """False: each kernel is compiled when it is first used."""
        return False

    def wait(self, timeout_s: float | None = None) -> Exception | None:
        """Wait for nothing: each kernel is compiled when it is first used."""

    def plan(self, groups: tuple[HostGroup, ...]) -> None:
        """Nothing: how steps are cut says it all."""

    def attend(self, layer: int, q: Tensor, step: PagedStep) -> Tensor:
        """Attend with all rows of a step."""
        number = self.group(layer)
        group, shape, pages = step.groups[number], self.shapes[number], self._pages[layer]
        out = torch.empty_like(q)
        if group.exact is not None:
            attend_exact(q, pages, group.exact, self._parts(number), shape, out)
            return out
        if group.tiles is None:
            self.attend_single(layer, q, step, out)
        elif step.captured and group.entries is not None and self._beside is not None:
            # The graph runs both at once: few long programs beside many that wait for memory. These
            # must not be early: they would take all places before those have begun.
            current = torch.cuda.current_stream(q.device)
            self._beside.wait_stream(current)
            with torch.cuda.stream(self._beside):
                attend_prefill(q, pages, group.tiles, shape, out)
            self.attend_single(layer, q, step, out, early=False)
            current.wait_stream(self._beside)
        else:
            attend_prefill(q, pages, group.tiles, shape, out)
            self.attend_single(layer, q, step, out)
        return out

    def attend_single(
        self, layer: int, q: Tensor, step: PagedStep, out: Tensor, *, early: bool = True
    ) -> None:
        """Attend with the single queries of a step, and write their rows of `out`.

        early: programs may take their places before the kernel in front has ended.
        """
        number = self.group(layer)
        group, shape, pages = step.groups[number], self.shapes[number], self._pages[layer]
        if group.entries is not None:
            parts = self._parts(number)
            how = {"shared": group.shared, "parted": group.parted, "early": early}
            attend_decode(q, pages, group.entries, parts, shape, out, **how)

    def _parts(self, number: int) -> Parts:
        shape = self.shapes[number]
        room = self._out[: self.most_parts * shape.heads * shape.head_dim]
        parts = room.view(self.most_parts, shape.heads, shape.head_dim)
        return Parts(parts, self._lse, self._ended[number])
