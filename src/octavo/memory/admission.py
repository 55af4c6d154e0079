"""What must be free before a sequence is admitted, and whom it would have to be taken from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from octavo.contract.ids import BlockId
from octavo.contract.request import Sequence
from octavo.errors import RequestError
from octavo.memory.groups import Groups
from octavo.memory.pool import BlockPool
from octavo.memory.prefix import Hit
from octavo.memory.promises import Promises
from octavo.memory.returns import Forecast
from octavo.memory.shares import Account
from octavo.memory.table import Table
from octavo.memory.tails import Tails

_RESERVE = 100
"""One block in so many stays free at admission while somebody runs: texts that grow into it need
not displace one that has just come."""

_UNSHARED = " (counted without what they share, since the model has windows)"


class Standing(NamedTuple):
    """Where a tenant would stand with one more of its sequences."""

    full: bool
    """Above its maximum: only its own blocks can make room."""
    entitled: bool
    """Within its guarantee."""
    surplus: bool
    """Above its guarantee already."""


class Admission:
    """Counts before anything is taken; changes nothing."""

    def __init__(self, groups: Groups, pool: BlockPool, promises: Promises, tails: Tails) -> None:
        self._groups = groups
        self._pool = pool
        self._promises = promises
        self._tails = tails
        self._shares = pool.shares
        self._reserve = pool.size // _RESERVE

    def limit(self, prompt: int, limit: int, width: int, tenant: str) -> int:
        """Longest text, up to `limit`, of a tenant's request, or of each of `width` beams.

        Raises RequestError if nothing can follow the prompt.
        """
        blocks = self._shares.ceiling(self._shares.account(tenant))
        if width == 1 and blocks == self._pool.size:
            return limit
        longest = self._promises.longest_texts(prompt, limit, width, blocks)
        if longest > prompt:
            return longest
        memory = f"the KV memory's {self._pool.size} blocks"
        if blocks < self._pool.size:
            memory = (
                f"the {blocks} of {self._pool.size} blocks of KV memory that tenant {tenant!r} can "
                "count on (its maximum, less what others are guaranteed and what may be pinned)"
            )
        if width == 1:
            raise RequestError(
                f"the prompt has {prompt} tokens and does not fit into {memory}: shorten it, or "
                "change the shares in tenants or pin_limit"
            )
        raise RequestError(
            f"{width} beams after a prompt of {prompt} tokens may need more than "
            f"{memory}{_UNSHARED * self._groups.windowed}: lower beam_width, shorten the prompt, "
            "or raise kv_cache_memory_bytes"
        )

    def shortage(self, seq: Sequence, hit: Hit, *, alone: bool) -> int:
        """Blocks that must come back before what is promised at admission fits; 0: it fits.

        alone: nobody else has blocks, so that none need be left over.
        """
        return max(0, *self._shortages(seq, hit, alone=alone))

    def standing(self, seq: Sequence, hit: Hit | None = None) -> Standing:
        """Return where a sequence's tenant would stand after admission; or with one more block."""
        account = self._account(seq)
        blocks = 1 if hit is None else self._need(seq, hit)[0]
        shares = self._shares
        full, entitled = shares.full(account, blocks), shares.entitled(account, blocks)
        return Standing(full, entitled, shares.surplus(account))

    def useful(
        self, victims: Iterable[Sequence], seq: Sequence, hit: Hit | None
    ) -> Iterator[Sequence]:
        """Yield the victims of which `seq`, to be admitted or running, could use what they free."""
        own = self._account(seq)
        if hit is not None:
            blocks = self._need(seq, hit)[0]
        else:
            blocks = seq.request.sampling.choices if seq.beam else 1
        full = self._shares.full(own, blocks)
        for victim in victims:
            other = self._account(victim)
            if own is other or (not full and self._shares.surplus(other)):
                yield victim

    def relief(
        self, seq: Sequence, hit: Hit, victims: Iterable[tuple[Sequence, Table]], *, alone: bool
    ) -> Iterator[int]:
        """For each victim, by how much its release lessens the shortage of `seq`.

        Exact if those before it are released too: a shared block comes back with its last
        holder, and one that the hit counts on is not free for anything else.
        """
        counted_on = {block.id for run in hit.runs for tier, block in run if tier == 0}
        blocks, own = self._pool.blocks, self._account(seq)
        gone: Counter[BlockId] = Counter()
        short = self._shortages(seq, hit, alone=alone)
        forecast = Forecast(own, *short, self._pool.shelves.pins)
        for victim, table in victims:
            ids = list(table.blocks())
            gone.update(ids)
            # Only what comes back to another tenant is no use if it stays there.
            ends = self._tails.kept(victim, table, gone) if self._shares.several else ()
            for i in ids:
                one = blocks[i]
                last = gone[i] == one.refs
                if last or one.others is not None:
                    cached = one.key is not None or i in ends
                    taker = own if i in counted_on else None
                    forecast.returns.leave(
                        one, table.account, last=last, cached=cached, taker=taker
                    )
            forecast.settle(table.account, table.owed)
            yield forecast.relief()

    def may_adopt(self, table: Table, hit: Hit) -> bool:
        """Return True if a running sequence can have found blocks without what others are owed.

        Blocks that somebody holds cost nothing; those that are cached it may not be promised.
        """
        blocks = [block for run in hit.runs for _, block in run]
        cached = sum(block.shelf is not None for block in blocks)
        beyond = cached - min(len(blocks), table.owed)
        return beyond <= 0 or beyond <= self._shares.room(table.account)

    def _account(self, seq: Sequence) -> Account:
        return self._shares.account(seq.request.tenant)

    def _shortages(self, seq: Sequence, hit: Hit, *, alone: bool) -> tuple[int, int]:
        need, others = self._need(seq, hit)
        reserve = 0 if alone else self._reserve
        return self._shares.shortages(self._account(seq), need, others, reserve)

    def _need(self, seq: Sequence, hit: Hit) -> tuple[int, Counter[Account]]:
        """Return the blocks a sequence needs beside those held already.

        And, by tenant, how many of them are cached ones of others, which become its own.
        """
        account = self._account(seq)
        need = self._promises.blocks_of(seq)
        others: Counter[Account] = Counter()
        for run in hit.runs:
            for tier, block in run:
                if tier:
                    continue
                if block.refs or block.shelf is None:  # held, or pinned
                    need -= 1
                elif block.account is not account and block.account is not None:
                    others[block.account] += 1
        return need, others
