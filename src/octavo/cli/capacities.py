"""How large the caches are that `octavo replay` tries: shares of a trace's blocks, or blocks."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from octavo.cli.output import note
from octavo.errors import ConfigError
from octavo.sizes import parse_counts

if TYPE_CHECKING:
    from octavo.replay.sweep import Capacity
    from octavo.replay.trace import Trace

_MOST_BLOCKS = 5_000_000
"""Each costs a process some 200 bytes."""


class Sizes:
    """Capacities, as they were asked for."""

    def __init__(self, shares: str, blocks: str | None, given: frozenset[str]) -> None:
        if blocks is not None and "capacity_share" in given:
            raise ConfigError("--capacity-share and --capacity-blocks say the same: give one")
        self._blocks: list[int] | None = None
        if blocks is not None:
            self._blocks = parse_counts(blocks, name="--capacity-blocks", most=_MOST_BLOCKS)
        self._shares = _shares(shares)
        self._chosen = "capacity_share" in given

    def of(self, trace: Trace) -> list[Capacity]:
        """Return what they are of a trace; default shares of less than a block are left out."""
        from octavo.replay.sweep import capacities, capacities_in_blocks, share_blocks

        if self._blocks is not None:
            return capacities_in_blocks(trace, self._blocks)
        if not self._chosen:
            shares = [one for one in self._shares if share_blocks(trace, one)] or [1.0]
            if trace.working_set and shares != self._shares:
                note(
                    f"octavo: {trace.name} has {trace.working_set} distinct blocks: capacity "
                    "shares of less than one of them are left out"
                )
            self._shares = shares
        return capacities(trace, self._shares)

    def keys(self) -> dict[str, object]:
        """Return what a JSON document says of them, once `of` has been asked."""
        if self._blocks is not None:
            return {"capacity_blocks": self._blocks}
        return {"capacity_share": self._shares}


def _shares(text: str) -> list[float]:
    shares: list[float] = []
    for part in text.split(","):
        try:
            share = float(part)
        except ValueError:
            share = math.nan
        if not 0 < share <= 1:
            raise ConfigError(
                f"--capacity-share must be numbers above 0 and up to 1, by commas, got {part!r}"
            )
        shares.append(share)
    return list(dict.fromkeys(shares))
