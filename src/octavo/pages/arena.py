"""KV memory of one device: one raw allocation, addressed by block.

It knows bytes and blocks; it must not know sequences, keys or who holds what.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.contract.batch import Copy
from octavo.contract.layout import KVLayout
from octavo.kernels.dtypes import TORCH_DTYPES


class Arena:
    """The bytes of every block of the device, all layers of one block together.

    Memory is reserved at once and touched only when written: an untouched block holds garbage,
    which may read as NaN. Offsets are 64-bit. Index formula of a number of group `g`:
    `((((block * pages_of_g + index) * 2 + plane) * block_size + offset) * kv_heads + head) *
    head_dim + i`, where plane 0 holds keys and plane 1 values.
    """

    def __init__(
        self, layout: KVLayout, num_blocks: int, *, device: str | torch.device = "cpu"
    ) -> None:
        assert num_blocks > 0, f"an arena needs at least one block, got {num_blocks}"
        self.layout = layout
        self.num_blocks = num_blocks
        self._bytes = torch.empty(
            num_blocks * layout.block_bytes, dtype=torch.uint8, device=device
        ).view(num_blocks, layout.block_bytes)
        numbers = self._bytes.view(TORCH_DTYPES[layout.dtype])
        self._groups = tuple(
            numbers.view(num_blocks, group.pages_per_block, *group.page_shape())
            for group in layout.groups
        )

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self._bytes.device

    @property
    def nbytes(self) -> int:
        """Size of the whole allocation in bytes."""
        return self._bytes.numel()

    def blocks(self, group: int) -> Tensor:
        """View all blocks as one KV group sees them; contiguous.

        Returns [num_blocks, pages_per_block, 2, block_size, kv_heads, head_dim].
        """
        return self._groups[group]

    def pages(self, group: int, index: int) -> Tensor:
        """View the pages of the group's `index`-th layer; strided by block.

        Returns [num_blocks, 2, block_size, kv_heads, head_dim].
        """
        return self._groups[group][:, index]

    def copy(self, copies: tuple[Copy, ...]) -> None:
        """Copy whole blocks in the given order.

        One batched copy unless order matters: a destination that is also a source, or is
        written twice.
        """
        if not copies:
            return
        sources = [copy.src for copy in copies]
        targets = [copy.dst for copy in copies]
        for block in (*sources, *targets):
            assert 0 <= block < self.num_blocks, (
                f"copy of block {block}, but the arena holds {self.num_blocks} blocks"
            )
        unordered = set(targets).isdisjoint(sources) and len(set(targets)) == len(targets)
        if unordered:
            src = torch.tensor(sources, device=self.device)
            dst = torch.tensor(targets, device=self.device)
            self._bytes.index_copy_(0, dst, self._bytes.index_select(0, src))
            return
        for source, target in zip(sources, targets, strict=True):
            self._bytes[target].copy_(self._bytes[source])
