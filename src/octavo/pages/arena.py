"""KV memory of one device: one raw allocation, addressed by block.

It knows bytes and blocks; it must not know sequences, keys or who holds what.
"""

from __future__ import annotations

import torch
from torch import Tensor

from octavo.contract.batch import Copy
from octavo.contract.layout import KVGroup, KVLayout
from octavo.pages.codec import KVCodec, KVCodecs
from octavo.pages.codecs import codecs_for
from octavo.pages.plane import Plane


class Arena:
    """The bytes of every block of the device, all layers of one block together.

    Memory is reserved at once and touched only when written: an untouched block holds garbage,
    which may read as NaN. Offsets are 64-bit. The page of a group's `index`-th layer begins at byte
    `block * block_bytes + index * page_bytes`: first its plane of keys, then its plane of values,
    each up to a multiple of 16 bytes. In a plane vectors lie by slot, then by head.

    codecs: how keys and values are stored; None: the layout's formats are octavo's own.
    """

    def __init__(
        self,
        layout: KVLayout,
        num_blocks: int,
        *,
        device: str | torch.device = "cpu",
        codecs: KVCodecs | None = None,
    ) -> None:
        assert num_blocks > 0, f"an arena needs at least one block, got {num_blocks}"
        codecs = codecs_for(layout) if codecs is None else codecs
        formats = tuple(codec.format for codec in codecs)
        assert formats == (layout.keys, layout.values), f"codecs of {formats}, not of the layout"
        self.layout = layout
        self.num_blocks = num_blocks
        self.raw = torch.empty(
            num_blocks * layout.block_bytes, dtype=torch.uint8, device=device
        ).view(num_blocks, layout.block_bytes)
        """[num_blocks, block_bytes] uint8: all bytes."""
        self._planes = tuple(
            tuple(self._layer(group, index, codecs) for index in range(group.pages_per_block))
            for group in layout.groups
        )

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self.raw.device

    @property
    def nbytes(self) -> int:
        """Size of the whole allocation in bytes."""
        return self.raw.numel()

    def keys(self, group: int, index: int) -> Plane:
        """Return the keys of the group's `index`-th layer, in all blocks."""
        return self._planes[group][index][0]

    def values(self, group: int, index: int) -> Plane:
        """Return the values of the group's `index`-th layer, in all blocks."""
        return self._planes[group][index][1]

    def blocks(self, group: int) -> Tensor:
        """View all blocks as numbers, if keys and values are stored in one dtype.

        Returns [num_blocks, pages_per_block, 2, block_size, kv_heads, head_dim]; strided.
        """
        keys, values = (self._planes[group][0][plane] for plane in (0, 1))
        numbers = keys.codec.stored_dtype
        assert numbers == values.codec.stored_dtype, "keys and values have dtypes of their own"
        assert numbers.is_floating_point, f"stored as {self.layout.dtype}, which are no numbers"
        one, pages = self.layout.groups[group], self.layout.groups[group].pages_per_block
        plane_items = one.plane_bytes(self.layout.keys) // numbers.itemsize
        return keys.slots.as_strided(
            (self.num_blocks, pages, 2, *keys.slots.shape[1:]),
            (keys.steps[0], 2 * plane_items, plane_items, *keys.slots.stride()[1:]),
        )

    def pages(self, group: int, index: int) -> Tensor:
        """View the pages of the group's `index`-th layer as numbers, as `blocks` does.

        Returns [num_blocks, 2, block_size, kv_heads, head_dim]; strided.
        """
        return self.blocks(group)[:, index]

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
            self.raw.index_copy_(0, dst, self.raw.index_select(0, src))
            return
        for source, target in zip(sources, targets, strict=True):
            self.raw[target].copy_(self.raw[source])

    def _layer(self, group: KVGroup, index: int, codecs: KVCodecs) -> tuple[Plane, Plane]:
        keys, values = (group.plane_bytes(codec.format) for codec in codecs)
        first = index * (keys + values)
        return (
            self._plane(group, first, keys, codecs[0]),
            self._plane(group, first + keys, values, codecs[1]),
        )

    def _plane(self, group: KVGroup, first: int, num_bytes: int, codec: KVCodec) -> Plane:
        """View `num_bytes` of each block, from byte `first` on, as a plane."""
        items = self.raw[:, first : first + num_bytes].view(codec.stored_dtype)
        width = codec.format.vector_bytes(group.head_dim) // codec.stored_dtype.itemsize
        slots = items[:, : group.block_size * group.kv_heads * width]
        return Plane(
            codec,
            group.head_dim,
            slots.unflatten(1, (group.block_size, group.kv_heads, width)),
        )
