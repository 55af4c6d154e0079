"""Texts that are not evicted while a pin holds them: who pinned what, and for how long."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from octavo.contract.ids import BlockKey
from octavo.contract.retention import PinFacts
from octavo.errors import Corrupted, RequestError
from octavo.memory.block import Block
from octavo.memory.shares import Account
from octavo.memory.timers import Timers

Label: TypeAlias = tuple[int, BlockKey]
"""KV group and key of a full block's text."""

_Name: TypeAlias = tuple[str, str]
"""Tenant and name of a pin."""


class Pin:
    """One tenant's pin of one name; written by `Pins` alone."""

    __slots__ = ("account", "labels", "name", "until_s", "users")

    def __init__(self, account: Account, name: str) -> None:
        self.account = account
        self.name = name
        self.labels: dict[Label, int] = {}
        """How many requests have named each."""
        self.users = 0
        """Live requests that name it: it holds at least as long as they live."""
        self.until_s = 0.0
        """When it ends without any."""


class Pins:
    """Pins by tenant and name. A text is pinned before anybody has computed it.

    A pin holds while a request that names it lives, and some time after the last one. What is
    pinned counts against its tenant's limit once for each pin, and against the pool's.
    """

    def __init__(self, most_blocks: int) -> None:
        self.lets_go: Callable[[Iterable[Label]], None] = _nobody
        """Told the texts that a pin holds no more; others may hold them still."""
        self.used = False
        """Something has been pinned at some time."""
        self._most = most_blocks
        self._pins: dict[_Name, Pin] = {}
        self._holders: dict[Label, dict[Pin, None]] = {}
        """Of each text, the pins that hold it, oldest first."""
        self._texts_of: Counter[Account] = Counter()
        self._timers: Timers[_Name] = Timers()

    def payer(self, block: Block) -> Account | None:
        """Return on whose account a pin holds the block's text; None: no pin does.

        That of its owner, if he pins it too, else of who has pinned it for the longest.
        """
        if not self.used or block.key is None:
            return None
        holders = self._holders.get((block.group, block.key))
        if holders is None:
            return None
        accounts = [pin.account for pin in holders]
        return block.account if block.account in accounts else accounts[0]

    def hold_for(self, account: Account | None, block: Block) -> bool:
        """Return True if a pin of this tenant holds the block's text."""
        if not self.used or block.key is None:
            return False
        holders = self._holders.get((block.group, block.key), ())
        return any(pin.account is account for pin in holders)

    def check_limit(self, account: Account, wanted: Mapping[str, Iterable[Label]]) -> None:
        """Raise RequestError if these texts, by name of a pin, are more than may still be pinned.

        Where nothing may be pinned, any name is one too many.
        """
        if not wanted:
            return
        named = ("pin " if len(wanted) == 1 else "pins ") + ", ".join(map(repr, wanted))
        needs = "needs" if len(wanted) == 1 else "need"
        have, most = self._texts_of[account], account.most_pinned
        if not most:
            raise RequestError(
                f"{named}: tenant {account.name!r} may pin 0 blocks: build the engine with "
                "pin_limit, the share of the KV memory that may be pinned (0.2, for example), or "
                "with a greater one"
            )
        new = [
            label
            for name, labels in wanted.items()
            for label in labels
            if label not in self._labels_of(account, name)
        ]
        way_out = "shorten the range, let go of another pin with unpin(name), or raise pin_limit"
        if have + len(new) > most:
            raise RequestError(
                f"{named} {needs} {_more(len(new))}, and {have} of at most {most} are "
                f"pinned by tenant {account.name!r}: {way_out}"
            )
        fresh = len({label for label in new if label not in self._holders})
        if len(self._holders) + fresh > self._most:
            raise RequestError(
                f"{named} {needs} {_more(fresh)}, and {len(self._holders)} of at most "
                f"{self._most} are pinned by all tenants: {way_out}"
            )

    def hold(self, account: Account, name: str, labels: Iterable[Label]) -> Pin:
        """Let a live request's texts be held under a name; `check_limit` has been asked."""
        self.used = True
        place = (account.name, name)
        pin = self._pins.get(place)
        if pin is None:
            pin = self._pins[place] = Pin(account, name)
        for label in labels:
            named = pin.labels.get(label, 0)
            pin.labels[label] = named + 1
            if not named:
                self._holders.setdefault(label, {})[pin] = None
                self._texts_of[account] += 1
        pin.users += 1
        self._timers.cancel(place)
        return pin

    def leave(self, pin: Pin, until_s: float) -> None:
        """One of a pin's requests has ended; with the last one its time begins to run."""
        pin.users -= 1
        pin.until_s = max(pin.until_s, until_s)
        place = (pin.account.name, pin.name)
        if not pin.users and self._pins.get(place) is pin:
            self._timers.set(place, pin.until_s)

    def take_back(self, pin: Pin, labels: Iterable[Label]) -> None:
        """Undo `hold` of one request: the pin is as if it had never named it."""
        pin.users -= 1
        place = (pin.account.name, pin.name)
        if self._pins.get(place) is not pin:
            return
        gone: list[Label] = []
        for label in labels:
            pin.labels[label] -= 1
            if not pin.labels[label]:
                del pin.labels[label]
                gone.append(label)
        self._release(pin, gone)
        if not pin.labels:
            del self._pins[place]
        elif not pin.users:
            self._timers.set(place, pin.until_s)

    def let_go(self, tenant: str | None = None, name: str | None = None) -> int:
        """End pins by tenant and name, None: of any; returns the number of texts they held."""
        count = self.count(tenant, name)
        self._end(self._named(tenant, name))
        return count

    def count(self, tenant: str | None = None, name: str | None = None) -> int:
        """Return how many texts pins hold, by tenant and name; one that two hold counts twice."""
        return sum(len(self._pins[one].labels) for one in self._named(tenant, name))

    def facts(self, tenant: str | None, now_s: float) -> tuple[PinFacts, ...]:
        """Tell of the pins of a tenant, None: of all, by tenant and name."""
        return tuple(
            PinFacts(
                owner,
                name,
                len(pin.labels),
                pin.users,
                None if pin.users else max(0.0, pin.until_s - now_s),
            )
            for (owner, name), pin in sorted(self._pins.items(), key=lambda one: one[0])
            if tenant in (None, owner)
        )

    def pass_time(self, now_s: float) -> bool:
        """End the pins whose time is over; True if there were any."""
        names = self._timers.due(now_s)
        self._end(names)
        return bool(names)

    def reset(self) -> None:
        """Forget all pins; requests that named them may still leave."""
        self._pins.clear()
        self._holders.clear()
        self._texts_of.clear()
        self._timers = Timers()

    def check(self) -> None:
        """Count again. Raises Corrupted."""
        holders: dict[Label, set[Pin]] = {}
        texts = Counter[Account]()
        for pin in self._pins.values():
            texts[pin.account] += len(pin.labels)
            for label in pin.labels:
                holders.setdefault(label, set()).add(pin)
        if holders != {label: set(pins) for label, pins in self._holders.items()}:
            raise Corrupted(f"pins hold {len(holders)} texts, not {len(self._holders)}")
        if texts != +self._texts_of:
            raise Corrupted(f"tenants pin {texts.total()} texts, not {self._texts_of.total()}")
        ending = {name for name, pin in self._pins.items() if not pin.users}
        if {name for name in self._pins if name in self._timers} != ending:
            raise Corrupted("a pin without a live request has no deadline, or one with has")

    def _named(self, tenant: str | None, name: str | None) -> list[_Name]:
        return [one for one in self._pins if tenant in (None, one[0]) and name in (None, one[1])]

    def _labels_of(self, account: Account, name: str) -> Mapping[Label, int]:
        pin = self._pins.get((account.name, name))
        return {} if pin is None else pin.labels

    def _end(self, names: Iterable[_Name]) -> None:
        for name in names:
            pin = self._pins.pop(name)
            self._timers.cancel(name)
            self._release(pin, list(pin.labels))

    def _release(self, pin: Pin, labels: list[Label]) -> None:
        """Let texts be held by a pin no more."""
        self._texts_of[pin.account] -= len(labels)
        for label in labels:
            holders = self._holders[label]
            del holders[pin]
            if not holders:
                del self._holders[label]
        if labels:
            self.lets_go(labels)


def _more(blocks: int) -> str:
    return f"{blocks} more block" + ("" if blocks == 1 else "s")


def _nobody(labels: Iterable[Label]) -> None:
    """Nothing is pinned where nobody listens."""
