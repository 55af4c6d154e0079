"""On whose account a block is that sequences of several tenants hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from octavo.contract.ids import BlockId
from octavo.errors import Corrupted
from octavo.memory.block import Block
from octavo.memory.shares import Account
from octavo.memory.shelves import Shelves
from octavo.memory.table import Table


class Holders:
    """Moves held blocks between accounts; writes `Block.account` and `Block.others`.

    A held block is on the account of a tenant that holds it, by a sequence or by a pin: of the one
    for whose sequence it was taken or taken up, until its last one lets go of it, and then of
    another of them. So what a tenant wrote and others use costs it nothing. A move holds a block
    for whoever's it is. All calls O(1) per block, or O(tenants that hold it).
    """

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves
        self._pins = shelves.pins
        self._shares = shelves.shares

    def join(self, block: Block, account: Account) -> None:
        """A sequence of another tenant than the owner takes up a block, and is not counted yet.

        A cached block becomes its own; one that somebody holds, or a pin, stays the owner's.
        """
        if block.refs == 0 and block.shelf is not None:
            block.account = account
            return
        if block.others is None:
            block.others = {}
        block.others[account] = block.others.get(account, 0) + 1

    def leave(self, block: Block, account: Account | None) -> None:
        """A holder, of which it is counted no more, lets go of a block that other tenants hold."""
        others = block.others
        assert others is not None, f"{block} has one tenant only"
        if block.refs == 0:
            block.others = None
        elif account is None or account is block.account:
            self.settle(block)
        elif others.get(account, 0) > 1:
            others[account] -= 1
        else:
            others.pop(account, None)
            block.others = others or None

    def settle(self, block: Block) -> None:
        """Let a block be another holder's, if its owner neither holds nor pins it any more."""
        others, owner = block.others, block.account
        if others is None or owner is None or block.refs > sum(others.values()):
            return
        if self._pins.hold_for(owner, block):
            return
        account = heir(others)
        del others[account]
        block.others = others or None
        block.account = account
        if self._shelves.touched is not None:
            self._shelves.touched.add(block.id)
        owner.held -= 1
        account.held += 1
        self._shares.touch(owner)
        self._shelves.note_growth(account)

    def send_home(self, blocks: list[Block]) -> None:
        """Let blocks that have just lost their last holder be whose they were when they were taken.

        As far as that tenant's guarantee protects them: a text that is guaranteed to stay stays so
        though others have used it.
        """
        sent: Counter[Account] = Counter()
        for block in blocks:
            home = block.home
            if home is None or home is block.account or self._pins.payer(block) is not None:
                continue
            if home.live + sent[home] < home.guaranteed:
                sent[home] += 1
                block.account = home

    def check(self, blocks: Iterable[Block], tables: Iterable[Table]) -> None:
        """Count again, from all tables, which tenants hold each block. Raises Corrupted."""
        holders: dict[BlockId, Counter[Account]] = {}
        for table in tables:
            for block_id in table.blocks():
                holders.setdefault(block_id, Counter())[table.account] += 1
        wrong: list[str] = []
        for block in blocks:
            true, owner = dict(holders.get(block.id, {})), block.account
            own = true.pop(owner, 0) if owner is not None else 0
            if (block.others or {}) != true:
                wrong.append(f"{block} is held by others as {block.others}, not {true}")
            moves = block.refs - own - sum(true.values())
            if true and not (own or moves or self._pins.hold_for(owner, block)):
                wrong.append(f"{block} is on the account of {owner}, which does not hold it")
        if wrong:
            raise Corrupted("; ".join(wrong))


def heir(others: Mapping[Account, int]) -> Account:
    """Return the one of several holders whose a block becomes: it has room for most blocks.

    Of equal ones it has held the block for the longest.
    """
    return max(others, key=lambda account: account.maximum)
