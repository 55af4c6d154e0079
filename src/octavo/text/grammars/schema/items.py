"""Arrays that contain something, or no item twice, as unions of arrays that say it item by item."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from typing import TYPE_CHECKING

from octavo.text.grammars.schema.document import Json
from octavo.text.grammars.schema.logic import FALSE, Statement, every, negated
from octavo.text.grammars.schema.scalars import equal_to
from octavo.text.grammars.schema.shapes import Arrays, Constant, Containing, Numbers, Strings

if TYPE_CHECKING:
    from octavo.text.grammars.schema.meaning import Meaning

MAX_WAYS = 512
"""Arrays in such a union."""
MAX_LENGTH = 16
"""Items that are looked at one by one."""


def positions(arrays: Arrays, meaning: Meaning) -> list[Arrays]:
    """Return arrays that together are the same. Raises RequestError where they are too many."""
    ways = [replace(arrays, containing=(), unique=None)]
    for containing in arrays.containing:
        ways = [met for way in ways for met in _with(way, containing, meaning)]
        if len(ways) > MAX_WAYS:
            raise containing.refusal.error()
    if arrays.unique is None:
        return ways
    return [met for way in ways for met in _unlike(replace(way, unique=arrays.unique), meaning)]


def longest(arrays: Arrays, meaning: Meaning) -> int | None:
    """Return how many items fit at most; None: there is no such number."""
    if not meaning.has_value(arrays.rest):
        prefix = len(arrays.prefix)
        return prefix if arrays.high is None else min(prefix, arrays.high)
    return arrays.high


def _with(arrays: Arrays, containing: Containing, meaning: Meaning) -> list[Arrays]:
    if not containing.low and containing.high is None:
        return [arrays]
    if containing.high == 0:
        return [] if containing.low else [_none(arrays, containing)]
    most = longest(arrays, meaning)
    if most is None or most > MAX_LENGTH:
        raise containing.refusal.error()
    if containing.high is None:
        return [
            _placed(arrays, dict.fromkeys(places, containing.item), max(places) + 1)
            for places in combinations(range(containing.start, most), containing.low)
        ]
    found: list[Arrays] = []
    for length in range(arrays.low, most + 1):
        places = range(containing.start, length)
        if 1 << len(places) > MAX_WAYS:
            raise containing.refusal.error()
        for chosen in product((True, False), repeat=len(places)):
            if containing.low <= sum(chosen) <= containing.high:
                items = {
                    place: containing.item if there else negated(containing.item)
                    for place, there in zip(places, chosen, strict=True)
                }
                found.append(replace(_placed(arrays, items, length), high=length))
    return found


def _none(arrays: Arrays, containing: Containing) -> Arrays:
    without = negated(containing.item)
    length = max(len(arrays.prefix), containing.start)
    return replace(
        arrays,
        prefix=tuple(
            every(arrays.item(at), without) if at >= containing.start else arrays.item(at)
            for at in range(length)
        ),
        rest=every(arrays.rest, without),
    )


def _placed(arrays: Arrays, items: dict[int, Statement], low: int) -> Arrays:
    length = (
        max(len(arrays.prefix), *(place + 1 for place in items), 0) if items else len(arrays.prefix)
    )
    prefix = tuple(
        every(arrays.item(at), items[at]) if at in items else arrays.item(at)
        for at in range(length)
    )
    return replace(arrays, prefix=prefix, low=max(arrays.low, low))


def _unlike(arrays: Arrays, meaning: Meaning) -> list[Arrays]:
    """Return arrays of which no two items are equal."""
    refusal = arrays.unique
    assert refusal is not None, "only called for such"
    plain = replace(arrays, unique=None)
    most = longest(arrays, meaning)
    if most is not None and most <= 1:
        return [plain]
    if most is not None and most <= MAX_LENGTH:
        pairs = combinations([arrays.item(at) for at in range(most)], 2)
        if not any(meaning.has_value(every(a, b)) for a, b in pairs):
            return [plain]
    found: list[Arrays] = []
    for values in _rows(arrays, meaning, most):
        if values is None or len(found) > MAX_WAYS:
            raise refusal.error()
        items = tuple(equal_to(value) for value in values)
        found.append(Arrays(prefix=items, rest=FALSE, low=len(items), high=len(items)))
    return found


def _rows(arrays: Arrays, meaning: Meaning, most: int | None) -> Iterator[list[Json] | None]:
    """Yield all rows of values that differ; None: they are not to be listed."""
    values = [_listed(arrays.item(at), meaning) for at in range(len(arrays.prefix))]
    rest = _listed(arrays.rest, meaning)
    rows: list[list[Json]] = [[]]
    length = 0
    while rows and (most is None or length <= most):
        if length >= arrays.low:
            yield from rows
        next_ = values[length] if length < len(values) else rest
        if next_ is None or len(rows) > MAX_WAYS:
            if most is None or length < most:
                yield None
            return
        rows = [
            [*row, value]
            for row in rows
            for value in next_
            if not any(_equal(value, one) for one in row)
        ]
        length += 1


def _equal(a: Json, b: Json) -> bool:
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def _listed(statement: Statement, meaning: Meaning) -> list[Json] | None:
    """Return all values, where they are few and none has parts."""
    values: list[Json] = []
    for shape in meaning.shapes(statement):
        if shape.blocked is not None:
            return None
        match shape:
            case Constant():
                values.append(shape.value)
            case Strings() if shape.values is not None:
                values += shape.values
            case Numbers() if shape.low is not None and shape.low == shape.high:
                values.append(shape.low)
            case _:
                return None
    return values
