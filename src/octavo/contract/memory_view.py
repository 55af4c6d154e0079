"""What the memory looks like to whoever watches it: columns of bytes, from the engine to a mirror.

Each column has one number for each row, in the byte order of the host: both ends are on one.
"""

from __future__ import annotations

from enum import IntEnum

import msgspec

from octavo.contract.ids import BlockId, BlockKey, SeqId, StepId
from octavo.contract.misses import Miss

NO_GROUP = 255
"""In `CellRows.group`: the block belongs to no KV group now."""

MOST_COUNTED = 65_535
"""Greater numbers of holders, tokens and hits are told as this one."""


class CellState(IntEnum):
    """What a block is to its pool; each is one of these."""

    FREE = 0
    CACHED = 1
    """Nobody holds it, and it holds a text that can be found."""
    IN_USE = 2
    """It has one holder."""
    SHARED = 3
    """It has two or more."""
    TENTATIVE = 4
    """Held, and a step in flight writes it, so that its text can be found already."""
    PINNED = 5
    """Cached, and a pin keeps it from eviction."""
    QUARANTINED = 6
    """Something was wrong about it: it is given out no more."""


class CellRows(msgspec.Struct, frozen=True, kw_only=True):
    """Some blocks, one a row."""

    index: bytes
    """uint32: their ids."""
    state: bytes
    """uint8: of `CellState`."""
    group: bytes
    """uint8: the KV group whose layers lie in them, or `NO_GROUP`."""
    refs: bytes
    """uint16: holders, moves included."""
    tokens: bytes
    """uint16: slots that hold a token."""
    hits: bytes
    """uint16: how often the text was used again."""
    used: bytes
    """uint32: when it was used last, in tenths of a second of the engine's clock."""
    tenant: bytes
    """uint16: number of the tenant on whose account they are; of free ones 0."""
    keys: bytes
    """16 bytes each: the key of their texts; zeros: no text that can be found."""
    parents: bytes
    """16 bytes each: the key of what comes before."""
    depths: bytes
    """uint32: index in the chain."""
    also: tuple[tuple[BlockId, tuple[int, ...]], ...] = ()
    """Blocks that other tenants hold too, and the numbers of these."""


class TableRows(msgspec.Struct, frozen=True):
    """How the table of a sequence has changed in one KV group."""

    seq: SeqId
    group: int
    first: int
    """Leading entries that a window has passed: no block stands there any more."""
    kept: int
    """Leading entries that are as they were told before."""
    blocks: bytes
    """int32: the entries behind them."""


class SeqFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What seldom changes about a sequence."""

    seq: SeqId
    number: int
    """Of its request, from 1 in the order of arrival."""
    request: str
    index: int
    """Which of the request's choices it is."""
    tenant: str
    prompt: int
    """Tokens."""
    limit: int
    """Longest text, prompt included."""
    arrived_s: float
    hit: int | None = None
    """Tokens of the prompt found in memory; None: it has not been admitted."""
    miss: Miss | None = None
    """Why no more was found, as far as its caller may know."""


class SeqRows(msgspec.Struct, frozen=True, kw_only=True):
    """Live sequences, one a row: those that run first."""

    seq: bytes
    """int32: their numbers."""
    phase: bytes
    """uint8: index in `PHASES`."""
    tokens: bytes
    """uint32: of the text, prompt included."""
    computed: bytes
    """uint32: leading ones whose KV is in memory, or being written."""
    preemptions: bytes
    """uint16."""
    paused: bytes
    """uint8: 1: it is given no tokens."""


PHASES = ("waiting", "loading", "running", "parked")
"""As `Phase` names them."""


class CopyNote(msgspec.Struct, frozen=True):
    """A block was copied, since two texts that share a part of it go on differently."""

    step: StepId
    src: BlockId
    dst: BlockId
    why: str
    """fork: a shared partial block was written; prefix: a new text begins with a part of it."""


class Reserved(msgspec.Struct, frozen=True):
    """What the live sequences would reserve under a rule that knows no paging."""

    rule: str
    blocks: int
    fits: int
    """How many of them would have room together, oldest first."""
    exact: bool
    """False: some lengths are those so far, which are lower bounds."""


class MemoryRows(msgspec.Struct, frozen=True, kw_only=True):
    """What has changed in the device's memory since the last time; or all of it."""

    whole: bool
    cells: CellRows
    tables: tuple[TableRows, ...] = ()
    gone: tuple[SeqId, ...] = ()
    """Sequences that have no table any more."""
    tenants: tuple[str, ...] = ()
    """By number; only where all is told."""


class MemoryFrame(msgspec.Struct, frozen=True, kw_only=True):
    """One look at memory and sequences, between two steps."""

    number: int
    """Rises by one with each look."""
    at_s: float
    step: StepId
    """Steps planned so far."""
    memory: MemoryRows
    seqs: SeqRows
    facts: tuple[SeqFacts, ...] = ()
    """Of sequences that are new, or of which more is known now."""
    ended: tuple[SeqId, ...] = ()
    """Sequences that are no more, of those that were told of."""
    copies: tuple[CopyNote, ...] = ()
    """Since the last look; the last ones, if there were many."""
    lost_copies: int = 0
    """Those that were left out."""
    sequences: int = 0
    """How many have a table."""
    reserved: tuple[Reserved, ...] | None = None
    """None: not worked out this time."""


class BlockFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One block, with what is in it."""

    block: BlockId
    state: CellState
    group: int | None
    refs: int
    hits: int
    filled: int
    used_s: float
    tenants: tuple[str, ...]
    """On whose account it is, and who else holds it; none: it is free."""
    key: BlockKey | None = None
    parent: BlockKey | None = None
    """None: it begins a text."""
    depth: int = 0
    sequences: tuple[SeqId, ...] = ()
    tokens: tuple[int, ...] | None = None
    """None: not known, or none."""
    age_s: float = 0.0
    """Since `used_s`."""
    prefix: tuple[int, ...] | None = None
    """The text from its beginning up to the block's end, if it was asked for and is in memory."""
