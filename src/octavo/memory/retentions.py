"""What live requests ask of the memory after them: pins, and how their blocks are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from octavo.contract.request import Request
from octavo.contract.retention import PIN_TTL_S, PinFacts, Retention
from octavo.memory.block import Block
from octavo.memory.groups import Groups
from octavo.memory.kept import Keeps, better, keeps_of, kept_at
from octavo.memory.keys import keys_of
from octavo.memory.pins import Label, Pin
from octavo.memory.prefix import Hit
from octavo.memory.shares import Account
from octavo.memory.table import Table
from octavo.memory.tier import Tier


class _Pinned(NamedTuple):
    """What one request has pinned under a name."""

    pin: Pin
    labels: Iterable[Label]
    ttl_s: float
    """How long the pin holds after the request."""


class Retentions:
    """Keeps, per live request, what it asks for; writes `Block.kept` and `Pins`.

    Requests that ask for nothing cost nothing, until the first one that does.
    """

    def __init__(self, groups: Groups, device: Tier) -> None:
        self._groups = groups
        self._device = device
        self._shelves = device.pool.shelves
        self._pins = self._shelves.pins
        self.now_s = 0.0
        """Seconds on the engine's clock; to be read only."""
        self._asked: dict[str, tuple[Keeps, list[_Pinned]]] = {}
        """By request: how its text is kept, and what it pins."""
        self._seen = False
        """A block may be kept otherwise than all others."""

    def expect(self, request: Request) -> None:
        """Take in what a request asks for. Raises RequestError, changing nothing.

        It is pinned before it is computed, so that nobody finds out later that it cannot be; and
        what is cached of it already is kept from now on.
        """
        if not request.retention:
            return
        account = self._shelves.shares.account(request.tenant)
        keeps = keeps_of(request.retention, len(request.prompt))
        wanted: dict[str, dict[Label, None]] = {}
        times: dict[str, float] = {}
        for one in request.retention:
            if one.pin is not None:
                labels = wanted.setdefault(one.pin, {})
                labels.update(dict.fromkeys(self._labels(request, one)))
                times[one.pin] = max(times.get(one.pin, 0.0), one.ttl_s or PIN_TTL_S)
        self._pins.check_limit(account, wanted)
        pinned = [
            _Pinned(self._pins.hold(account, name, labels), labels, times[name])
            for name, labels in wanted.items()
            if labels  # a range without a full block has nothing to hold
        ]
        self._asked[request.id] = (keeps, pinned)
        self._seen = True
        self._take_cached(account, {label: None for one in pinned for label in one.labels})

    def _take_cached(self, account: Account, labels: Iterable[Label]) -> None:
        """Take off their shelves what is cached of texts that a tenant has pinned."""
        found = (self._device.block_of(group, key) for group, key in labels)
        cached = [block for block in found if block is not None and block.shelf is not None]
        # Others' blocks may make a tenant give up cached ones of its own, but none of these.
        for block in sorted(cached, key=lambda block: block.account is not account):
            self._shelves.pin(block)

    def part(self, request_id: str) -> None:
        """A request has ended: the time of its pins begins to run."""
        _, pinned = self._asked.pop(request_id, ((), ()))
        for one in pinned:
            self._pins.leave(one.pin, self.now_s + one.ttl_s)

    def withdraw(self, request_id: str) -> None:
        """A request is to be as if it had never come: its pins are taken back."""
        _, pinned = self._asked.pop(request_id, ((), ()))
        for one in pinned:
            self._pins.take_back(one.pin, one.labels)

    def let_go(self, tenant: str | None, name: str | None) -> int:
        """End pins, None: of any tenant or name; returns the blocks they held.

        Raises RequestError for a tenant that there is not.
        """
        self._check_tenant(tenant)
        return self._pins.let_go(tenant, name)

    def facts(self, tenant: str | None) -> tuple[PinFacts, ...]:
        """Tell of a tenant's pins, None: of all. Raises RequestError for one that there is not."""
        self._check_tenant(tenant)
        return self._pins.facts(tenant, self.now_s)

    def _check_tenant(self, tenant: str | None) -> None:
        if tenant is not None:
            self._shelves.shares.account(tenant)

    def pass_time(self, now_s: float) -> bool:
        """Let time pass; True if blocks have come back, since a pin has ended."""
        self.now_s = max(self.now_s, now_s)
        self._shelves.pass_time(self.now_s)
        return self._pins.pass_time(self.now_s)

    def apply_to(self, table: Table, request: Request) -> None:
        """Note in a new table how the request wants its text to be kept."""
        asked = self._asked.get(request.id)
        table.keeps = () if asked is None else asked[0]

    def reuse(self, table: Table, hit: Hit) -> None:
        """One more user takes up known blocks: they are kept as serves all users so far."""
        if not self._seen:
            return
        for group, (run, first) in enumerate(zip(hit.runs, hit.firsts, strict=True)):
            size = self._groups.sizes[group]
            for index, (tier, block) in enumerate(run, start=first):
                if tier == 0:
                    how = kept_at(table.keeps, (index + 1) * size)
                    if how is not block.kept:
                        block.kept = better(block.kept, how)

    def keep(self, table: Table, blocks: Iterable[Block]) -> None:
        """Blocks of a table have got their text: they are kept as its request wants."""
        if table.keeps:
            for block in blocks:
                end = (block.depth + 1) * self._groups.sizes[block.group]
                block.kept = kept_at(table.keeps, end)

    def _labels(self, request: Request, one: Retention) -> list[Label]:
        """Return the texts of the full blocks up to a range's end that a reader there needs.

        A group with a window needs only the last ones.
        """
        groups = self._groups
        prompt = len(request.prompt)
        upto = prompt if one.end is None else min(one.end, prompt)
        keys = keys_of(request.namespace.root(), request.prompt[:upto], groups.unit)
        end = upto // groups.align * groups.align
        return [
            (group, keys[(index + 1) * size // groups.unit - 1])
            for group, size in enumerate(groups.sizes)
            for index in range(groups.first_seen(group, end), upto // size)
        ]
