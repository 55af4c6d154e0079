"""Whose blocks are in a pool, how many each tenant may have, and who has to give up one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from octavo.contract.layout import ANY_LENGTH
from octavo.contract.retention import DEFAULT_TENANT, TenantShare
from octavo.errors import Corrupted, RequestError
from octavo.memory.block import Block

_ROUNDING = 1e-6
"""More than the error of a product, less than any part of a block that is meant."""


class Account:
    """One tenant's blocks in a pool; the counts are written by the pool, `Shelves`, `Promises`."""

    __slots__ = (
        "cached",
        "claimed",
        "guaranteed",
        "held",
        "kept",
        "maximum",
        "most_pinned",
        "name",
        "number",
        "owed",
        "pinned",
    )

    def __init__(
        self, name: str, number: int, guaranteed: int, maximum: int, most_pinned: int
    ) -> None:
        self.name = name
        self.number = number
        self.guaranteed = guaranteed
        """Blocks below which none is evicted for others."""
        self.maximum = maximum
        """Most blocks, held, cached and pinned together; pins of what others have written may
        bring more while requests use the rest."""
        self.most_pinned = most_pinned
        """Most blocks that pins can keep from eviction."""
        self.held = 0
        self.cached = 0
        """Evictable."""
        self.pinned = 0
        """Nobody holds them, but a pin does."""
        self.owed = 0
        """Promised to its sequences and not taken yet."""
        self.kept = 0
        """Blocks that others cannot take; as last summed up."""
        self.claimed = 0
        """The same with those owed."""

    @property
    def live(self) -> int:
        """All of its blocks."""
        return self.held + self.cached + self.pinned

    @property
    def locked(self) -> int:
        """Those that cannot be evicted for anybody."""
        return self.held + self.pinned

    @property
    def protected(self) -> int:
        """Those that cannot be evicted for another tenant."""
        return max(self.held + self.pinned, min(self.guaranteed, self.live))

    def __repr__(self) -> str:
        return f"Account({self.name!r}, held={self.held}, cached={self.cached}, owed={self.owed})"


