"""What releases would give back to whom: worked out before anything is given back."""

from __future__ import annotations

from collections import Counter

from octavo.memory.block import Block
from octavo.memory.holders import heir
from octavo.memory.pins import Pins
from octavo.memory.shares import Account


class Returns:
    """Held blocks that are about to lose holders, by account."""

    def __init__(self, pins: Pins) -> None:
        self.back: Counter[Account] = Counter()
        """By so many fewer are held or pinned."""
        self.gone: Counter[Account] = Counter()
        """By so many fewer are live."""
        self._pins = pins
        self._left: dict[Block, tuple[Account, dict[Account, int]]] = {}
        """Of blocks that several tenants hold: whose they are now, and who holds them still."""

    def leave(
        self,
        block: Block,
        account: Account,
        *,
        last: bool,
        cached: bool = True,
        taker: Account | None = None,
    ) -> None:
        """A sequence of this account lets go of a block, as `Holders` will see it.

        last: nobody else holds it then. cached: it holds a text then; else it will be free.
        taker: who counts on finding it, and takes it up at once.
        """
        owner = block.account
        assert owner is not None, f"{block} is nobody's"
        if block.others is not None:
            owner = self._pass_on(block, owner, account)
        if not last:
            return
        payer = self._pins.payer(block)
        if payer is not None:
            self._move(owner, payer)
        elif taker is not None:
            self._move(owner, taker)
        else:
            self._put_away(block, owner, cached=cached)

    def accounts(self) -> set[Account]:
        """All for which something changes."""
        return self.back.keys() | self.gone.keys()

    def lent(self, taker: Account) -> int:
        """How many blocks others than the taker could give up once these have come back."""
        count = 0
        for account in self.accounts() - {taker}:
            floor = min(account.guaranteed, account.live - self.gone[account])
            count += account.protected - max(account.locked - self.back[account], floor)
        return count

    def _pass_on(self, block: Block, owner: Account, account: Account) -> Account:
        """Let one holder of a block leave; returns whose it is then."""
        if block not in self._left:
            others = block.others or {}
            self._left[block] = owner, {owner: block.refs - sum(others.values()), **others}
        owner, left = self._left[block]
        left[account] -= 1
        if not left[account] and account is not owner:
            del left[account]
        if left.get(owner) or len(left) == 1 or self._pins.hold_for(owner, block):
            return owner
        del left[owner]
        after = heir(left)
        self._move(owner, after)
        self._left[block] = after, left
        return after

    def _move(self, owner: Account, account: Account) -> None:
        """A block that stays in use, or pinned, changes hands."""
        self.back[owner] += 1
        self.gone[owner] += 1
        self.back[account] -= 1
        self.gone[account] -= 1

    def _put_away(self, block: Block, owner: Account, *, cached: bool) -> None:
        """A block is cached, by whom `Holders.send_home` says, or free."""
        self.back[owner] += 1
        home = block.home
        if not cached:
            self.gone[owner] += 1
        elif home not in (None, owner) and home.live - self.gone[home] < home.guaranteed:
            self.gone[owner] += 1
            self.gone[home] -= 1


class Forecast:
    """Works out what releases would change for a taker, one after the other."""

    def __init__(self, taker: Account, own: int, pool: int, pins: Pins) -> None:
        """own, pool: what the taker is short of, as `Shares.shortages` says."""
        self._taker = taker
        self._own = own
        self._pool = pool
        self.returns = Returns(pins)
        self._owed: Counter[Account] = Counter()
        self._short = max(own, pool)

    def settle(self, account: Account, owed: int) -> None:
        """A sequence is owed nothing any more."""
        self._owed[account] += owed

    def relief(self) -> int:
        """Return by how much the shortage is less than when this was asked last."""
        before = self._short
        usable = sum(map(self._usable, self.returns.accounts() | self._owed.keys()))
        self._short = max(self._own - self._usable(self._taker), self._pool - usable)
        return before - self._short

    def _usable(self, account: Account) -> int:
        back = self.returns.back[account] + self._owed[account]
        if account is self._taker:
            return back
        claim = account.locked + account.owed
        floor = min(account.guaranteed, account.live - self.returns.gone[account])
        return max(claim, min(account.guaranteed, account.live)) - max(claim - back, floor)
