"""Shape and size of KV memory: the one place where bytes per block are worked out."""

from __future__ import annotations

import msgspec

from octavo.contract.model import ModelSpec
from octavo.errors import ConfigError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one number of each KV dtype."""

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

    def page_shape(self) -> tuple[int, int, int, int]:
        """Shape of one page: [keys and values, block_size, kv_heads, head_dim]."""
        return (2, self.block_size, self.kv_heads, self.head_dim)

    def held_blocks(self, tokens: int) -> int:
        """Blocks of a text of so many tokens once those behind the window have been freed."""
        gone = 0 if self.window is None else max(0, tokens - self.window) // self.block_size
        return -(-tokens // self.block_size) - gone

    def peak_blocks(self, tokens: int, step_tokens: int) -> int:
        """Most blocks that a text holds while it grows to `tokens` by `step_tokens` a step."""
        most = -(-tokens // self.block_size)
        if self.window is None:
            return most
        # The first query of a step looks back over the window, wherever that begins in a block.
        seen = self.window - 1 + step_tokens
        return min(most, (seen + self.block_size - 2) // self.block_size + 1)

    def bytes_per_token(self, dtype: str) -> int:
        """Bytes that one token holds in all layers of this group, padding included."""
        return 2 * self.pages_per_block * self.kv_heads * self.head_dim * ITEM_BYTES[dtype]

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


def kv_layout(spec: ModelSpec, *, block_size: int, dtype: str) -> KVLayout:
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
    return KVLayout(groups=tuple(groups), dtype=dtype)


def _group_size(counts: list[int]) -> int:
    """Layers per group: as many as padding allows, since every group has a table of its own."""

    def wasteful(count: int, size: int) -> bool:
        pages = -(-count // size) * size
        return (pages - count) * _MOST_PADDING > pages

    sizes = range(max(counts), 0, -1)
    return next(size for size in sizes if not any(wasteful(count, size) for count in counts))


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
