"""The keys, or the values, of one layer: stored vectors, written and read by their place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from torch import Tensor

from octavo.pages.codec import KVCodec

Steps: TypeAlias = tuple[int, int, int]
"""Items from one block, one slot, one head to the next."""


@dataclass(frozen=True, slots=True)
class Plane:
    """One layer's keys or values in all blocks."""

    codec: KVCodec
    head_dim: int
    slots: Tensor
    """[num_blocks, block_size, kv_heads, width] of the codec's `stored_dtype`; strided by block."""

    @property
    def steps(self) -> Steps:
        """How far apart vectors lie; the same in all layers."""
        block, slot, head, _ = self.slots.stride()
        return block, slot, head

    def write(self, blocks: Tensor, offsets: Tensor, x: Tensor) -> None:
        """Store the vectors of tokens in their slots.

        blocks, offsets: [tokens]; x: [tokens, kv_heads, head_dim].
        """
        self.slots[blocks, offsets] = self.codec.encode(x)

    def read(self, blocks: Tensor, offsets: Tensor) -> Tensor:
        """Read the vectors of tokens from their slots: [tokens, kv_heads, head_dim] float32."""
        return self.codec.decode(self.slots[blocks, offsets], self.head_dim)

    def read_items(self, begins: Tensor) -> Tensor:
        """Read vectors by the items that they begin at: [vectors] → [vectors, head_dim] float32.

        That of a block, a slot and a head is `block * steps[0] + slot * steps[1] +
        head * steps[2]`. Quicker than `read`, since one number says where a vector is.
        """
        last = sum(
            (count - 1) * step for count, step in zip(self.slots.shape[:3], self.steps, strict=True)
        )
        # One row for each item: rows overlap, and most of them are nobody's vector.
        rows = self.slots.as_strided((last + 1, self.slots.shape[3]), (1, 1))
        return self.codec.decode(rows.index_select(0, begins), self.head_dim)
