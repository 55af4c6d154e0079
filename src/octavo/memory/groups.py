"""Shapes of a model's KV groups, as far as tables and keys depend on them."""

from __future__ import annotations

import math

from octavo.contract.layout import ANY_LENGTH, first_block_seen, peak_blocks


class Groups:
    """Tokens per block and window of each KV group, and the unit of hashing; never changes.

    sizes: tokens per block. windows: positions that a query sees, its own included; None: all.
    step_tokens: most tokens of one sequence that a step computes.
    """

    def __init__(
        self,
        sizes: tuple[int, ...],
        windows: tuple[int | None, ...] | None = None,
        *,
        step_tokens: int = ANY_LENGTH,
    ) -> None:
        self.sizes = sizes
        self.windows = windows or (None,) * len(sizes)
        assert len(self.windows) == len(sizes), f"{len(self.windows)} windows, {len(sizes)} groups"
        self.unit = math.gcd(*sizes)
        """Tokens per key: divides every block."""
        self.align = math.lcm(*sizes)
        """A prefix of so many tokens, or a multiple, ends at a block's end in every group."""
        self.slot_weights = tuple(self.align // size for size in sizes)
        """What one slot of each group counts, so that blocks of all groups count the same."""
        self.windowed = any(window is not None for window in self.windows)
        """Some group looks back over a window only."""
        self._step_tokens = step_tokens

    def __len__(self) -> int:
        return len(self.sizes)

    def first_seen(self, group: int, start: int) -> int:
        """Return the index of the first block that a query at position `start` reads."""
        return first_block_seen(self.sizes[group], self.windows[group], start)

    def passed_at(self, group: int, index: int) -> int:
        """Return the first position whose query does not see block `index` of a group."""
        window = self.windows[group]
        return ANY_LENGTH if window is None else (index + 1) * self.sizes[group] + window - 1

    def peak(self, group: int, tokens: int) -> int:
        """Most blocks that a text holds in one group while it grows to `tokens`."""
        return peak_blocks(self.sizes[group], self.windows[group], tokens, self._step_tokens)
