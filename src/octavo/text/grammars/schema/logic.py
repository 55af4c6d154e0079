"""Statements about one JSON value: schemas, what keywords say, and how they are joined."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from octavo.text.grammars.schema.document import Node

if TYPE_CHECKING:
    from octavo.text.grammars.schema.shapes import Shape


@dataclass(frozen=True, slots=True, eq=False)
class Leaf:
    """What a keyword says: the values that fit, and those that do not, as unions of shapes."""

    fits: tuple[Shape, ...]
    others: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Every:
    """All parts hold; with none: any value fits."""

    parts: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Some:
    """At least one part holds; with none: no value fits."""

    parts: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Not:
    """The other one does not hold."""

    of: Statement


Statement: TypeAlias = Node | Leaf | Every | Some | Not

TRUE = Every(())
FALSE = Some(())


def every(*parts: Statement) -> Statement:
    """Join by "and"; nested ones are flattened, what is said twice is said once.

    A statement and its opposite are never both true.
    """
    flat: dict[Statement, None] = {}
    for part in parts:
        for one in part.parts if isinstance(part, Every) else (part,):
            flat[one] = None
    if FALSE in flat or any(isinstance(one, Not) and one.of in flat for one in flat):
        return FALSE
    return next(iter(flat)) if len(flat) == 1 else Every(tuple(flat))


def some(*parts: Statement) -> Statement:
    """Join by "or"; nested ones are flattened, and what is said twice is said once."""
    flat: dict[Statement, None] = {}
    for part in parts:
        for one in part.parts if isinstance(part, Some) else (part,):
            flat[one] = None
    if TRUE in flat:
        return TRUE
    return next(iter(flat)) if len(flat) == 1 else Some(tuple(flat))


def negated(part: Statement) -> Statement:
    """Say the opposite."""
    if isinstance(part, Not):
        return part.of
    if part in (TRUE, FALSE):
        return FALSE if part == TRUE else TRUE
    return Not(part)
