"""Finds the longest known prefix of a text over all KV groups and tiers. Changes nothing."""

from __future__ import annotations

import math
from typing import NamedTuple

from octavo.contract.request import Sequence
from octavo.memory.block import Block
from octavo.memory.keys import extend_keys
from octavo.memory.tier import Text, Tier


class Hit(NamedTuple):
    """What is known of a sequence's text before it is computed."""

    tokens: int
    """Leading tokens that some tier holds."""
    runs: tuple[list[tuple[int, Block]], ...]
    """Per KV group, the (tier, block) of each block that was found, in order."""
    arriving: bool = False
    """Part of it is being loaded for another sequence: worth waiting for."""


class PrefixFinder:
    """Longest-prefix search by chained keys: one dictionary look-up per block.

    The unit of hashing divides every group's block; a block is found by the key of its last
    unit. A prefix counts only as far as every group has it whole.
    """

    def __init__(self, block_sizes: tuple[int, ...], tiers: tuple[Tier, ...]) -> None:
        self._sizes = block_sizes
        self._unit = math.gcd(*block_sizes)
        self._align = math.lcm(*block_sizes)
        self._tiers = tiers

    def find(self, seq: Sequence, upto: int, start: int = 0, *, tiers: int | None = None) -> Hit:
        """Find known blocks from position `start` (aligned) on, at most up to position `upto`.

        tiers: look only in the first so many; None: in all, faster ones first.
        """
        extend_keys(seq, self._unit, seq.length)
        best = upto // self._align * self._align
        runs: list[list[tuple[int, Block]]] = []
        for group, size in enumerate(self._sizes):
            run = self._run(seq, group, range(start // size, best // size), self._tiers[:tiers])
            best = min(best, start + len(run) * size // self._align * self._align)
            runs.append(run)
        for run, size in zip(runs, self._sizes, strict=True):
            del run[(best - start) // size :]
        return Hit(max(best, start), tuple(runs))

    def text(self, seq: Sequence, group: int, index: int) -> Text:
        """Return what block `index` of a group holds of the sequence's text."""
        ratio = self._sizes[group] // self._unit
        first, last = index * ratio, (index + 1) * ratio
        tokens = seq.units[first] if ratio == 1 else b"".join(seq.units[first:last])
        return Text(seq.keys[last - 1], seq.keys[first - 1] if first else seq.root, tokens, index)

    def _run(
        self, seq: Sequence, group: int, indices: range, tiers: tuple[Tier, ...]
    ) -> list[tuple[int, Block]]:
        run: list[tuple[int, Block]] = []
        for index in indices:
            text = self.text(seq, group, index)
            for number, tier in enumerate(tiers):
                block = tier.find(group, text)
                if block is not None:
                    run.append((number, block))
                    break
            else:
                break
        return run
