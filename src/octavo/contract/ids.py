"""Names for the integers and bytes that identify things, and the few reserved values."""

from __future__ import annotations

from typing import TypeAlias

BlockId: TypeAlias = int
"""Index of a block within its tier, from 0."""

SeqId: TypeAlias = int
"""Number of a sequence, from 0, never used twice by one engine."""

StepId: TypeAlias = int
"""Number of a planned step, from 1; 0 means "no step"."""

MoveId: TypeAlias = int
"""Number of a move, from 1, never used twice by one engine."""

BlockKey: TypeAlias = bytes
"""16-byte digest of a full block's tokens and of everything before them."""

NO_BLOCK: BlockId = -1
"""In a table: nothing to be read, since the window of its KV group has passed."""

PENDING = -1
"""In `Slice.tokens`: the token that the previous step in flight samples for this sequence."""
