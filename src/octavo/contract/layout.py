"""Shape and size of KV memory: the one place where bytes per block are worked out."""

from __future__ import annotations

import math

import msgspec

from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one number of each KV dtype."""


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table."""

    name: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block of this group."""

    def page_shape(self) -> tuple[int, int, int, int]:
        """Shape of one page: [keys and values, block_size, kv_heads, head_dim]."""
        return (2, self.block_size, self.kv_heads, self.head_dim)

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes that one token holds in all layers of this group."""
        return 2 * len(self.layers) * self.kv_heads * self.head_dim * ITEM_BYTES[dtype]

    def block_bytes(self, dtype: str) -> int:
        """Bytes of one block: all layers' pages together."""
        return self.block_size * self.bytes_per_token(dtype)


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """All KV groups of a model. Their blocks have equal bytes, so that one pool serves all."""

    groups: tuple[KVGroup, ...]
    dtype: str

    def __post_init__(self) -> None:
        if self.dtype not in ITEM_BYTES:
            raise ConfigError(f"KV dtype {self.dtype!r} is not one of {', '.join(ITEM_BYTES)}")
        if not self.groups:
            raise ConfigError("a KV layout needs at least one group of layers")
        for group in self.groups:
            if group.block_size < 1:
                raise ConfigError(f"block_size must be at least 1 token, got {group.block_size}")
        sizes = {group.name: group.block_bytes(self.dtype) for group in self.groups}
        if len(set(sizes.values())) > 1:
            raise ConfigError(f"KV groups must have blocks of equal bytes, got {sizes}")

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, the same in every group."""
        return self.groups[0].block_bytes(self.dtype)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Tokens per block, group by group."""
        return tuple(group.block_size for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token holds in all groups."""
        return sum(group.bytes_per_token(self.dtype) for group in self.groups)

    def blocks_for(self, tokens: int) -> int:
        """Blocks that `tokens` tokens occupy, all groups together."""
        return sum(-(-tokens // size) for size in self.block_sizes)

    def blocks_in(self, num_bytes: int) -> int:
        """Blocks that fit into so many bytes."""
        return num_bytes // self.block_bytes

    def capacity_tokens(self, num_blocks: int) -> int:
        """Longest single sequence that `num_blocks` blocks can hold."""
        unit = math.lcm(*self.block_sizes)
        low = num_blocks // self.blocks_for(unit) * unit
        while self.blocks_for(low + 1) <= num_blocks:
            low += 1
        return low


def kv_layout(spec: ModelSpec, *, block_size: int, dtype: str) -> KVLayout:
    """Describe the KV memory of a model: one group, since all its layers attend to everything."""
    return plain_layout(
        layers=spec.num_layers,
        kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=block_size,
        dtype=dtype,
    )


def plain_layout(
    *, layers: int, kv_heads: int, head_dim: int, block_size: int, dtype: str
) -> KVLayout:
    """Describe the KV memory of equal layers that all attend to everything: one group."""
    group = KVGroup(
        name="full",
        layers=tuple(range(layers)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
    )
    return KVLayout(groups=(group,), dtype=dtype)
