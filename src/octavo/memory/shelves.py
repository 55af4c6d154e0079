"""The cached blocks of a pool: one bag of the eviction policy per tenant and class."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from octavo.contract.ids import BlockId
from octavo.contract.retention import NORMAL_PRIORITY
from octavo.errors import Corrupted
from octavo.memory.block import Block
from octavo.memory.eviction import EvictionPolicy, in_bulk
from octavo.memory.kept import EXPIRED, Kept
from octavo.memory.pins import Label, Pins
from octavo.memory.shares import Account, Shares
from octavo.memory.timers import Timers


class Shelf:
    """The evictable blocks of one tenant and class."""

    __slots__ = ("account", "add_all", "bag", "bit", "count", "pop_all", "remove_all")

    def __init__(self, account: Account, bit: int, bag: EvictionPolicy) -> None:
        self.account = account
        self.bit = bit
        """Of its class: that of the lowest is 1."""
        self.bag = bag
        self.add_all, self.remove_all, self.pop_all = in_bulk(bag)
        self.count = 0


class Shelves:
    """An `EvictionPolicy` made of others: `Shares` choose the tenant, retention the class.

    Inside a class the policy that `make` makes decides, unchanged. Each call costs what the
    policy takes, and O(log tenants). Blocks that a pin holds lie here too, and are not counted.
    """

    def __init__(self, make: Callable[[], EvictionPolicy], shares: Shares) -> None:
        self.shares = shares
        self.pins = Pins(shares.most_pinned)
        self._pinned: dict[Label, Block] = {}
        """Nobody holds them but a pin."""
        self._labels: dict[BlockId, Label] = {}
        """Of those blocks."""
        self._make = make
        self._now_s = 0.0
        self._size = 0
        self._timers: Timers[BlockId] = Timers()
        self._timed: dict[BlockId, Block] = {}
        """Evictable blocks that have a deadline."""
        self._several = len(shares.accounts) > 1
        self._build()
        self.policy_name = type(self._normal[0].bag).__name__.lower()
        """Of the policy that decides inside a class."""
        self.hears_hits = hasattr(self._normal[0].bag, "hit")
        """The policy wants to hear of uses that overlap."""
        self.pins.lets_go = self._let_go
        self.overfull: Callable[[Account], None] = _nobody
        """Told of a tenant that has come above its maximum, and has cached blocks to give up."""
        self.unpinned: Callable[[Label], None] = _nobody
        """Told of a text that a pin holds no more, and that lay in no block held by pins alone."""
        self.touched: set[BlockId] | None = None
        """As in the pool."""

    def _build(self) -> None:
        """Make empty shelves."""
        self._shelves: list[dict[int, Shelf]] = [{} for _ in self.shares.accounts]
        """By account, and by the bit of the class."""
        self._classes = [0] * len(self.shares.accounts)
        """By account, the bits of the classes with blocks."""
        self._normal = [self._shelf(account, NORMAL_PRIORITY) for account in self.shares.accounts]

    def reset(self) -> None:
        """Begin again without any block. Pins stay, unless their own counts are wrong."""
        self._pinned.clear()
        self._labels.clear()
        self._timed.clear()
        self._timers = Timers()
        self._size = 0
        self._build()
        try:
            self.pins.check()
        except Corrupted:
            self.pins.reset()

    @classmethod
    def of(cls, policy: EvictionPolicy, num_blocks: int) -> Shelves:
        """Return shelves as they are, or those for a policy that knows no tenants."""
        return policy if isinstance(policy, Shelves) else cls(lambda: policy, Shares(num_blocks))

    def pass_time(self, now_s: float) -> None:
        """Move what has outlived its time to the class that comes after."""
        self._now_s = max(self._now_s, now_s)
        for block_id in self._timers.due(self._now_s):
            block = self._timed.pop(block_id)
            assert block.kept is not None, f"{block} has no deadline"
            after = block.kept.after
            self.remove(block)
            block.kept = None if after == NORMAL_PRIORITY else Kept(after, None, after)
            self._put([block], self._shelf(block.account or self.shares.default, after))

    def add(self, block: Block) -> None:
        """Take in a block that has just lost its last holder."""
        account = block.account or self.shares.default
        payer = self.pins.payer(block) if self.pins.used else None
        if payer is not None:
            self._pin(block, payer)
        else:
            self._add_alike([block], account, block.kept)

    def add_all(self, blocks: list[Block]) -> None:
        """Take in blocks that have just lost their last holder, at least one, in this order."""
        account, kept = blocks[0].account, blocks[0].kept
        if self.pins.used or not all(
            [block.account is account and block.kept is kept for block in blocks]
        ):
            for block in blocks:
                self.add(block)
        else:
            self._add_alike(blocks, account or self.shares.default, kept)

    def hit(self, block: Block) -> None:
        """Tell the policy that the text of a held block is used once more."""
        if self.hears_hits:
            kept = block.kept
            priority = NORMAL_PRIORITY if kept is None else kept.priority
            shelf = self._shelf(block.account or self.shares.default, priority)
            shelf.bag.hit(block)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def remove(self, block: Block) -> None:
        """Let go of a block that is held again or no longer holds a known text."""
        shelf = block.shelf
        if shelf is None:
            self._unpin(block)
            return
        shelf.bag.remove(block)
        self._note_loss([block], shelf)

    def remove_all(self, blocks: list[Block]) -> None:
        """Let go of blocks, at least one, that are held again."""
        shelf = blocks[0].shelf
        if shelf is None or not all([block.shelf is shelf for block in blocks]):
            for block in blocks:
                self.remove(block)
        else:
            shelf.remove_all(blocks)
            self._note_loss(blocks, shelf)

    def pin(self, block: Block) -> None:
        """Take a cached block off its shelf, since a pin holds its text now."""
        self.remove(block)
        self.add(block)

    def is_pinned(self, block: Block) -> bool:
        """True if a pin alone holds the block."""
        return block.id in self._labels

    def pop(self, taker: Account | None = None) -> Block:
        """Choose the next victim for a tenant that takes a block, and let go of it.

        taker: None: for nobody. `IndexError` if the tenant whose turn it is has none.
        """
        return self.pop_some(1, taker)[0]

    def pop_some(self, count: int, taker: Account | None = None) -> list[Block]:
        """Choose the next victims, as `pop` does: from one to so many, all of one tenant."""
        shares, victims = self.shares, list[Block]()
        if taker is None:
            giver, most = shares.most_over() or shares.default, 1
        else:
            giver, most = shares.turn(taker)
        count = min(count, most)
        while len(victims) < count:
            classes = self._classes[giver.number]
            if not classes:
                raise IndexError("pop from an empty bag")
            shelf = self._shelves[giver.number][classes & -classes]  # of the lowest class
            some = shelf.pop_all(min(shelf.count, count - len(victims)))
            self._note_loss(some, shelf)
            victims += some
        return victims

    def __len__(self) -> int:
        return self._size

    def note_growth(self, account: Account) -> None:
        """Note that one of several accounts has more blocks, which may be those of others."""
        self.shares.grown(account)
        if account.live > account.maximum and account.cached:
            self.overfull(account)

    def check(self, blocks: Iterable[Block]) -> None:
        """Compare with the blocks that hold a known text and that nobody holds. Raises Corrupted.

        blocks: all of those.
        """
        idle = {block.id: block for block in blocks}
        wrong = [f"block {i} is pinned, but not idle" for i in self._labels if i not in idle]
        wrong += [
            f"{block} is not what is pinned as {label}"
            for label, block in self._pinned.items()
            if self._labels.get(block.id) != label or label != (block.group, block.key)
        ]
        evictable = [block for i, block in idle.items() if i not in self._labels]
        wrong += [f"{block} lies on no shelf" for block in evictable if block.shelf is None]
        if len(evictable) != self._size:
            wrong.append(f"{self._size} blocks are evictable, not {len(evictable)}")
        shelves = [shelf for part in self._shelves for shelf in part.values()]
        wrong += [
            f"a shelf has {s.count} blocks, not {len(s.bag)}"
            for s in shelves
            if s.count != len(s.bag)
        ]
        on_shelves = sum(shelf.count for shelf in shelves)
        if on_shelves != self._size:
            wrong.append(f"{on_shelves} blocks lie on shelves, {self._size} are evictable")
        timed = {b.id for b in evictable if b.kept is not None and b.kept.ttl_s is not None}
        if timed != set(self._timed) or len(self._timers) != len(timed):
            wrong.append(f"blocks with a deadline are {sorted(self._timed)}, not {sorted(timed)}")
        wrong += [
            f"{block} is pinned on account of {block.account}, not of {payer}"
            for block in idle.values()
            if (payer := self.pins.payer(block) or block.account) is not block.account
        ]
        wrong += [
            f"{block} is held by a pin, but evictable"
            for block in evictable
            if self.pins.payer(block) is not None
        ]
        wrong += [
            f"{account} has {account.pinned} pinned blocks of at most {account.most_pinned}"
            for account in self.shares.accounts
            if account.pinned > account.most_pinned
        ]
        if wrong:
            raise Corrupted("; ".join(wrong))
        self.pins.check()

    @property
    def pinned(self) -> int:
        """Blocks that a pin alone holds."""
        return len(self._labels)

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _let_go(self, labels: Iterable[Label]) -> None:
        """Put what no pin holds now onto the shelves, tails first: a suffix needs its prefix.

        What another pin holds goes on that one's account.
        """
        labels = list(labels)
        blocks = [self._pinned[label] for label in labels if label in self._pinned]
        for block in sorted(blocks, key=lambda block: -block.depth):
            self._unpin(block)
            self.add(block)
        for label in labels if self._several else ():
            if label not in self._pinned:
                self.unpinned(label)

    def _pin(self, block: Block, account: Account) -> None:
        assert block.key is not None, f"{block} holds no text to pin"
        label = (block.group, block.key)
        self._pinned[label] = block
        self._labels[block.id] = label
        if self.touched is not None:
            self.touched.add(block.id)
        block.account = account
        account.pinned += 1
        if self._several:
            self.note_growth(account)

    def _unpin(self, block: Block) -> None:
        del self._pinned[self._labels.pop(block.id)]
        if self.touched is not None:
            self.touched.add(block.id)
        account = block.account or self.shares.default
        account.pinned -= 1
        if self._several:
            self.shares.touch(account)

    def _shelf(self, account: Account, priority: int) -> Shelf:
        bit = 1 << (priority - EXPIRED)
        shelves = self._shelves[account.number]
        shelf = shelves.get(bit)
        if shelf is None:
            shelf = shelves[bit] = Shelf(account, bit, _emptied(self._make()))
        return shelf

    def _add_alike(self, blocks: list[Block], account: Account, kept: Kept | None) -> None:
        """Take in blocks of one account that are kept alike and that no pin holds."""
        if kept is None:
            shelf = self._normal[account.number]
        else:
            shelf = self._shelf(account, kept.priority)
            if kept.ttl_s is not None:
                for block in blocks:
                    self._timed[block.id] = block
                    self._timers.set(block.id, self._now_s + kept.ttl_s)
        self._put(blocks, shelf)

    def _put(self, blocks: list[Block], shelf: Shelf) -> None:
        shelf.add_all(blocks)
        for block in blocks:
            block.shelf = shelf
        account, count = shelf.account, len(blocks)
        shelf.count += count
        self._size += count
        account.cached += count
        self._classes[account.number] |= shelf.bit
        if self._several:
            self.note_growth(account)

    def _note_loss(self, blocks: list[Block], shelf: Shelf) -> None:
        for block in blocks:
            block.shelf = None
        account, count = shelf.account, len(blocks)
        shelf.count -= count
        self._size -= count
        account.cached -= count
        if not shelf.count:
            self._classes[account.number] &= ~shelf.bit
        if self._several:
            self.shares.touch(account)
        if self._timed:
            for block in blocks:
                if self._timed.pop(block.id, None) is not None:
                    self._timers.cancel(block.id)


def _emptied(bag: EvictionPolicy) -> EvictionPolicy:
    """Return a bag without blocks; only one that is made once for all can have any."""
    while len(bag):
        bag.pop()
    return bag


def _nobody(news: object) -> None:
    """No pool has blocks on these shelves."""
