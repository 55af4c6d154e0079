"""Numbers of any library, numpy's for one, as Python's: what callers may write for a number."""

from __future__ import annotations

import operator
from numbers import Integral, Real
from typing import TypeGuard


def plain(value: object) -> object:
    """Return a number of any kind as an int or a float; anything else, bools too, as it is."""
    if type(value) in (int, float) or isinstance(value, (bool, str)):
        return value
    try:
        if isinstance(value, Integral):
            return operator.index(value)
        return float(value) if isinstance(value, Real) else value
    except OverflowError:  # a fraction beyond all floats
        return value


def is_whole(value: object) -> TypeGuard[int]:
    """True of an int that is no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> TypeGuard[int | float]:
    """True of an int or a float that is no bool; it may be infinite, or no number at all."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def shown(value: object) -> str:
    """Write a value into an error: as much of it as says what it is."""
    try:
        text = repr(value)
    except ValueError:  # an int with more digits than Python writes
        return f"an int of {value.bit_length()} bits" if isinstance(value, int) else "a value"
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


_SHOWN = 80
