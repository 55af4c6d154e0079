"""Which blocks a sequence has: paged, on demand, shared whenever a text is known already."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from octavo.contract.batch import Copy, Move
from octavo.contract.ids import BlockId, MoveId, SeqId, StepId
from octavo.contract.misses import Miss
from octavo.contract.request import Sequence
from octavo.contract.usage import Usage
from octavo.errors import Corrupted, RequestError
from octavo.memory.allocator import Allocator
from octavo.memory.groups import Groups
from octavo.memory.hints import note_hints
from octavo.memory.keys import extend_keys
from octavo.memory.ledger import Ledger
from octavo.memory.misses import MissFinder
from octavo.memory.placement import DeviceOnly, PlacementPolicy
from octavo.memory.prefix import Hit, PrefixFinder, run_texts
from octavo.memory.table import Table
from octavo.memory.tier import Tier
from octavo.memory.transfers import Transfers

_RESERVE = 100
"""One block in so many stays free at admission while somebody runs: texts that grow into it need
not displace one that has just come."""


_UNSHARED = " (counted without what they share, since the model has windows)"


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
        self._device = tiers[0]
        self._pool = tiers[0].pool
        self._placement = placement or DeviceOnly()
        self._tables: dict[SeqId, Table] = {}
        self._ledger = Ledger()
        self._transfers = Transfers(tiers)
        self._allocator = Allocator(groups, tiers[0].pool)
        self._promises = self._allocator.promises
        self._reserve = tiers[0].pool.size // _RESERVE

    def begin_step(self, now_s: float) -> None:
        """A step is about to be planned. now_s: seconds on the engine's clock."""
        if self._device.departures is not None:
            self._device.departures.advance(now_s, self._pool.evictions)

    # ── before admission ──────────────────────────────────────────────────────────────────

    def limit(self, prompt: int, expected_output: int, limit: int, width: int = 1) -> int:
        """Longest text a request may grow to: nothing is reserved, so `limit` stands.

        Of several beams each must find room for an output of its own. Raises RequestError.
        """
        if width == 1:
            return limit
        longest = self._promises.longest_beams(prompt, limit, width, self._pool.size)
        if longest <= prompt:
            raise RequestError(
                f"{width} beams after a prompt of {prompt} tokens may need more than the KV "
                f"memory's {self._pool.size} blocks{_UNSHARED * self._groups.windowed}: lower "
                "beam_width, shorten the prompt, or raise kv_cache_memory_bytes"
            )
        return longest

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

    def shortage(self, seq: Sequence, hit: Hit) -> int:
        """Blocks that must come back before what is promised at admission fits; 0: it fits."""
        need = self._promises.blocks_of(seq) + self._promises.owed
        for run in hit.runs:
            for tier, block in run:
                if tier == 0 and block.refs:
                    need -= 1
        if self._tables:
            need += self._reserve
        return max(0, need - self._pool.available)

    # ── a sequence's blocks ───────────────────────────────────────────────────────────────

    def admit(self, seq: Sequence, hit: Hit, upto: int, step: StepId) -> bool:
        """Give a sequence its known prefix and blocks for its text up to `upto`.

        Only if its whole known text and one more token, or what it is spared for, fit beside
        what is promised to others; False: nothing changed. If part of the prefix has to come
        from a slower tier (`loading`), `upto` must be the end of the prefix.
        """
        if self.shortage(seq, hit):
            return False
        table = Table(len(self._sizes))
        for run in hit.runs:
            self._pool.reuse(block.id for tier, block in run if tier == 0)
        self._tables[seq.id] = table
        self._adopt_runs(seq, table, hit)
        self._misses.remember(seq, hit)
        if hit.tails:
            self._allocator.copy_tails(table, hit.tails, hit.tokens, step)
        table.measure(self._groups)
        table.sealed = hit.tokens // self._groups.align * self._groups.align
        self._promises.make(table, seq)
        done = self._allocator.grow((table, hit.tokens, upto))
        assert done, f"sequence {seq.id} was admitted without room for {upto} tokens"
        self._write(seq, table, hit.tokens, upto, step)
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
        changes = upto > table.room or table.forked or start >= table.frees_at
        if changes and not self._allocator.grow((table, start, upto)):
            return False
        self._write(seq, table, start, upto, step)
        return True

    def extend_all(self, seqs: Iterable[Sequence], step: StepId) -> bool:
        """Make room for the last token of several sequences, to be written in `step`.

        False: no room for all of them, nothing changed.
        """
        parts = [(seq, self._tables[seq.id]) for seq in seqs]
        if not self._allocator.grow(*((table, seq.scheduled, seq.length) for seq, table in parts)):
            return False
        for seq, table in parts:
            self._write(seq, table, seq.scheduled, seq.length, step)
        return True

    def open(self, seq: Sequence) -> None:
        """Give a sequence an empty table; it is promised nothing."""
        self._tables[seq.id] = Table(len(self._sizes))

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
        if hit.tokens <= start:
            return 0
        for run in hit.runs:
            self._pool.reuse(block.id for _, block in run)
        for group, (run, first) in enumerate(zip(hit.runs, hit.firsts, strict=True)):
            gone = table.cut_end(group, whole // self._sizes[group])
            if first > len(table.ids[group]):
                gone += table.cut_front(group, first)
                table.skip(group, first)
            self._allocator.drop(gone, table.last_step)
            table.append(group, (block.id for _, block in run))
        table.measure(self._groups)
        self._promises.update(table)
        table.sealed = hit.tokens
        return hit.tokens - start

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Give `child` all blocks of `parent`; who first writes into the partial one copies it."""
        table = self._tables[parent.id].fork()
        self._pool.share(table.blocks())
        child.keys = parent.keys.copy()
        child.units = parent.units.copy()
        self._tables[child.id] = table

    def growth(self, seq: Sequence) -> tuple[tuple[int, ...], tuple[tuple[BlockId, ...], ...]]:
        """Return (kept, blocks) for the sequence's next slice."""
        return self._tables[seq.id].growth()

    def seal(self, seq: Sequence) -> None:
        """Publish blocks whose last token has become known after they were planned."""
        table = self._tables[seq.id]
        known = min(seq.scheduled, seq.length)
        if known - table.sealed >= self._groups.unit:
            self._seal(seq, table, known, table.last_step)

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
        self._allocator.drop(table.tail_first(self._sizes), last_step)

    def relief(self, seq: Sequence, hit: Hit, victims: Iterable[Sequence]) -> Iterator[int]:
        """For each victim, by how much its release lessens the shortage of `seq`.

        Exact if those before it are released too: a shared block comes back with its last
        holder, and one that the hit counts on is not free for anything else.
        """
        counted_on = {block.id for run in hit.runs for tier, block in run if tier == 0}
        blocks = self._pool.blocks
        gone: Counter[BlockId] = Counter()
        for victim in victims:
            table = self._tables[victim.id]
            ids = list(table.blocks())
            gone.update(ids)
            back = sum(gone[i] == blocks[i].refs and i not in counted_on for i in ids)
            yield back + table.owed

    # ── outcomes ──────────────────────────────────────────────────────────────────────────

    def commit(self, step: StepId) -> None:
        """A step went well: its blocks are safe to copy, to keep and to tell others about."""
        self._allocator.collected = step
        blocks = self._ledger.close(step)
        self._device.commit(blocks)
        for block in blocks:
            for tier in self._placement.copies(block):
                self._transfers.store(block, tier)

    def revoke(self, step: StepId, doomed: set[SeqId]) -> set[SeqId]:
        """A step failed: forget what it and its readers wrote.

        doomed: sequences with a slice in it, or sampled by it. Returns these and every other
        sequence that holds a block which is not right now; all of them must be released.
        """
        self._allocator.collected = step
        # A fork may hold what a sequence that has left meanwhile was to write.
        forks = {seq for seq, table in self._tables.items() if table.inherited_step >= step}
        doomed = doomed | forks
        while True:
            bad = {block.id for block in self._ledger.tainted(step, doomed, self._tables)}
            # Forks also share what nobody can find by its text.
            bad |= {i for seq in doomed if seq in self._tables for i in self._unsafe(seq)}
            readers = {
                seq
                for seq, table in self._tables.items()
                if seq not in doomed and not bad.isdisjoint(table.blocks())
            }
            if not readers:
                break
            doomed |= readers
        for block in self._ledger.tainted(step, doomed, self._tables):
            if block.key is not None:
                self._device.withdraw(block)
        self._ledger.close(step)
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
        """How full the device is. O(1)."""
        pool, align = self._pool, self._groups.align
        return Usage(
            slots=pool.size * align,
            allocated=pool.held * align,
            tokens=pool.filled,
            blocks_used=pool.held,
            blocks_logical=pool.logical,
            blocks_shared=pool.shared,
            group_blocks=tuple(pool.held_by_group),
        )

    def clear(self) -> int:
        """Forget all cached texts that nobody uses; returns the number of blocks."""
        return sum(tier.clear() for tier in self._tiers)

    def check(self) -> None:
        """Recompute every count from the tables and open moves. Raises Corrupted."""
        tables: Counter[BlockId] = Counter()
        for table in self._tables.values():
            tables.update(table.blocks())
        for number, tier in enumerate(self._tiers):
            held = self._transfers.holders(number)
            tier.check(tables + held if number == 0 else held)
        available = self._pool.available
        self._promises.check(self._tables.values(), available, moving=self.open_moves > 0)
        tentative = {b.written_step for b in self._device.keyed()} - {0}
        lost = tentative - set(self._ledger.steps())
        if lost:
            raise Corrupted(f"tentative blocks of steps {sorted(lost)} are in no step's account")

    # ── inside ────────────────────────────────────────────────────────────────────────────

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
                (target,) = self._pool.take(1, group)
                self._pool.fill(target, size)
                table.append(group, [target])
                self._transfers.load(seq.id, source, tier, target, index * size)

    def _write(self, seq: Sequence, table: Table, start: int, upto: int, step: StepId) -> None:
        """Note that `step` writes positions start … upto - 1, and publish what becomes full."""
        if upto == start:
            return
        for group, size in enumerate(self._sizes):
            ids, end = table.ids[group], upto // size
            if start // size < end:
                self._pool.fill_whole(ids[start // size : end], size)
            if upto % size:
                self._pool.fill(ids[end], upto % size)
        table.last_step = step
        known = min(upto, len(seq.tokens))
        if known - table.sealed >= self._groups.unit:
            self._seal(seq, table, known, step)

    def _seal(self, seq: Sequence, table: Table, known: int, step: StepId) -> None:
        assert step > self._allocator.collected, f"step {step} has ended: it publishes nothing"
        groups = self._groups
        extend_keys(seq, groups.unit, known)
        for group, size in enumerate(self._sizes):
            first, end = max(table.sealed // size, table.first[group]), known // size
            if first < end:
                blocks = [self._pool.blocks[i] for i in table.ids[group][first:end]]
                texts = run_texts(groups, seq, group, first, end)
                published = self._device.publish_run(group, blocks, texts, step)
                if published:
                    self._ledger.note(step, published, seq.id)
        table.sealed = known // groups.align * groups.align

    def _unsafe(self, seq: SeqId) -> list[BlockId]:
        """Blocks of a sequence that may have been written by a step in flight.

        Private ones among them may be older; then their readers compute once more than needed.
        """
        blocks = self._pool.blocks
        return [
            i for i in self._tables[seq].blocks() if blocks[i].key is None or blocks[i].written_step
        ]

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
            self._pool.drop(table.cut_end(group, tokens // size))
        table.measure(self._groups)
        self._promises.update(table)
        table.sealed = min(table.sealed, tokens)
        return tokens
