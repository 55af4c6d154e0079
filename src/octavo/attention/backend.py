"""What the decoder asks of attention, and the index tensors of one step.

A backend knows pages and tables; it must not know requests, keys or why a block is where it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupInputs:
    """Where one KV group's keys and values of this step's slices lie."""

    tables: Tensor
    """[blocks of all slices] int64: the slices' tables one after the other."""
    table_starts: Tensor
    """[slices] int64: where each slice's table begins in `tables`."""
    blocks: Tensor
    """[tokens] int64: the block that each token's KV is written to."""
    offsets: Tensor
    """[tokens] int64: the slot within that block."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepInputs:
    """One step as tensors. Rows are the tokens of all slices, slice after slice."""

    starts: tuple[int, ...]
    """Position of the first token of each slice."""
    lengths: tuple[int, ...]
    """Tokens of each slice, at least one."""
    tokens: Tensor
    """[tokens] int64 token ids."""
    positions: Tensor
    """[tokens] int64 index of each token in its text."""
    groups: tuple[GroupInputs, ...]
    """One per KV group."""
    sample_rows: Tensor
    """[sampled] int64: the rows whose logits are wanted."""


class AttentionBackend(Protocol):
    """Writes the KV of a step and attends, layer by layer, after one `plan`."""

    @property
    def batch_invariant(self) -> bool:
        """True if a query's bits depend on its own text alone, not on the rest of the step."""
        ...

    @property
    def reads(self) -> frozenset[str] | None:
        """Formats of KV that the backend reads in place, by name; None: all, through `KVCodec`.

        Making a backend for an arena of another format must not fail; nothing else is asked of it.
        """
        ...

    def plan(self, inputs: StepInputs) -> None:
        """Prepare what all layers of this step share; called once, before any layer."""
        ...

    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Write keys and values of all rows of the step: [tokens, kv_heads, head_dim] each."""
        ...

    def run(self, layer: int, q: Tensor) -> Tensor:
        """Attend: [tokens, heads, head_dim] → the same shape. The layer has been written."""
        ...
