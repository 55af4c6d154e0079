"""One block of a tier: who holds it and what text lies in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from octavo.contract.hint import CacheHint
from octavo.contract.ids import BlockId, BlockKey, StepId

if TYPE_CHECKING:
    from octavo.memory.kept import Kept
    from octavo.memory.shares import Account
    from octavo.memory.shelves import Shelf


class Block:
    """Bookkeeping of one block; written by `BlockPool`, its `Shelves` and `Tier` alone."""

    __slots__ = (
        "account",
        "busy_step",
        "depth",
        "filled",
        "group",
        "hint",
        "hits",
        "home",
        "id",
        "kept",
        "key",
        "others",
        "parent",
        "refs",
        "shelf",
        "tokens",
        "used_s",
        "written_step",
    )

    def __init__(self, block_id: BlockId) -> None:
        self.id = block_id
        self.refs = 0
        """Tables and open moves that hold it."""
        self.group = 0
        """KV group whose layers lie in it."""
        self.filled = 0
        """Slots that hold a token, from the front."""
        self.key: BlockKey | None = None
        """None: partial, private or never written."""
        self.parent: BlockKey = b""
        """Key of what comes before it."""
        self.tokens = b""
        """Its text: int32, little-endian. Compared on every hit."""
        self.depth = 0
        """Index in its chain; deeper blocks are useless without the shallower ones."""
        self.written_step: StepId = 0
        """Not 0: tentative, the step in flight that writes it. 0: committed."""
        self.busy_step: StepId = 0
        """The device may touch it until this step is collected, though nobody holds it."""
        self.account: Account | None = None
        """Whose it is, from when it was taken until it is free or evicted. `Holders` say whose."""
        self.home: Account | None = None
        """For whom it was taken."""
        self.others: dict[Account, int] | None = None
        """How many sequences of other tenants hold it, who came first first; None: of no other."""
        self.kept: Kept | None = None
        """How it is kept once nobody holds it; None: as all are of which nothing is said."""
        self.shelf: Shelf | None = None
        """Where it lies among the cached blocks; None: held, free or pinned."""
        self.hint: CacheHint | None = None
        """What was last said of its text's further use, since it was taken up last."""
        self.hits = 0
        """How often its text was found, since it was written."""
        self.used_s = 0.0
        """When it was taken, taken up or let go last, on the engine's clock."""

    def __repr__(self) -> str:
        key = self.key.hex()[:8] if self.key else None
        return f"Block({self.id}, refs={self.refs}, key={key}, written_step={self.written_step})"
