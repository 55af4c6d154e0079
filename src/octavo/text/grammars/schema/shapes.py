"""Sets of JSON values of one type, as far as a grammar can be made of them; and what two share.

A union of shapes says what a statement means. A shape with a refusal (`blocked`) stands for values
that no grammar can be made for: it may still turn out that nothing of it is left.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TypeAlias, TypeVar

from octavo.text.grammars.schema.document import Refusal
from octavo.text.grammars.schema.formats import expressions
from octavo.text.grammars.schema.logic import FALSE, TRUE, Statement, every
from octavo.text.grammars.schema.patterns import Patterns


@dataclass(frozen=True, slots=True)
class Constant:
    """null, true or false."""

    value: bool | None
    blocked: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Numbers:
    """An interval."""

    low: Decimal | None = None
    low_open: bool = False
    high: Decimal | None = None
    high_open: bool = False
    integer: bool = False
    multiples: tuple[Decimal, ...] = ()
    """Each of them divides the number."""
    blocked: Refusal | None = None


@dataclass(frozen=True, slots=True)
class Strings:
    """Strings by length (in code points) and patterns; or a list of them."""

    values: tuple[str, ...] | None = None
    """Not None: one of these, which meet all else already."""
    excluded: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    patterns: tuple[str, ...] = ()
    """As `patterns.translated` has them; each is found in the string."""
    blocked: Refusal | None = None

    @property
    def of_hosts(self) -> bool:
        """True for names of hosts, of which expressions tell with stand-ins alone."""
        return HOST_PATTERNS[0] in self.patterns


@dataclass(frozen=True, slots=True)
class Containing:
    """How many items from a place on fit a statement."""

    item: Statement
    start: int
    low: int
    high: int | None
    refusal: Refusal


@dataclass(frozen=True, slots=True)
class Arrays:
    """Arrays by their items."""

    prefix: tuple[Statement, ...] = ()
    rest: Statement = TRUE
    """Of the items behind the prefix."""
    low: int = 0
    high: int | None = None
    containing: tuple[Containing, ...] = ()
    unique: Refusal | None = None
    """Not None: no two items are equal; what is told where that cannot be had."""
    blocked: Refusal | None = None

    def item(self, index: int) -> Statement:
        """Return what the item at a place must be."""
        return self.prefix[index] if index < len(self.prefix) else self.rest


@dataclass(frozen=True, slots=True)
class Objects:
    """Objects by their keys and values."""

    named: tuple[tuple[str, Statement], ...] = ()
    """What a value must be; what patterns say of it is part of that."""
    required: tuple[str, ...] = ()
    patterns: tuple[tuple[str, Statement], ...] = ()
    """Of keys that are not named; no two match the same key, or the rest says nothing."""
    rest: Statement = TRUE
    """Of keys that are neither named nor matched."""
    low: int = 0
    high: int | None = None
    keys: Statement = TRUE
    """What a key must be, as a string."""
    outside: tuple[tuple[str, ...], ...] = ()
    """Of each of these, some key is none."""
    blocked: Refusal | None = None


HOST_PATTERNS = expressions("hostname")
NO_OTHER_HOSTS = Refusal(
    "", "`format`", "hostname is not supported together with other rules for the same string"
)

Shape: TypeAlias = Constant | Numbers | Strings | Arrays | Objects
_S = TypeVar("_S", Numbers, Strings, Arrays, Objects)

ANYTHING: tuple[Shape, ...] = (
    Constant(None), Constant(False), Constant(True), Numbers(), Strings(), Arrays(), Objects(),
)  # fmt: skip


def all_but(*kinds: type[Shape]) -> tuple[Shape, ...]:
    """Return the values of all other types."""
    return tuple(shape for shape in ANYTHING if not isinstance(shape, kinds))


class Meeting:
    """Finds out what two shapes share."""

    def __init__(self, patterns: Patterns) -> None:
        self._patterns = patterns
        self.steps = 0
        """Pairs that were looked at, and keys in them."""

    def of(self, a: Shape, b: Shape) -> Shape | None:
        """Return the values in both, or None where there are none for a plain reason."""
        met: Shape | None
        self.steps += 1
        match a, b:
            case Constant(), Constant():
                met = a if a.value is b.value else None
            case Numbers(), Numbers():
                met = _numbers(a, b)
            case Strings(), Strings():
                met = self._strings(a, b)
            case Arrays(), Arrays():
                met = _arrays(a, b)
            case Objects(), Objects():
                met = self._objects(a, b)
            case _:
                return None
        blocked = a.blocked or b.blocked
        return met if met is None or blocked is None else replace(met, blocked=blocked)

    def unnamed(self, objects: Objects, name: str) -> Statement:
        """Return what the value under a key must be that is not named."""
        matched = [
            statement
            for pattern, statement in objects.patterns
            if self._patterns.found(pattern, name)
        ]
        return every(*matched) if matched else objects.rest

    def _strings(self, a: Strings, b: Strings) -> Strings | None:
        if a.values is None and b.values is not None:
            a, b = b, a
        if a.values is not None:
            values = tuple(value for value in a.values if self._fits(value, b))
            return Strings(values=values) if values else None
        low, high = max(a.low, b.low), _least(a.high, b.high)
        if high is not None and low > high:
            return None
        met = Strings(
            excluded=_joined(a.excluded, b.excluded),
            low=low,
            high=high,
            patterns=_joined(a.patterns, b.patterns),
        )
        if met.of_hosts and (met.excluded or len(met.patterns) > len(HOST_PATTERNS)):
            return Strings(blocked=NO_OTHER_HOSTS)
        return met

    def _fits(self, value: str, strings: Strings) -> bool:
        if strings.values is not None:
            return value in strings.values
        if value in strings.excluded or len(value) < strings.low:
            return False
        if strings.high is not None and len(value) > strings.high:
            return False
        return all(self._patterns.found(pattern, value) for pattern in strings.patterns)

    def _objects(self, a: Objects, b: Objects) -> Objects | None:
        low, high = max(a.low, b.low), _least(a.high, b.high)
        required = _joined(a.required, b.required)
        if high is not None and max(low, len(required)) > high:
            return None
        first, second = dict(a.named), dict(b.named)
        named = {
            name: every(
                first[name] if name in first else self.unnamed(a, name),
                second[name] if name in second else self.unnamed(b, name),
            )
            for name in (first | second if second else first)
        }
        self.steps += len(named)
        if FALSE in named.values() and any(named.get(name) == FALSE for name in required):
            return None
        patterns, blocked = self._by_pattern(a, b)
        if not patterns and FALSE in (a.rest, b.rest):
            # Nothing new is said of a key that is forbidden as all others are.
            named = {name: value for name, value in named.items() if value != FALSE}
        return Objects(
            named=tuple(named.items()),
            required=required,
            patterns=patterns,
            rest=every(a.rest, b.rest),
            low=low,
            high=high,
            keys=every(a.keys, b.keys),
            outside=_joined(a.outside, b.outside),
            blocked=blocked,
        )

    def _by_pattern(
        self, a: Objects, b: Objects
    ) -> tuple[tuple[tuple[str, Statement], ...], Refusal | None]:
        """Return what keys that match patterns of either must be."""
        first, second = dict(a.patterns), dict(b.patterns)
        blocked = None
        for one in first:
            for other in second:
                if one != other and (a.rest, b.rest) != (TRUE, TRUE):
                    if self._patterns.share_nothing(one, other):
                        continue
                    blocked = Refusal(
                        "", "`patternProperties`",
                        f"keys may match both {one} and {other}, which is not supported",
                    )  # fmt: skip
        met = {one: every(of, second.get(one, b.rest)) for one, of in first.items()}
        for other, of in second.items():
            met.setdefault(other, every(a.rest, of))
        return tuple(met.items()), blocked


def _numbers(a: Numbers, b: Numbers) -> Numbers | None:
    low, low_open = a.low, a.low_open
    if b.low is not None and (low is None or (b.low, b.low_open) > (low, low_open)):
        low, low_open = b.low, b.low_open
    high, high_open = a.high, a.high_open
    if b.high is not None and (high is None or (b.high, not b.high_open) < (high, not high_open)):
        high, high_open = b.high, b.high_open
    if low is not None and high is not None:
        empty = low > high or (low == high and (low_open or high_open))
        if empty:
            return None
    multiples = _joined(a.multiples, b.multiples)
    integer = a.integer or b.integer
    if low is not None and low == high and not holds(low, integer, multiples):
        return None
    return Numbers(low, low_open, high, high_open, integer, multiples)


def holds(value: Decimal, integer: bool, multiples: tuple[Decimal, ...]) -> bool:
    """True if a number is whole where it must be, and a multiple of all these."""
    if integer and value != value.to_integral_value():
        return False
    return all(is_multiple(value, of) for of in multiples)


def is_multiple(value: Decimal, of: Decimal) -> bool:
    """True if a number is a whole multiple, in decimal arithmetic without rounding."""
    first, second = value.as_integer_ratio(), of.as_integer_ratio()
    return (first[0] * second[1]) % (first[1] * second[0]) == 0


def _arrays(a: Arrays, b: Arrays) -> Arrays | None:
    low, high = max(a.low, b.low), _least(a.high, b.high)
    if high is not None and low > high:
        return None
    longest = max(len(a.prefix), len(b.prefix))
    return Arrays(
        prefix=tuple(every(a.item(index), b.item(index)) for index in range(longest)),
        rest=every(a.rest, b.rest),
        low=low,
        high=high,
        containing=_joined(a.containing, b.containing),
        unique=a.unique or b.unique,
    )


_T = TypeVar("_T")


def _joined(a: tuple[_T, ...], b: tuple[_T, ...]) -> tuple[_T, ...]:
    return a if not b or a is b else tuple(dict.fromkeys((*a, *b)))


def _least(a: int | None, b: int | None) -> int | None:
    if a is None or b is None:
        return b if a is None else a
    return min(a, b)
