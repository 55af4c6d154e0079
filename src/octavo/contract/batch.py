"""What goes down to a runner (`Batch`) and what comes back (`StepResult`).

Values only: printable, comparable, ready to be sent to another process.
"""

from __future__ import annotations

import msgspec

from octavo.contract.ids import BlockId, BlockKey, MoveId, SeqId, StepId
from octavo.contract.sampling import SamplingParams


class Sample(msgspec.Struct, frozen=True):
    """Ask for one token after the last position of a slice."""

    seq: SeqId
    """Whom the token belongs to: the slice's sequence, or a fork of it that starts here."""
    seed: int
    """64-bit key of the random numbers; the counter is the position of the new token."""
    params: SamplingParams


class Slice(msgspec.Struct, frozen=True, gc=False):
    """One sequence's share of one step.

    A runner writes the KV of `tokens` at positions `start`, `start + 1`, … and lets each
    of them attend to every position up to its own. Every layer writes before it attends, so
    a slice may read what another slice of the same step writes.
    """

    seq: SeqId
    start: int
    """Position of the first token. Positions before it are in memory already."""
    tokens: tuple[int, ...]
    """Never empty. The last one may be `PENDING`: sampled by a step still in flight."""
    kept: tuple[int, ...]
    """Per KV group, how many leading entries of the table known for this sequence stay valid:
    all of them as a rule, one less after copy-on-write, 0 for a table sent whole."""
    blocks: tuple[tuple[BlockId, ...], ...]
    """Per KV group, the blocks that follow the kept ones."""
    samples: tuple[Sample, ...]
    """Empty while the prompt is not yet complete."""


class Copy(msgspec.Struct, frozen=True, gc=False):
    """Copy a whole block inside the device, before the step's first write (copy-on-write)."""

    src: BlockId
    dst: BlockId


class Place(msgspec.Struct, frozen=True, gc=False):
    """Where a block lies."""

    tier: str
    block: BlockId


class Move(msgspec.Struct, frozen=True, gc=False):
    """Copy one block between tiers, asynchronously; it may fail."""

    id: MoveId
    key: BlockKey
    src: Place
    dst: Place
    after: StepId = 0
    """Start only when this step has been collected: until then the device may still write
    a block at either end."""


class Batch(msgspec.Struct, frozen=True):
    """One planned step."""

    step: StepId
    slices: tuple[Slice, ...] = ()
    copies: tuple[Copy, ...] = ()
    """To run in this order, before the first write."""
    moves: tuple[Move, ...] = ()
    """To start now, unless they name a step to wait for."""
    ended: tuple[SeqId, ...] = ()
    """Sequences whose state in the runner can go, before the slices run."""

    @property
    def empty(self) -> bool:
        """True if there is nothing to submit."""
        return not (self.slices or self.moves or self.ended)


class Sampled(msgspec.Struct, frozen=True, gc=False):
    """One sampled token."""

    token: int
    logprob: float
    """Natural logarithm of the token's probability before any sampling option."""


class StepResult(msgspec.Struct, frozen=True):
    """What became of one step."""

    step: StepId
    sampled: dict[SeqId, Sampled] = msgspec.field(default_factory=dict[SeqId, Sampled])
    moved: tuple[MoveId, ...] = ()
    """Moves completed since the last result, of any step."""
    failed: tuple[MoveId, ...] = ()
    """Moves that did not happen."""
    error: str | None = None
    """Set: nothing that this step should have written may be relied upon."""
