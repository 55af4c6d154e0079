"""What a stream of the memory is asked for, and by whom."""

from __future__ import annotations

from dataclasses import dataclass

MOST_CELLS = 65_536
"""Blocks that one stream shows."""
MOST_FOLLOWED = 8
MOST_NODES = 500
MOST_HZ = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Wants:
    """The options of one stream."""

    hz: int = MOST_HZ
    """Frames a second, at most."""
    cells: bool = True
    first: int = 0
    """The first block that is shown."""
    count: int = MOST_CELLS
    """How many are shown, at most."""
    follow: tuple[str, ...] = ()
    """Requests whose tables are told."""
    tree: int = 0
    """Nodes of the tree of prefixes; 0: none."""
    tenant: str | None = None
    """Who may see its own alone; None: everything is told."""
