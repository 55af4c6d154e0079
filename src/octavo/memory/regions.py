"""The contiguous baselines: one region per request, reserved when it is admitted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from octavo.contract.batch import Copy, Move
from octavo.contract.ids import BlockId, MoveId, SeqId, StepId
from octavo.contract.misses import Miss
from octavo.contract.request import Request, Sequence
from octavo.contract.retention import DEFAULT_TENANT, PinFacts
from octavo.contract.usage import Usage
from octavo.errors import Corrupted, RequestError
from octavo.memory.admission import Standing
from octavo.memory.buddy import BuddyAllocator
from octavo.memory.prefix import Hit
from octavo.memory.region_look import RegionLook
from octavo.memory.reservation import Reservation


class _Region:
    __slots__ = ("blocks", "final", "promised", "sent", "start", "written")

    def __init__(self, start: BlockId, blocks: int, *, promised: int, final: int) -> None:
        self.start = start
        self.blocks = blocks
        self.promised = promised
        """Slots the rule asked for."""
        self.final = final
        """Slots the request is expected to fill in the end."""
        self.written = 0
        self.sent = False


class RegionCache:
    """Answers the scheduler as `KVCacheManager` does, with a run of consecutive blocks.

    No prefix cache and no sharing: these are the systems that paging is measured against.
    A region never grows, so a request ends where its region ends. Waste is real: `reserved`
    will be used later, `internal` never, the rest of the pool is external (unusable gaps, the
    rounding of the buddy allocator, idle blocks).
    """

    shares = False

    def __init__(
        self, rule: Reservation, num_blocks: int, *, block_size: int, longest: int
    ) -> None:
        assert rule.tokens is not None, f"{rule.name} reserves nothing"
        self._rule = rule.tokens
        self._together = rule.together
        self._buddy = BuddyAllocator(num_blocks)
        self._block_size = block_size
        self.longest = min(longest, self._buddy.largest * block_size)
        """Longest text that any region can hold."""
        self._regions: dict[SeqId, _Region] = {}
        self._members = 0
        self._sums = dict.fromkeys(("blocks", "written", "reserved", "internal"), 0)
        self.view = RegionLook(num_blocks, block_size, self._regions)
        """For whoever watches."""

    def limit(
        self,
        prompt: int,
        expected_output: int,
        limit: int,
        width: int = 1,
        tenant: str = DEFAULT_TENANT,
    ) -> int:
        """Longest text a request may grow to: to the end of its region."""
        assert width == 1, "regions are not shared"
        return min(limit, max(prompt + 1, self._rule(prompt, expected_output, self.longest)))

    def quota(self, waiting: int, running: int) -> int:
        """How many of the waiting sequences may be admitted now.

        A rule that runs batches together fixes the batch when the one before has ended.
        """
        if not self._together:
            return waiting
        if running == 0:
            room = self._buddy.size // self._blocks(self.longest)
            self._members = min(max(1, room), waiting)
        return self._members

    def lookup(self, seq: Sequence) -> Hit:
        """Nothing is ever found."""
        return Hit(0, ([],), (0,))

    def explain(self, seq: Sequence, hit: Hit) -> Miss | None:
        """Nothing is ever looked for, so that nothing is missing."""
        return None

    def known(self, seq: Sequence, guess: int) -> int:
        """Nothing is ever known, and there are no keys."""
        return 0

    def shortage(self, seq: Sequence, hit: Hit) -> int:
        """Blocks that must come back before the region fits; 0: it fits."""
        count = self._blocks(self._promise(seq))
        return 0 if self._buddy.fits(count) else count

    def admit(self, seq: Sequence, hit: Hit, upto: int, step: StepId) -> bool:
        """Reserve the sequence's region. False: no run of that length, nothing changed."""
        promised = self._promise(seq)
        run = self._buddy.take(self._blocks(promised))
        if run is None:
            return False
        final = min(promised, seq.prompt_length + _expected(seq))
        region = self._regions[seq.id] = _Region(*run, promised=promised, final=final)
        self._account(region, 1)
        self._members -= 1
        return self.extend(seq, upto, step)

    def extend(self, seq: Sequence, upto: int, step: StepId) -> bool:
        """Write on inside the region; the sequence's limit keeps it there."""
        region = self._regions[seq.id]
        assert upto <= region.promised, f"position {upto} lies behind a region of {region.promised}"
        self._account(region, -1)
        region.written = max(region.written, upto)
        self._account(region, 1)
        return True

    def extend_all(self, seqs: Iterable[Sequence], step: StepId) -> bool:
        """Write the last token of several sequences, each inside its region."""
        return all([self.extend(seq, seq.length, step) for seq in seqs])

    def open(self, seq: Sequence) -> None:
        """Regions are given at admission."""
        raise AssertionError(f"sequence {seq.id} has no region, and regions are not shared")

    def growth(self, seq: Sequence) -> tuple[tuple[int, ...], tuple[tuple[BlockId, ...], ...]]:
        """Return (kept, blocks) for the next slice: the whole region at first, then nothing."""
        region = self._regions[seq.id]
        if region.sent:
            return (region.blocks,), ((),)
        region.sent = True
        return (0,), (tuple(range(region.start, region.start + region.blocks)),)

    def release(self, seq: Sequence, last_step: StepId, *, returns: bool = False) -> None:
        """Give the region back. Without one: no effect."""
        region = self._regions.pop(seq.id, None)
        if region is not None:
            self._account(region, -1)
            self._buddy.drop(region.start)

    def relief(self, seq: Sequence, hit: Hit, victims: Iterable[Sequence]) -> Iterator[int]:
        """For each victim, the whole shortage if its region completes a run, else 0."""
        count = self._blocks(self._promise(seq))
        trial = self._buddy.copy()
        for victim in victims:
            trial.drop(self._regions[victim.id].start)
            yield count if trial.fits(count) else 0

    def revoke(self, step: StepId, doomed: set[SeqId]) -> set[SeqId]:
        """Nobody reads what another writes: only the step's own sequences are affected."""
        return set(doomed)

    def usage(self) -> Usage:
        """How full the pool is. O(1)."""
        blocks = self._sums["blocks"]
        return Usage(
            slots=self._buddy.size * self._block_size,
            allocated=blocks * self._block_size,
            tokens=self._sums["written"],
            reserved=self._sums["reserved"],
            internal=self._sums["internal"],
            blocks_used=blocks,
            blocks_logical=blocks,
            blocks_shared=0,
        )

    def check(self) -> None:
        """Recompute every count. Raises Corrupted."""
        self._buddy.check()
        kept = dict(self._sums)
        self._sums = dict.fromkeys(kept, 0)
        for region in self._regions.values():
            self._account(region, 1)
        if kept != self._sums:
            raise Corrupted(f"sums {kept}, regions say {self._sums}")

    # ── what only paging has ──────────────────────────────────────────────────────────────

    def quarantine(self) -> int:
        """Regions are a baseline: what is wrong with them stays. Raises Corrupted."""
        self.check()
        return 0

    def expect(self, request: Request) -> None:
        """Regions keep nothing. Raises RequestError if something is to be kept, or a tenant's."""
        if request.retention or request.tenant != DEFAULT_TENANT:
            asked = "retention" if request.retention else f"tenant {request.tenant!r}"
            raise RequestError(
                f"{asked} needs blocks that texts can share, which contiguous regions are not: use "
                "reservation on_demand"
            )

    def withdraw(self, request: Request) -> None:
        """Nothing was taken in."""

    def part(self, request: Request) -> None:
        """Nothing was taken in."""

    def pass_time(self, now_s: float) -> bool:
        """Nothing ends by itself."""
        return False

    def unpin(self, tenant: str | None, name: str | None) -> int:
        """Nothing is pinned. Raises RequestError for a tenant that there is not."""
        if tenant not in (None, DEFAULT_TENANT):
            raise RequestError(f"tenant {tenant!r:.80} is not one of {DEFAULT_TENANT}")
        return 0

    def pins(self, tenant: str | None) -> tuple[PinFacts, ...]:
        """There are none. Raises RequestError for a tenant that there is not."""
        self.unpin(tenant, None)
        return ()

    def standing(self, seq: Sequence, hit: Hit | None = None) -> Standing:
        """There is one tenant, without shares."""
        return Standing(full=False, entitled=False, surplus=True)

    def useful(
        self, victims: Iterable[Sequence], seq: Sequence, hit: Hit | None = None
    ) -> Iterator[Sequence]:
        """Whatever comes back is for everybody."""
        return iter(victims)

    def adopt(self, seq: Sequence) -> int:
        """Nothing to take over."""
        return 0

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Never called: choices of one request are separate sequences here."""
        raise Corrupted("contiguous regions cannot be forked")

    def seal(self, seq: Sequence) -> None:
        """Nothing to publish."""

    def commit(self, step: StepId) -> None:
        """Nothing is tentative."""

    def give_up(self, seq: Sequence) -> int:
        """Nothing is ever loaded."""
        return 0

    def settle(self, moved: Iterable[MoveId], failed: Iterable[MoveId]) -> dict[SeqId, int]:
        """No moves."""
        return {}

    def take_copies(self) -> tuple[Copy, ...]:
        """No copies."""
        return ()

    def take_moves(self) -> tuple[Move, ...]:
        """No moves."""
        return ()

    @property
    def open_moves(self) -> int:
        """No moves."""
        return 0

    def clear(self) -> int:
        """Nothing is cached."""
        return 0

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self._block_size)

    def _promise(self, seq: Sequence) -> int:
        return max(seq.limit, self._rule(seq.prompt_length, _expected(seq), self.longest))

    def _account(self, region: _Region, sign: int) -> None:
        self._sums["blocks"] += sign * region.blocks
        self._sums["written"] += sign * region.written
        self._sums["reserved"] += sign * max(0, region.final - region.written)
        unused = region.promised - max(region.final, region.written)
        self._sums["internal"] += sign * unused


def _expected(seq: Sequence) -> int:
    expected = seq.request.expected_output_tokens
    return seq.limit - seq.prompt_length if expected is None else expected
