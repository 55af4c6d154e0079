"""Shape and size of KV memory: the one place where bytes per block are worked out."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from octavo.contract.formats import KVFormat, find_formats
from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError

ANY_LENGTH = 2**62
"""Tokens: longer than any text."""


class KVGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Layers that share one block table."""

    name: str
    layers: tuple[int, ...]
    kv_heads: int
    head_dim: int
    block_size: int
    """Tokens per block of this group."""
    window: int | None = None
    """Positions that a query sees, its own included; None: all up to its own."""
    padding: int = 0
    """Pages of each block that no layer uses, so that its bytes equal the other groups'."""

    @property
    def pages_per_block(self) -> int:
        """Pages of one block: one for each layer, and the padding."""
        return len(self.layers) + self.padding

    def plane_bytes(self, stored: KVFormat) -> int:
        """Bytes of the keys, or of the values, of one page."""
        return stored.plane_bytes(self.block_size * self.kv_heads, self.head_dim)

    def first_seen(self, start: int) -> int:
        """Index of the first block that a query at position `start` reads."""
        return first_block_seen(self.block_size, self.window, start)

    def held_blocks(self, tokens: int) -> int:
        """Blocks of a text of so many tokens once those behind the window have been freed."""
        return -(-tokens // self.block_size) - self.first_seen(tokens - 1)

    def peak_blocks(self, tokens: int, step_tokens: int) -> int:
        """Most blocks that a text holds while it grows to `tokens` by `step_tokens` a step."""
        return peak_blocks(self.block_size, self.window, tokens, step_tokens)

    def block_bytes(self, keys: KVFormat, values: KVFormat) -> int:
        """Bytes of one block: all layers' pages together, padding included."""
        return self.pages_per_block * (self.plane_bytes(keys) + self.plane_bytes(values))

    def bytes_per_token(self, keys: KVFormat, values: KVFormat) -> int:
        """Bytes that one token holds in all layers of this group: its share of a block."""
        return -(-self.block_bytes(keys, values) // self.block_size)


def first_block_seen(block_size: int, window: int | None, start: int) -> int:
    """Index of the first block of one group that a query at position `start` reads."""
    return 0 if window is None else max(0, start - window + 1) // block_size


def peak_blocks(block_size: int, window: int | None, tokens: int, step_tokens: int) -> int:
    """Most blocks of one group that a text holds while it grows to `tokens`.

    step_tokens: most tokens computed in one step.
    """
    most = -(-tokens // block_size)
    if window is None:
        return most
    # The first query of a step looks back over the window, wherever that begins in a block.
    seen = window - 1 + step_tokens
    return min(most, (seen + block_size - 2) // block_size + 1)


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """All KV groups of a model. Their blocks have equal bytes, so that one pool serves all."""

    groups: tuple[KVGroup, ...]
    keys: KVFormat
    values: KVFormat

    def __post_init__(self) -> None:
        if not self.groups:
            raise ConfigError("a KV layout needs at least one group of layers")
        for group in self.groups:
            if group.block_size < 1:
                raise ConfigError(f"block_size must be at least 1 token, got {group.block_size}")
        sizes = {group.name: group.block_bytes(self.keys, self.values) for group in self.groups}
        if len(set(sizes.values())) > 1:
            raise ConfigError(f"KV groups must have blocks of equal bytes, got {sizes}")

    @property
    def dtype(self) -> str:
        """How KV is stored, in words: one name, or two as KEYS/VALUES."""
        keys, values = self.keys.name, self.values.name
        return keys if keys == values else f"{keys}/{values}"

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, the same in every group."""
        return self.groups[0].block_bytes(self.keys, self.values)

    @property
    def block_sizes(self) -> tuple[int, ...]:
        """Tokens per block, group by group."""
        return tuple(group.block_size for group in self.groups)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token holds in all groups."""
        return sum(group.bytes_per_token(self.keys, self.values) for group in self.groups)

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Positions that a query sees, group by group; None: all up to its own."""
        return tuple(group.window for group in self.groups)

    def held_blocks(self, tokens: int) -> int:
        """Blocks of a text of so many tokens, all groups together, in the long run."""
        return sum(group.held_blocks(tokens) for group in self.groups)

    def peak_blocks(self, tokens: int, step_tokens: int) -> int:
        """Most blocks that a text holds while it grows to `tokens` by `step_tokens` a step."""
        return sum(group.peak_blocks(tokens, step_tokens) for group in self.groups)

    def blocks_in(self, num_bytes: int) -> int:
        """Blocks that fit into so many bytes."""
        return num_bytes // self.block_bytes

    def capacity_tokens(self, num_blocks: int, step_tokens: int) -> int:
        """Longest single text that `num_blocks` blocks can hold, computed in such steps.

        At most `ANY_LENGTH`, which means that all layers have windows and these fit.
        """
        low, high = 0, ANY_LENGTH + 1
        while high - low > 1:
            middle = (low + high) // 2
            if self.peak_blocks(middle, step_tokens) <= num_blocks:
                low = middle
            else:
                high = middle
        return low


_MOST_PADDING = 16
"""Of so many pages of one kind at most one is padding."""


Stored: TypeAlias = str | tuple[KVFormat, KVFormat]
"""How keys and values are stored: a KV dtype that octavo brings, or any two formats."""


def kv_layout(spec: ModelSpec, *, block_size: int, dtype: Stored) -> KVLayout:
    """Describe the KV memory of a model.

    Layers are split into groups of equal size, each of one kind: layers that see everything, and
    layers with a window. Their blocks have equal bytes then, and one pool serves all.
    """
    windowed = frozenset(spec.window_layers)
    full = tuple(i for i in range(spec.num_layers) if i not in windowed)
    kinds = [("full", None, full), ("window", spec.window, spec.window_layers)]
    kinds = [kind for kind in kinds if kind[2]]
    size = _group_size([len(layers) for _, _, layers in kinds])
    groups: list[KVGroup] = []
    for name, window, layers in kinds:
        parts = [layers[first : first + size] for first in range(0, len(layers), size)]
        groups += [
            KVGroup(
                name=name if len(parts) == 1 else f"{name} {number}",
                layers=part,
                kv_heads=spec.num_kv_heads,
                head_dim=spec.head_dim,
                block_size=block_size,
                window=window,
                padding=size - len(part),
            )
            for number, part in enumerate(parts, start=1)
        ]
    return stored_layout(tuple(groups), dtype)


def stored_layout(groups: tuple[KVGroup, ...], dtype: Stored) -> KVLayout:
    """Describe groups of layers whose keys and values are stored in one way."""
    keys, values = find_formats(dtype) if isinstance(dtype, str) else dtype
    return KVLayout(groups=groups, keys=keys, values=values)


def _group_size(counts: list[int]) -> int:
    """Layers per group: as many as padding allows, since every group has a table of its own."""

    def wasteful(count: int, size: int) -> bool:
        pages = -(-count // size) * size
        return (pages - count) * _MOST_PADDING > pages

    sizes = range(max(counts), 0, -1)
    return next(size for size in sizes if not any(wasteful(count, size) for count in counts))


def plain_layout(
    *, layers: int, kv_heads: int, head_dim: int, block_size: int, dtype: Stored
) -> KVLayout:
    """Describe the KV memory of equal layers that all attend to everything: one group."""
    group = KVGroup(
        name="full",
        layers=tuple(range(layers)),
        kv_heads=kv_heads,
        head_dim=head_dim,
        block_size=block_size,
    )
    return stored_layout((group,), dtype)
