"""Block ids and reference counts of one tier: the only owner of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping

from octavo.contract.hint import CacheHint
from octavo.contract.ids import BlockId
from octavo.contract.usage import Usage
from octavo.errors import Corrupted, OutOfBlocks
from octavo.memory.block import Block
from octavo.memory.eviction import EvictionPolicy
from octavo.memory.holders import Holders
from octavo.memory.residency import Residency
from octavo.memory.shares import Account
from octavo.memory.shelves import Shelves


class BlockPool:
    """All blocks of a tier: held, cached (keyed, nobody holds them) or free.

    `take`, `share` and `drop` are O(1) per block, policy apart. Free blocks are handed out before
    cached ones are evicted, at first in ascending order. policy: `Shelves` if tenants and
    retention matter; any other knows one tenant.
    """

    def __init__(
        self,
        num_blocks: int,
        policy: EvictionPolicy,
        on_evict: Callable[[list[Block]], None],
        slot_weights: tuple[int, ...] = (1,),
    ) -> None:
        self.blocks = [Block(i) for i in range(num_blocks)]
        self.held = 0
        """Blocks that at least one table or move holds."""
        self.logical = 0
        """Sum of all reference counts."""
        self.shared = 0
        """Blocks with two holders or more."""
        self.filled = 0
        """Filled slots of held blocks, each counted once, times the weight of its group."""
        self.held_by_group = [0] * len(slot_weights)
        self.evictions = 0
        self.quarantined: set[BlockId] = set()
        """Blocks about which something was wrong: nobody is given them any more."""
        self.shelves = Shelves.of(policy, num_blocks)
        """The cached blocks."""
        self.shelves.overfull = self.trim
        self.shares = self.shelves.shares
        assert self.shares.size == num_blocks, f"shares of {self.shares.size} blocks"
        self._several = self.shares.several
        self.holders = Holders(self.shelves)
        """On whose account blocks are that several tenants hold."""
        self.residency: Residency | None = None
        """Follows some of the blocks, if somebody wants to know."""
        self.now_s = 0.0
        """Seconds on the engine's clock; to be read only."""
        self.touched: set[BlockId] | None = None
        """Blocks that have changed since somebody looked; None: nobody looks."""
        self._on_evict = on_evict
        self._weights = slot_weights
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def size(self) -> int:
        """Number of blocks."""
        return len(self.blocks)

    @property
    def available(self) -> int:
        """Blocks that `take` can give, shares apart: free, or cached and not pinned."""
        return len(self._free) + len(self.shelves)

    @property
    def cached(self) -> int:
        """Blocks that hold a known text and that nobody holds, pinned ones included."""
        return len(self.shelves) + self.shelves.pinned

    def pass_time(self, now_s: float) -> None:
        """It is so late now. now_s: seconds on the engine's clock."""
        self.now_s = now_s
        if self.residency is not None:
            self.residency.now_s = now_s

    def follow(self, touched: set[BlockId] | None) -> None:
        """Add to a set, from now on, the blocks that change; None: to none."""
        self.touched = self.shelves.touched = touched

    def usage(self, slots: int) -> Usage:
        """Return how full the pool is. slots: of one block, in units of which groups have some."""
        return Usage(
            slots=self.size * slots,
            allocated=self.held * slots,
            tokens=self.filled,
            blocks_used=self.held,
            blocks_logical=self.logical,
            blocks_shared=self.shared,
            group_blocks=tuple(self.held_by_group),
            blocks_cached=self.cached,
            blocks_pinned=self.shelves.pinned,
            blocks_free=len(self._free),
            evictions=self.evictions,
            tenant_blocks=tuple((one.name, one.live) for one in self.shares.accounts),
        )

    def take(self, count: int, group: int = 0, account: Account | None = None) -> list[BlockId]:
        """Give out `count` empty blocks, one reference each, as a tenant's.

        Raises OutOfBlocks if it can be given fewer; then nothing changed.
        """
        account = account or self.shares.default
        if count > self.shares.takeable(account):
            raise OutOfBlocks(
                f"{count} blocks asked of a pool with {self.shares.takeable(account)} available to "
                f"{account}"
            )
        taken = list[Block]()
        while len(taken) < count:
            taken += self._give(count - len(taken), account)
        for block in taken:
            block.refs = 1
            block.group = group
            block.filled = 0
            block.kept = None
            block.hint = None
            block.used_s = self.now_s
        if self.touched is not None:
            self.touched.update([block.id for block in taken])
        self.held += count
        self.held_by_group[group] += count
        self.logical += count
        if self.residency is not None:
            self.residency.begin(taken)
        return [block.id for block in taken]

    def share(self, ids: Iterable[BlockId], account: Account | None = None) -> None:
        """Add one holder to each block; a cached one is no longer evictable.

        account: of the sequence that holds them from now on; None: whoever's they are. Cached
        blocks of others may bring it above its maximum: `trim` is to follow.
        """
        blocks, idle = self.blocks, list[Block]()
        if self.touched is not None:
            ids = list(ids)
            self.touched.update(ids)
        tells = self._several and account is not None
        for block_id in ids:
            block = blocks[block_id]
            refs = block.refs
            if tells and block.account is not account and account is not None:
                self.holders.join(block, account)
            if refs == 0:
                idle.append(block)
            elif refs == 1:
                self.shared += 1
            block.refs = refs + 1
            self.logical += 1
        if idle:
            self.shelves.remove_all(idle)
            self._hold(idle, 1)
            if tells and account is not None:
                self.shares.grown(account)
            if self.residency is not None:
                self.residency.use(idle)

    def reuse(self, ids: Iterable[BlockId], account: Account | None = None) -> None:
        """Add one holder to each block, as `share`, since its text is used once more.

        Forks and moves only share: for the policy they are no uses.
        """
        ids = list(ids)
        blocks = self.blocks
        if self.shelves.hears_hits:
            for block_id in ids:
                if blocks[block_id].refs:
                    self.shelves.hit(blocks[block_id])
        self.share(ids, account)
        for block_id in ids:
            block = blocks[block_id]
            block.hint = None  # what was said has come to pass
            block.hits += 1
            block.used_s = self.now_s

    def drop(self, ids: Iterable[BlockId], account: Account | None = None) -> None:
        """Remove one holder from each block, in the order given.

        A block without holders becomes cached if it has a key, else free. account: of the sequence
        that held them; None: whoever's they are.
        """
        blocks, idle, wrong = self.blocks, list[Block](), None
        if self.touched is not None:
            ids = list(ids)
            self.touched.update(ids)
        for block_id in ids:
            block = blocks[block_id]
            refs = block.refs - 1
            if refs < 0:
                wrong = block
                break
            block.refs = refs
            self.logical -= 1
            if block.others is not None:
                self.holders.leave(block, account)
            if refs == 0:
                idle.append(block)
            elif refs == 1:
                self.shared -= 1
        if idle:
            self._hold(idle, -1)
            if self.residency is not None:
                self.residency.rest(idle)
            self._lay_down(idle)
        if wrong is not None:
            raise Corrupted(f"block {wrong.id} was dropped more often than held")

    def assign(self, block_id: BlockId, group: int) -> None:
        """Let a held block, still empty, hold layers of another KV group."""
        block = self.blocks[block_id]
        assert not block.filled, f"{block} holds tokens of group {block.group}"
        self.held_by_group[block.group] -= 1
        self.held_by_group[group] += 1
        block.group = group
        if self.touched is not None:
            self.touched.add(block_id)

    def hint(self, ids: Iterable[BlockId], hint: CacheHint | None) -> None:
        """Note what one who holds these blocks, and is about to drop them, says of their use."""
        for block_id in ids:
            self.blocks[block_id].hint = hint

    def fill(self, block_id: BlockId, upto: int) -> None:
        """Note that the first `upto` slots of a held block hold tokens; never fewer than before."""
        block = self.blocks[block_id]
        if upto > block.filled:
            self.filled += (upto - block.filled) * self._weights[block.group]
            block.filled = upto
            if self.touched is not None:
                self.touched.add(block_id)

    def fill_whole(self, ids: list[BlockId], size: int) -> None:
        """Note that all `size` slots of held blocks of one group hold tokens."""
        if self.touched is not None:
            self.touched.update(ids)
        blocks, added, block = self.blocks, 0, None
        for block_id in ids:
            block = blocks[block_id]
            added += size - block.filled
            block.filled = size
        if block is not None:
            self.filled += added * self._weights[block.group]

    def discard(self, block: Block) -> None:
        """Move a cached block whose key has been withdrawn to the free ones."""
        self.shelves.remove(block)
        block.account = None
        self._free.append(block.id)
        if self.touched is not None:
            self.touched.add(block.id)

    def trim(self, account: Account) -> None:
        """Evict what a tenant has above its maximum, as far as it is cached."""
        while account.live > account.maximum and account.cached:
            block = self.shelves.pop(account)
            self._evict([block])
            block.account = None
            self._free.append(block.id)
            if self.touched is not None:
                self.touched.add(block.id)

    def suspects(self, holders: Mapping[BlockId, int]) -> set[BlockId]:
        """Return the blocks whose counts or places contradict the true number of holders."""
        free = Counter(self._free)
        found: set[BlockId] = set()
        for block in self.blocks:
            idle = block.refs == 0 and block.id not in self.quarantined
            cached = block.shelf is not None or self.shelves.is_pinned(block)
            if (
                block.refs != holders.get(block.id, 0)
                or free[block.id] != (idle and block.key is None)
                or cached != (idle and block.key is not None)
            ):
                found.add(block.id)
        return found

    def reset(self, withheld: Collection[BlockId]) -> None:
        """Begin again with every block free, but those that are never given out any more."""
        fresh = set(withheld) - self.quarantined
        self.quarantined |= fresh
        self.blocks[:] = [Block(i) for i in range(self.size)]
        if self.touched is not None:
            self.touched.update(range(self.size))
        self.held = self.logical = self.shared = self.filled = 0
        self.held_by_group[:] = [0] * len(self.held_by_group)
        if self.residency is not None:
            self.residency.reset()
        self.shares.reset(len(fresh))
        self.shelves.reset()
        self._free[:] = [i for i in range(self.size - 1, -1, -1) if i not in self.quarantined]

    def check(self, holders: Mapping[BlockId, int]) -> None:
        """Compare every count with the true number of holders of each block.

        Raises Corrupted with what differs.
        """
        free = set(self._free)
        wrong = [
            f"block {b.id}: refs {b.refs}, holders {holders.get(b.id, 0)}"
            for b in self.blocks
            if b.refs != holders.get(b.id, 0)
        ]
        if len(free) != len(self._free):
            wrong.append("a block is in the free list twice")
        idle = [b for b in self.blocks if b.refs == 0]
        wrong += [f"{b} is keyed but free" for b in idle if b.key is not None and b.id in free]
        out = free | self.quarantined
        wrong += [f"{b} is lost" for b in idle if b.key is None and b.id not in out]
        wrong += [
            f"{b} is quarantined, but in use"
            for b in self.blocks
            if b.id in self.quarantined and (b.refs or b.key is not None or b.id in free)
        ]
        wrong += [f"{b} is held but free" for b in self.blocks if b.refs and b.id in free]
        counts = {
            "held": (self.held, sum(b.refs > 0 for b in self.blocks)),
            "logical": (self.logical, sum(b.refs for b in self.blocks)),
            "shared": (self.shared, sum(b.refs > 1 for b in self.blocks)),
            "cached": (self.cached, sum(b.refs == 0 and b.key is not None for b in self.blocks)),
            "filled": (
                self.filled,
                sum(b.filled * self._weights[b.group] for b in self.blocks if b.refs),
            ),
        }
        for group, has in enumerate(self.held_by_group):
            true = sum(b.refs > 0 and b.group == group for b in self.blocks)
            counts[f"held by group {group}"] = (has, true)
        wrong += [
            f"{name} is {has}, not {true}" for name, (has, true) in counts.items() if has != true
        ]
        if wrong:
            raise Corrupted("; ".join(wrong))
        cached = [b for b in idle if b.key is not None]
        self.shelves.check(cached)
        pinned = [b for b in cached if self.shelves.is_pinned(b)]
        self.shares.check([b for b in self.blocks if b.refs] + cached, pinned)

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _evict(self, blocks: list[Block]) -> None:
        self.evictions += len(blocks)
        if self.residency is not None:
            self.residency.end(blocks)
        self._on_evict(blocks)

    def _give(self, count: int, account: Account) -> list[Block]:
        """Give a tenant from one to so many blocks: free ones, or else cached ones."""
        free, spare = self._free, self.shares.spare(account)
        if free and spare:
            given = [self.blocks[free.pop()] for _ in range(min(count, spare, len(free)))]
        else:
            given = self.shelves.pop_some(count, account)
            self._evict(given)
        for block in given:
            block.account = block.home = account
        account.held += len(given)
        if self._several:
            self.shares.grown(account)
        return given

    def _hold(self, blocks: list[Block], sign: int) -> None:
        """Count blocks that have got their first holder, 1, or have lost their last one, -1."""
        by_group, weights, filled = self.held_by_group, self._weights, 0
        for block in blocks:
            group = block.group
            by_group[group] += sign
            filled += block.filled * weights[group]
        self.filled += sign * filled
        self.held += sign * len(blocks)
        if not self._several:
            self.shares.default.held += sign * len(blocks)
            return
        for block in blocks:
            self.shares.hold(block, sign)

    def _lay_down(self, blocks: list[Block]) -> None:
        """Let blocks that nobody holds be cached, or free."""
        cached = list[Block]()
        for block in blocks:
            block.used_s = self.now_s
            if block.key is not None:
                cached.append(block)
            else:
                block.account = None
                self._free.append(block.id)
        if cached:
            if self._several:
                self.holders.send_home(cached)
            self.shelves.add_all(cached)
