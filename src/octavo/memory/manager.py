"""Which blocks a sequence has: paged, on demand, shared whenever a text is known already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain

from octavo.contract.batch import Copy, Move
from octavo.contract.ids import BlockId, MoveId, SeqId, StepId
from octavo.contract.misses import Miss
from octavo.contract.request import Request, Sequence
from octavo.contract.retention import DEFAULT_TENANT, PinFacts
from octavo.contract.usage import Usage
from octavo.errors import Corrupted
from octavo.memory.admission import Admission, Standing
from octavo.memory.allocator import Allocator
from octavo.memory.groups import Groups
from octavo.memory.hints import note_hints
from octavo.memory.kept import kept_at
from octavo.memory.ledger import Ledger
from octavo.memory.look import PagedLook
from octavo.memory.misses import MissFinder
from octavo.memory.placement import DeviceOnly, PlacementPolicy
from octavo.memory.prefix import Hit, PrefixFinder
from octavo.memory.retentions import Retentions
from octavo.memory.table import Table
from octavo.memory.tails import Tails
from octavo.memory.tier import Tier
from octavo.memory.transfers import Transfers
from octavo.memory.writer import Writer


class KVCacheManager:
    """Paged block tables per KV group, over tiers; tiers[0] is the device.

    Refusals change nothing. `extend` by one token costs the same at any length.
    """

    shares = True
    """Prefixes and forks share blocks."""

    def __init__(
        self,
        groups: Groups,
        tiers: tuple[Tier, ...],
        placement: PlacementPolicy | None = None,
    ) -> None:
        self._groups = groups
        self._sizes = groups.sizes
        self._prefixes = PrefixFinder(groups, tiers)
        self._misses = MissFinder(groups, tiers)
        self._tiers = tiers
        self.device = self._device = tiers[0]
        """Where sequences compute; to be read only."""
        self._pool = tiers[0].pool
        self._placement = placement or DeviceOnly()
        self._tables: dict[SeqId, Table] = {}
        self._ledger = Ledger()
        self._transfers = Transfers(tiers)
        self._allocator = Allocator(groups, tiers[0].pool)
        self._promises = self._allocator.promises
        self._shares = self._pool.shares
        self._tails = Tails(groups, tiers[0], self._allocator)
        self._admission = Admission(groups, self._pool, self._promises, self._tails)
        self._retentions = Retentions(groups, self._device)
        self._writer = Writer(groups, self._device, self._ledger, self._retentions)
        self.view = PagedLook(groups, self._device, self._tables)
        """For whoever watches."""

    # ── before admission ──────────────────────────────────────────────────────────────────

    def limit(
        self,
        prompt: int,
        expected_output: int,
        limit: int,
        width: int = 1,
        tenant: str = DEFAULT_TENANT,
    ) -> int:
        """Longest text a request may grow to: nothing is reserved, so `limit` stands.

        Unless its tenant may never have so many blocks; and of several beams each must find room
        for an output of its own. Raises RequestError.
        """
        return self._admission.limit(prompt, limit, width, tenant)

    def quota(self, waiting: int, running: int) -> int:
        """How many of the waiting sequences may be admitted now: all."""
        return waiting

    def lookup(self, seq: Sequence) -> Hit:
        """Find the longest known and reusable prefix of a sequence without blocks.

        Changes no block.
        """
        hit = self._prefixes.find(seq, seq.reusable)
        if self._transfers.open:
            late = hit.first_load(self._sizes, self._transfers.late)
            if late is not None:
                hit = self._prefixes.find(seq, late)
            if hit.first_load(self._sizes, self._transfers.awaited) is not None:
                return hit._replace(arriving=True)
        return hit if hit.loads else self._prefixes.lengthen(seq, hit, seq.reusable)

    def explain(self, seq: Sequence, hit: Hit) -> Miss | None:
        """Say why no more was found of a sequence that has not been admitted; None: all was."""
        return self._misses.explain(seq, hit)

    def known(self, seq: Sequence, guess: int) -> int:
        """Leading tokens of a text in memory, as far as is seen quickly from a guess.

        Gives the sequence the keys of its text. Changes no block.
        """
        return self._prefixes.probe(seq, guess)

    def shortage(self, seq: Sequence, hit: Hit) -> int:
        """Blocks that must come back before what is promised at admission fits; 0: it fits."""
        return self._admission.shortage(seq, hit, alone=not self._tables)

    def standing(self, seq: Sequence, hit: Hit | None = None) -> Standing:
        """Where a sequence's tenant would stand if it were admitted, or given one more block."""
        return self._admission.standing(seq, hit)

    def useful(
        self, victims: Iterable[Sequence], seq: Sequence, hit: Hit | None = None
    ) -> Iterator[Sequence]:
        """Yield victims whose blocks `seq`, found so far or running, could use."""
        return self._admission.useful(victims, seq, hit)

    # ── requests ──────────────────────────────────────────────────────────────────────────

    def expect(self, request: Request) -> None:
        """Take in what a request asks for beyond its text. Raises RequestError, changing nothing.

        Each is followed by `part`.
        """
        self._retentions.expect(request)

    def withdraw(self, request: Request) -> None:
        """Take back what `expect` took in, as if it had never been asked; `part` follows."""
        self._retentions.withdraw(request.id)

    def part(self, request: Request) -> None:
        """All sequences of a request have ended."""
        self._retentions.part(request.id)

    def pass_time(self, now_s: float) -> bool:
        """A step is about to be planned; True if blocks have come back by that alone.

        now_s: seconds on the engine's clock.
        """
        self._pool.pass_time(now_s)
        if self._device.departures is not None:
            self._device.departures.advance(now_s, self._pool.evictions)
        return self._retentions.pass_time(now_s)

    def unpin(self, tenant: str | None, name: str | None) -> int:
        """Let go of pins, None: of any tenant or name; returns the blocks they held.

        Raises RequestError for a tenant that there is not.
        """
        return self._retentions.let_go(tenant, name)

    def pins(self, tenant: str | None) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all. Raises RequestError for one that there is not."""
        return self._retentions.facts(tenant)

    # ── a sequence's blocks ───────────────────────────────────────────────────────────────

    def admit(self, seq: Sequence, hit: Hit, upto: int, step: StepId) -> bool:
        """Give a sequence its known prefix and blocks for its text up to `upto`.

        Only if its whole known text and one more token, or what it is spared for, fit beside
        what is promised to others; False: nothing changed. If part of the prefix has to come
        from a slower tier (`loading`), `upto` must be the end of the prefix.
        """
        if self.shortage(seq, hit):
            return False
        table = Table(len(self._sizes), self._shares.account(seq.request.tenant))
        self._retentions.apply_to(table, seq.request)
        self._retentions.reuse(table, hit)
        known = [block.id for run in hit.runs for tier, block in run if tier == 0]
        self._pool.reuse(known, table.account)
        self._tables[seq.id] = table
        self._adopt_runs(seq, table, hit)
        self._misses.remember(seq, hit)
        if hit.tails:
            self._tails.begin(table, hit.tails, hit.tokens, step)
        table.measure(self._groups)
        table.sealed = hit.tokens // self._groups.align * self._groups.align
        self._promises.make(table, seq)
        done = self._allocator.grow((table, hit.tokens, upto))
        assert done, f"sequence {seq.id} was admitted without room for {upto} tokens"
        self._writer.write(seq, table, hit.tokens, upto, step)
        self._pool.trim(table.account)
        return True

    def loading(self, seq: Sequence) -> bool:
        """True if part of the sequence's prefix is still on its way to the device."""
        return self._transfers.loading(seq.id)

    def extend(self, seq: Sequence, upto: int, step: StepId) -> bool:
        """Make room to write the sequence's tokens from `scheduled` up to `upto` in `step`.

        False: no room, nothing changed. Full blocks with known text can be found from now on.
        """
        table = self._tables[seq.id]
        start = seq.scheduled
        forked = table.forked
        changes = upto > table.room or forked or start >= table.frees_at
        if changes and not self._allocator.grow((table, start, upto)):
            return False
        if forked:
            self._writer.note_copies(table, start, step)
        self._writer.write(seq, table, start, upto, step)
        return True

    def extend_all(self, seqs: Iterable[Sequence], step: StepId) -> bool:
        """Make room for the last token of several sequences, to be written in `step`.

        False: no room for all of them, nothing changed.
        """
        parts = [(seq, self._tables[seq.id]) for seq in seqs]
        if not self._allocator.grow(*((table, seq.scheduled, seq.length) for seq, table in parts)):
            return False
        for seq, table in parts:
            self._writer.note_copies(table, seq.scheduled, step)
            self._writer.write(seq, table, seq.scheduled, seq.length, step)
        return True

    def open(self, seq: Sequence) -> None:
        """Give a sequence an empty table; it is promised nothing."""
        table = self._tables[seq.id] = Table(
            len(self._sizes), self._shares.account(seq.request.tenant)
        )
        self._retentions.apply_to(table, seq.request)

    def adopt(self, seq: Sequence) -> int:
        """Take over blocks, written since admission, that continue the sequence's text.

        Returns the tokens gained; 0 as a rule. What is not reusable is left to compute. A block
        that the sequence has begun to write is given up for one that is full.
        """
        start, table = seq.scheduled, self._tables[seq.id]
        if not table.ends_at(start, self._sizes) or table.forked:
            return 0
        whole = start // self._groups.align * self._groups.align
        hit = self._prefixes.find(seq, seq.reusable, whole, tiers=1)
        if hit.tokens <= start or not self._admission.may_adopt(table, hit):
            return 0
        self._retentions.reuse(table, hit)
        self._pool.reuse([block.id for run in hit.runs for _, block in run], table.account)
        for group, (run, first) in enumerate(zip(hit.runs, hit.firsts, strict=True)):
            gone = table.cut_end(group, whole // self._sizes[group])
            if first > len(table.ids[group]):
                gone += table.cut_front(group, first)
                table.skip(group, first)
            self._allocator.drop(gone, table)
            table.append(group, (block.id for _, block in run))
        table.measure(self._groups)
        self._promises.update(table)
        table.sealed = hit.tokens
        self._pool.trim(table.account)
        return hit.tokens - start

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give `child` all blocks of `parent`; who first writes into the partial one copies it."""
        table = self._tables[parent.id].fork()
        self._pool.share(table.blocks(), table.account)
        child.keys = parent.keys.copy()
        child.units = parent.units.copy()
        self._tables[child.id] = table

    def growth(self, seq: Sequence) -> tuple[tuple[int, ...], tuple[tuple[BlockId, ...], ...]]:
        """Return (kept, blocks) for the sequence's next slice."""
        return self._tables[seq.id].growth()

    def seal(self, seq: Sequence) -> None:
        """Publish blocks whose last token has become known after they were planned."""
        self._writer.seal(seq, self._tables[seq.id])

    def release(self, seq: Sequence, last_step: StepId, *, returns: bool = False) -> None:
        """Let go of all blocks, tail first. Without a table: no effect.

        last_step: the last step in flight that touches them, 0 if none does. returns: the sequence
        will ask for them again, so that what its request says of later ones does not count yet.
        """
        table = self._tables.pop(seq.id, None)
        if table is None:
            return
        self._transfers.forget(seq.id)
        self._promises.close(table)
        if seq.request.cache_hints and not returns:
            note_hints(self._pool, table, self._sizes, seq.request.cache_hints)
        self._tails.keep(seq, table)
        self._allocator.drop(table.tail_first(self._sizes), table, last_step)

    def relief(self, seq: Sequence, hit: Hit, victims: Iterable[Sequence]) -> Iterator[int]:
        """For each victim, by how much its release lessens the shortage of `seq`.

        Exact if those before it are released too: a shared block comes back with its last
        holder, and one that the hit counts on is not free for anything else.
        """
        pairs = ((victim, self._tables[victim.id]) for victim in victims)
        return self._admission.relief(seq, hit, pairs, alone=not self._tables)

    # ── outcomes ──────────────────────────────────────────────────────────────────────────

    def commit(self, step: StepId) -> None:
        """A step went well: its blocks are safe to copy, to keep and to tell others about."""
        self._allocator.collected = step
        blocks = self._ledger.close(step)
        self._device.commit(blocks)
        for block in blocks if len(self._tiers) > 1 else ():
            for tier in self._placement.copies(block):
                self._transfers.store(block, tier)

    def revoke(self, step: StepId, doomed: set[SeqId]) -> set[SeqId]:
        """A step failed: forget what it and its readers wrote.

        doomed: sequences with a slice in it, or sampled by it. Returns these and every other
        sequence that holds a block which is not right now; all of them must be released.
        """
        self._allocator.collected = step
        doomed = self._ledger.spread(step, doomed, self._tables, self._pool.blocks)
        for block in self._ledger.tainted(step, doomed, self._tables):
            if block.key is not None:
                self._device.withdraw(block)
        self._ledger.close(step)
        for seq in doomed & self._tables.keys():
            self._tables[seq].tainted = True
        return doomed

    def settle(self, moved: Iterable[MoveId], failed: Iterable[MoveId]) -> dict[SeqId, int]:
        """Close moves. Returns sequences that wait no longer, with their tokens in memory."""
        ready = self._transfers.settle(moved, failed)
        return {seq: self._truncate(seq, tokens) for seq, tokens in ready.items()}

    def give_up(self, seq: Sequence) -> int:
        """Wait no longer for a sequence's loads; returns its tokens in memory."""
        return self._truncate(seq.id, self._transfers.give_up(seq.id))

    # ── for the batch and for reports ─────────────────────────────────────────────────────

    def take_copies(self) -> tuple[Copy, ...]:
        """Return the copies that must run before the next step's first write."""
        return self._allocator.take_copies()

    def take_moves(self) -> tuple[Move, ...]:
        """Return the moves to start with the next batch."""
        return self._transfers.take()

    @property
    def open_moves(self) -> int:
        """Moves whose outcome is not known."""
        return self._transfers.open

    def usage(self) -> Usage:
        """How full the device is. O(tenants)."""
        return self._pool.usage(self._groups.align)

    def clear(self) -> int:
        """Forget all cached texts that nobody uses; returns the number of blocks."""
        return sum(tier.clear() for tier in self._tiers)

    def quarantine(self) -> int:
        """Begin again without the blocks about which something is wrong; returns how many are out.

        No step may be in flight, and no move open. No sequence has blocks after it, and no text is
        known: of what was written beside a wrong count nothing can be trusted. Raises Corrupted if
        that would leave less than half of a tier.
        """
        assert not self._transfers.open, f"{self._transfers.open} moves are open"
        holders = self._holders()
        found = [tier.suspects(held) for tier, held in zip(self._tiers, holders, strict=True)]
        for tier, suspects in zip(self._tiers, found, strict=True):
            out = tier.pool.quarantined | suspects
            if 2 * len(out) > tier.pool.size:
                raise Corrupted(
                    f"{tier.name}: something is wrong with {len(out)} of {tier.pool.size} blocks"
                )
        self._tables.clear()
        self._ledger.reset()
        self._allocator.reset()
        for tier, suspects in zip(self._tiers, found, strict=True):
            tier.reset(suspects)
        self.check()
        return sum(len(tier.pool.quarantined) for tier in self._tiers)

    def check(self) -> None:
        """Recompute every count from the tables and open moves. Raises Corrupted."""
        for tier, held in zip(self._tiers, self._holders(), strict=True):
            tier.check(held)
        self._pool.holders.check(self._pool.blocks, self._tables.values())
        # A pin of a cached text takes what may have been promised.
        most = self._pool.available + self._pool.shelves.pinned
        self._promises.check(self._tables.values(), most, moving=self.open_moves > 0)
        tentative = {b.written_step for b in self._device.keyed()} - {0}
        lost = tentative - set(self._ledger.steps())
        if lost:
            raise Corrupted(f"tentative blocks of steps {sorted(lost)} are in no step's account")

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _holders(self) -> list[Counter[BlockId]]:
        tables = (table.blocks() for table in self._tables.values())
        return self._transfers.holders(chain.from_iterable(tables))

    def _adopt_runs(self, seq: Sequence, table: Table, hit: Hit) -> None:
        """Fill a new table with the known prefix; blocks of slower tiers get loads."""
        loads = hit.loads
        if loads:
            self._transfers.expect(seq.id, hit.tokens)
        for group, (run, size) in enumerate(zip(hit.runs, self._sizes, strict=True)):
            table.skip(group, hit.firsts[group])
            if not loads:
                table.append(group, [block.id for _, block in run])
                continue
            for index, (tier, source) in enumerate(run, start=hit.firsts[group]):
                if tier == 0:
                    table.append(group, [source.id])
                    continue
                (target,) = self._pool.take(1, group, table.account)
                self._pool.blocks[target].kept = kept_at(table.keeps, (index + 1) * size)
                self._pool.fill(target, size)
                table.append(group, [target])
                self._transfers.load(seq.id, source, tier, target, index * size)

    def _truncate(self, seq: SeqId, tokens: int) -> int:
        """Shorten a loading sequence's table to whole blocks within its first `tokens` tokens.

        To none at all if what remains lacks what a window sees from there.
        """
        table, groups = self._tables[seq], self._groups
        tokens = tokens // groups.align * groups.align
        if any(
            table.first[group] > groups.first_seen(group, tokens) for group in range(len(groups))
        ):
            tokens = 0
        for group, size in enumerate(self._sizes):
            self._pool.drop(table.cut_end(group, tokens // size), table.account)
        table.measure(self._groups)
        self._promises.update(table)
        table.sealed = min(table.sealed, tokens)
        return tokens
