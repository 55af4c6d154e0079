"""Objects whose keys have a rule or a number, as unions of objects that say it key by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from octavo.text.grammars.schema.document import Node, Refusal
from octavo.text.grammars.schema.logic import FALSE, TRUE, Statement, every
from octavo.text.grammars.schema.scalars import equal_to
from octavo.text.grammars.schema.shapes import Objects, Strings
from octavo.text.grammars.schema.values import single_pattern

if TYPE_CHECKING:
    from octavo.text.grammars.schema.meaning import Meaning

MAX_OPTIONAL = 6
"""Keys that may be there or not where keys are counted: all ways are told apart."""
MAX_WAYS = 256
"""To have keys that a schema does not name."""


@dataclass(frozen=True, slots=True)
class KeyRule:
    """What keys an object may have."""

    refusal: Refusal
    """What is told where it cannot be had beside another rule."""
    names: tuple[str, ...] | None = None
    """Not None: these alone."""
    pattern: str | None = None
    """Not None: those that match."""


def key_rule(objects: Objects, meaning: Meaning, *, closed: bool) -> KeyRule:
    """Return the rule for keys. Raises RequestError for one that no expression says.

    closed: all keys are named, so that each is asked about alone.
    """
    pointer = objects.keys.pointer if isinstance(objects.keys, Node) else ""
    why = "keys have more than one rule, which is supported only for listed names"
    refusal = Refusal(pointer, "`propertyNames`", why)
    if objects.keys == TRUE or closed:
        return KeyRule(refusal)
    strings = [one for one in meaning.shapes(objects.keys) if isinstance(one, Strings)]
    for one in strings:
        if one.blocked is not None:
            raise one.blocked.error()
    if any(one == Strings() for one in strings):
        return KeyRule(refusal)
    if all(one.values is not None for one in strings):
        names = [name for one in strings for name in one.values or ()]
        return KeyRule(refusal, names=tuple(dict.fromkeys(names)))
    patterns = [single_pattern(one) for one in strings]
    if None in patterns:
        raise refusal.error()
    return KeyRule(refusal, pattern="|".join(f"(?:{one})" for one in patterns))


def allowed(name: str, objects: Objects, meaning: Meaning) -> bool:
    """True if an object may have this key."""
    return objects.keys == TRUE or meaning.has_value(every(objects.keys, equal_to(name)))


@dataclass(frozen=True, slots=True)
class Presence:
    """Which keys are there, as far as that is said, and how many keys in all."""

    required: tuple[str, ...]
    absent: tuple[str, ...] = ()
    low: int = 0
    high: int | None = None
    closed: bool = False
    """No other key is there."""


def outside(objects: Objects, values: Mapping[str, Statement], *, more: bool) -> list[Objects]:
    """Return ways to have some key that is none of certain ones; together they are the same."""
    ways = [replace(objects, outside=())]
    for names in objects.outside:
        there = [name for name, value in values.items() if value != FALSE and name not in names]
        ways = [
            replace(way, required=tuple(dict.fromkeys((*way.required, name))))
            for way in ways
            for name in there
        ] + [met for way in ways if more for met in _with_others(way, values)]
        if len(ways) > MAX_WAYS:
            why = "there are too many ways to have a key that they do not name"
            raise Refusal("", "`additionalProperties`", why).error()
    return ways


def _with_others(objects: Objects, values: Mapping[str, Statement]) -> list[Objects]:
    """Return the ways to have a key that is not named: by which of the named ones are there."""
    known = [name for name, value in values.items() if value != FALSE]
    optional = [name for name in known if name not in objects.required]
    if len(optional) > MAX_OPTIONAL:
        why = f"a key beside more than {MAX_OPTIONAL} that may be left out cannot be asked for"
        raise Refusal("", "`additionalProperties`", why).error()
    ways: list[Objects] = []
    for there in product((True, False), repeat=len(optional)):
        chosen = zip(optional, there, strict=True)
        present = (*objects.required, *(name for name, has_it in chosen if has_it))
        absent = tuple((name, FALSE) for name in optional if name not in present)
        low = max(objects.low, len(present) + 1)
        named = tuple(pair for pair in objects.named if pair[0] not in dict(absent))
        ways.append(replace(objects, required=present, named=(*named, *absent), low=low))
    return ways


def presences(objects: Objects, values: Mapping[str, Statement], *, more: bool) -> list[Presence]:
    """Return ways that together are the same, each of which is counted at a glance.

    more: keys that are not among the values may be there too.
    """
    required = objects.required
    optional = [name for name, value in values.items() if value != FALSE and name not in required]
    low = objects.low if objects.low > len(required) else 0
    high = objects.high
    if high is not None and not more and high >= len(required) + len(optional):
        high = None
    if high is not None and high < len(required):
        return []
    if high == len(required):
        return [] if low else [Presence(required, tuple(optional), closed=True)]
    if not low and high is None:
        return [Presence(required)]
    if not optional:
        return [Presence(required, low=low, high=high)] if more or not low else []
    if low == len(required) + 1 and high is None:
        return _first(required, optional, low if more else None)
    return _all_ways(required, optional, low, high, more=more)


def _first(required: tuple[str, ...], optional: list[str], low: int | None) -> list[Presence]:
    """Return one more key than are required: by which of the others comes first."""
    ways = [Presence((*required, name), tuple(optional[:at])) for at, name in enumerate(optional)]
    if low is not None:
        ways.append(Presence(required, tuple(optional), low=low))
    return ways


def _all_ways(
    required: tuple[str, ...], optional: list[str], low: int, high: int | None, *, more: bool
) -> list[Presence]:
    if len(optional) > MAX_OPTIONAL:
        raise Refusal(
            "", "`minProperties` or `maxProperties`",
            f"it is supported beside at most {MAX_OPTIONAL} keys that may be left out",
        ).error()  # fmt: skip
    ways: list[Presence] = []
    for there in product((True, False), repeat=len(optional)):
        present = [name for name, has_it in zip(optional, there, strict=True) if has_it]
        absent = [name for name, has_it in zip(optional, there, strict=True) if not has_it]
        names = (*required, *present)
        if (high is not None and len(names) > high) or (not more and len(names) < low):
            continue
        ways.append(
            Presence(
                names,
                tuple(absent),
                low if len(names) < low else 0,
                high,
                closed=high == len(names) or not more,
            )
        )
    return ways
