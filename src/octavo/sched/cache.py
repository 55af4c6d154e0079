"""What the scheduler needs of a cache manager."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from octavo.contract.batch import Copy, Move
from octavo.contract.ids import BlockId, MoveId, SeqId, StepId
from octavo.contract.misses import Miss
from octavo.contract.request import Request, Sequence
from octavo.contract.retention import DEFAULT_TENANT, PinFacts
from octavo.contract.usage import Usage
from octavo.memory.admission import Standing
from octavo.memory.look import Look
from octavo.memory.prefix import Hit


class Cache(Protocol):
    """Blocks for sequences. A call that may refuse changes nothing when it does.

    Implementations: `KVCacheManager` (paged, shared) and `RegionCache` (contiguous baselines).
    """

    shares: bool

    @property
    def view(self) -> Look:
        """For whoever watches."""
        ...

    def limit(
        self,
        prompt: int,
        expected_output: int,
        limit: int,
        width: int = 1,
        tenant: str = DEFAULT_TENANT,
    ) -> int:
        """Longest text that a tenant's request may grow to, if `width` beams share its prompt.

        Raises RequestError if so many beams cannot have one token each.
        """
        ...

    def expect(self, request: Request) -> None:
        """Take in what a request asks for beyond its text; `part` follows.

        Raises RequestError, changing nothing.
        """
        ...

    def withdraw(self, request: Request) -> None:
        """Take back what `expect` took in, as if it had never been asked; `part` follows."""
        ...

    def part(self, request: Request) -> None:
        """All sequences of a request have ended."""
        ...

    def pass_time(self, now_s: float) -> bool:
        """A step is about to be planned; True if blocks have come back by that alone.

        now_s: seconds on the engine's clock.
        """
        ...

    def unpin(self, tenant: str | None, name: str | None) -> int:
        """Let go of pins, None: of any tenant or name; returns the blocks they held."""
        ...

    def pins(self, tenant: str | None) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all. Raises RequestError for one that there is not."""
        ...

    def quota(self, waiting: int, running: int) -> int:
        """How many of the waiting sequences may be admitted now."""
        ...

    def lookup(self, seq: Sequence) -> Hit:
        """Find the longest known prefix. Changes no block."""
        ...

    def explain(self, seq: Sequence, hit: Hit) -> Miss | None:
        """Say why no more was found of a sequence that has not been admitted; None: all was."""
        ...

    def known(self, seq: Sequence, guess: int) -> int:
        """Leading tokens of a text in memory, as far as is seen quickly from a guess.

        Gives the sequence the keys of its text.
        """
        ...

    def shortage(self, seq: Sequence, hit: Hit) -> int:
        """Blocks that must come back before the sequence can be admitted."""
        ...

    def standing(self, seq: Sequence, hit: Hit | None = None) -> Standing:
        """Where the sequence's tenant would stand if it were admitted, or given one more block."""
        ...

    def useful(
        self, victims: Iterable[Sequence], seq: Sequence, hit: Hit | None = None
    ) -> Iterator[Sequence]:
        """Yield the victims of which `seq` could use what their release would give back.

        hit: of a sequence that is to be admitted; None: it runs.
        """
        ...

    def admit(self, seq: Sequence, hit: Hit, upto: int, step: StepId) -> bool:
        """Give the sequence its known prefix and room for its text up to `upto`."""
        ...

    def extend(self, seq: Sequence, upto: int, step: StepId) -> bool:
        """Make room for positions from `scheduled` up to `upto`, written by `step`."""
        ...

    def extend_all(self, seqs: Iterable[Sequence], step: StepId) -> bool:
        """Make room for the last token of several sequences, for all of them or for none."""
        ...

    def open(self, seq: Sequence) -> None:
        """Give a sequence an empty table; it is promised nothing."""
        ...

    def adopt(self, seq: Sequence) -> int:
        """Take over blocks that others have written since; returns tokens gained."""
        ...

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Let `child` share all blocks of `parent`."""
        ...

    def growth(self, seq: Sequence) -> tuple[tuple[int, ...], tuple[tuple[BlockId, ...], ...]]:
        """Return (kept, blocks) for the next slice."""
        ...

    def seal(self, seq: Sequence) -> None:
        """Publish blocks whose last token has become known."""
        ...

    def release(self, seq: Sequence, last_step: StepId, *, returns: bool = False) -> None:
        """Let go of all blocks; no effect without any. returns: it goes on later."""
        ...

    def relief(self, seq: Sequence, hit: Hit, victims: Iterable[Sequence]) -> Iterator[int]:
        """For each victim, by how much its release, after those before, lessens the shortage."""
        ...

    def commit(self, step: StepId) -> None:
        """The step went well."""
        ...

    def revoke(self, step: StepId, doomed: set[SeqId]) -> set[SeqId]:
        """The step failed; returns all sequences that must be released."""
        ...

    def settle(self, moved: Iterable[MoveId], failed: Iterable[MoveId]) -> dict[SeqId, int]:
        """Close moves; returns sequences that wait no longer, with their tokens in memory."""
        ...

    def give_up(self, seq: Sequence) -> int:
        """Wait no longer for loads; returns tokens in memory."""
        ...

    def take_copies(self) -> tuple[Copy, ...]:
        """Copies for the batch."""
        ...

    def take_moves(self) -> tuple[Move, ...]:
        """Moves for the batch."""
        ...

    @property
    def open_moves(self) -> int:
        """Moves whose outcome is not known."""
        ...

    def usage(self) -> Usage:
        """How full the device is."""
        ...

    def clear(self) -> int:
        """Forget cached texts that nobody uses; returns the number of blocks."""
        ...

    def quarantine(self) -> int:
        """Begin again without blocks about which something is wrong; returns how many are out.

        No step may be in flight, and no move open; no sequence has blocks afterwards. Raises
        Corrupted if that does not help.
        """
        ...

    def check(self) -> None:
        """Recompute every count. Raises Corrupted."""
        ...