class Shares:
    """The accounts of a pool of `num_blocks` blocks. All calls O(1), or O(log tenants).

    Each block in use or cached is on one account; of several tenants that hold one, `Holders` say
    on whose. Of tenants above their guarantee the one that is furthest above it gives up a block
    first.
    """

    def __init__(
        self,
        num_blocks: int,
        tenants: Iterable[TenantShare] = (),
        *,
        pin_limit: float = 0.0,
    ) -> None:
        rows = {DEFAULT_TENANT: TenantShare(DEFAULT_TENANT)} | {one.name: one for one in tenants}
        self.size = num_blocks
        self.most_pinned = _part(num_blocks, pin_limit)
        self.accounts = [
            Account(
                row.name,
                number,
                _part(num_blocks, row.guaranteed),
                _part(num_blocks, row.maximum),
                _part(_part(num_blocks, row.maximum), pin_limit),
            )
            for number, row in enumerate(rows.values())
        ]
        self.default = self.accounts[0]
        self._by_name = {account.name: account for account in self.accounts}
        self.several = len(self.accounts) > 1
        """More than one account: else nothing is summed up, since there are no others."""
        self._guaranteed = sum(account.guaranteed for account in self.accounts)
        self._changed: set[Account] = set()
        """Accounts to be summed up again."""
        self._kept = 0
        self._claimed = 0
        """Sums of `Account.kept` and `Account.claimed`."""
        self._over: list[tuple[int, int]] = []
        """Heap of (-blocks above the guarantee, number)."""
        self._noted: dict[int, int] = {}
        """By number, the entry that counts: at least what is true. Of all that have evictable
        blocks; entries beside it are left over."""

    def account(self, tenant: str) -> Account:
        """Return a tenant's account. Raises RequestError for one that has no share."""
        account = self._by_name.get(tenant)
        if account is None:
            raise RequestError(
                f"tenant {tenant!r} is not one of {', '.join(self._by_name)}: name it in tenants "
                "when the engine is built, with its shares or with none"
            )
        return account

    def ceiling(self, account: Account) -> int:
        """Most blocks that one text of a tenant can count on, whatever others keep or pin."""
        return max(0, min(account.maximum - account.most_pinned, self._beside(account)))

    # ── what can be given ─────────────────────────────────────────────────────────────────

    def takeable(self, account: Account, lent: int = 0) -> int:
        """Blocks that a tenant could be given now: free ones, its own, others' surplus.

        lent: blocks more that others are about to give back.
        """
        self._sum_up()
        others = self._kept - account.kept - lent
        return min(account.maximum, self.size - others) - account.locked

    def room(self, account: Account, lent: int = 0) -> int:
        """Those of them that are not promised to anybody; may be negative."""
        others = self._claimed_now() - account.claimed - lent
        return min(account.maximum, self.size - others) - account.locked - account.owed

    def shortages(
        self, account: Account, blocks: int, others: Mapping[Account, int], reserve: int
    ) -> tuple[int, int]:
        """How many blocks must come back before a tenant can be promised so many more.

        Of its own, and of all; below 0: as many are left over. others: how many of the blocks are
        cached ones of other tenants, which lose them to it. reserve: blocks of all that are to be
        left over, as far as there can be that many: what others are guaranteed or may pin need
        never come back.
        """
        spare = self._beside(account) - blocks
        reserve = min(reserve, max(0, spare))
        claimed = self._claimed_now() - account.claimed
        for other, count in others.items():
            kept = max(other.locked, min(other.guaranteed, other.live - count))
            claimed += max(kept, other.locked + other.owed) - other.claimed
        own = account.locked + account.owed + blocks
        return own - account.maximum, own + reserve + claimed - self.size

    def full(self, account: Account, blocks: int) -> bool:
        """True if so many more blocks would take a tenant above its maximum."""
        return account.locked + account.owed + blocks > account.maximum

    def entitled(self, account: Account, blocks: int) -> bool:
        """True if a tenant with so many more blocks in use is still within its guarantee."""
        return account.locked + account.owed + blocks <= account.guaranteed

    def surplus(self, account: Account) -> bool:
        """True if others can be given blocks that this tenant's sequences give back."""
        return account.locked > account.guaranteed

    # ── who gives up a block ──────────────────────────────────────────────────────────────

    def spare(self, account: Account) -> int:
        """How many blocks a tenant can take before it has to give up its own cached ones for them.

        It has to at its maximum; and where one more block, protected by its guarantee, would be
        one that is promised to others.
        """
        if not self.several or not account.cached:
            return self.size
        live = account.live
        spare = account.maximum - live
        if live < account.guaranteed:
            spare = min(spare, self.size - (self._claimed_now() - account.claimed) - live)
        return max(0, spare)

    def turn(self, taker: Account) -> tuple[Account, int]:
        """Return the tenant that gives up cached blocks to another's sequence.

        And how many, one after the other, before it may be another's turn; at least 1.
        """
        most = self.most_over() if self.several and self.spare(taker) else None
        if most is None or most is taker or most.live <= most.guaranteed:
            return taker, max(1, taker.cached)  # each leaves it with as many blocks
        over = most.live - most.guaranteed
        # The heap's next ones are at least what any other is above its guarantee; the taker grows.
        others = max([0, *(-entry[0] for entry in self._over[1:3])])
        grows = (over - (taker.live - taker.guaranteed) + 1) // 2
        return most, max(1, min(most.cached, over - others, grows, self.spare(taker)))

    def most_over(self) -> Account | None:
        """Return the tenant with evictable blocks that is furthest above its guarantee."""
        if not self.several:
            return self.default if self.default.cached else None
        heap, noted = self._over, self._noted
        while heap:
            over, number = -heap[0][0], heap[0][1]
            account = self.accounts[number]
            true = account.live - account.guaranteed
            if noted.get(number) != over:
                heappop(heap)  # a higher entry has been settled since
            elif not account.cached:
                heappop(heap)
                del noted[number]
            elif true != over:
                heapreplace(heap, (-true, number))
                noted[number] = true
            else:
                return account
        return None

    # ── what the owners of the counts report ──────────────────────────────────────────────

    def hold(self, block: Block, change: int) -> None:
        """Note that a block of one of `several` accounts is held, or is no longer. O(1)."""
        account = block.account
        assert account is not None, f"{block} is nobody's"
        account.held += change
        self._changed.add(account)

    def touch(self, account: Account) -> None:
        """Note that counts of an account have changed. For `several` accounts; O(1)."""
        self._changed.add(account)

    def grown(self, account: Account) -> None:
        """Note that one of `several` accounts has more blocks, or more evictable ones."""
        self._changed.add(account)
        over = account.live - account.guaranteed
        if account.cached and over > self._noted.get(account.number, -ANY_LENGTH):
            self._noted[account.number] = over
            heappush(self._over, (-over, account.number))
            if len(self._over) > 4 * len(self.accounts) + 64:
                self._noted = {a.number: a.live - a.guaranteed for a in self.accounts if a.cached}
                self._over = [(-over, number) for number, over in self._noted.items()]
                heapify(self._over)

    def reset(self, lost: int) -> None:
        """Begin again with no block in use; from now on there are so many fewer."""
        self.size -= lost
        for account in self.accounts:
            account.held = account.cached = account.pinned = account.owed = 0
            account.kept = account.claimed = 0
        self._changed.clear()
        self._kept = self._claimed = 0
        self._over.clear()
        self._noted.clear()

    def check(self, blocks: Iterable[Block], pinned: Iterable[Block]) -> None:
        """Count each account's blocks again. Raises Corrupted.

        blocks: all that somebody holds or that can be found; pinned: those that pins hold.
        """
        stuck = {block.id for block in pinned}
        true: Counter[tuple[Account, str]] = Counter()
        for block in blocks:
            assert block.account is not None, f"{block} is nobody's"
            kind = "held" if block.refs else "pinned" if block.id in stuck else "cached"
            true[block.account, kind] += 1
        self._sum_up()
        wrong = [
            f"{kind} of tenant {account.name} is {has}, not {true[account, kind]}"
            for account in self.accounts
            for kind, has in (
                ("held", account.held),
                ("cached", account.cached),
                ("pinned", account.pinned),
            )
            if has != true[account, kind]
        ]
        wrong += [
            f"tenant {account.name} has {account.live} blocks of at most {account.maximum}"
            for account in self.accounts
            if account.live > account.maximum and account.cached
        ]
        if self.several:
            kept = sum(account.protected for account in self.accounts)
            if kept != self._kept:
                wrong.append(f"protected blocks are {self._kept}, not {kept}")
            wrong += [
                f"tenant {account.name} is noted as less above its guarantee than it is"
                for account in self.accounts
                if account.cached
                and self._noted.get(account.number, -ANY_LENGTH) < account.live - account.guaranteed
            ]
        if wrong:
            raise Corrupted("; ".join(wrong))

    # ── inside ────────────────────────────────────────────────────────────────────────────

    def _beside(self, account: Account) -> int:
        """Blocks beside what others are guaranteed, and what all may pin."""
        return self.size - (self._guaranteed - account.guaranteed) - self.most_pinned

    def _claimed_now(self) -> int:
        self._sum_up()
        return self._claimed

    def _sum_up(self) -> None:
        for account in self._changed:
            kept = account.protected
            claimed = max(kept, account.locked + account.owed)
            self._kept += kept - account.kept
            self._claimed += claimed - account.claimed
            account.kept, account.claimed = kept, claimed
        self._changed.clear()


def _part(blocks: int, share: float) -> int:
    """Return how many whole blocks a share is: 0.29 of 100 are 29, though the product is less."""
    return int(blocks * share + _ROUNDING)
