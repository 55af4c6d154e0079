"""What a schema means: a union of shapes, found by joining what its keywords say."""

from __future__ import annotations

from dataclasses import replace

from octavo.text.grammars.schema.document import Document, Node, Refusal, Refused
from octavo.text.grammars.schema.ecma import literal
from octavo.text.grammars.schema.evaluated import Unevaluated
from octavo.text.grammars.schema.logic import (
    FALSE,
    TRUE,
    Every,
    Leaf,
    Not,
    Some,
    Statement,
    every,
    negated,
    some,
)
from octavo.text.grammars.schema.patterns import Patterns
from octavo.text.grammars.schema.scalars import SCALARS
from octavo.text.grammars.schema.shapes import (
    ANYTHING,
    Arrays,
    Constant,
    Meeting,
    Numbers,
    Objects,
    Shape,
    Strings,
)
from octavo.text.grammars.schema.structures import Structures, plain
from octavo.text.grammars.schema.values import some_number

MAX_STEPS = 100_000
"""Pairs of shapes that are looked at for one schema, and keys in them; some 2 us each."""
MAX_COMPARED = 24
"""Shapes of a union of which each is compared with each."""


class Meaning:
    """Knows what the statements of one document mean."""

    def __init__(self, document: Document, patterns: Patterns) -> None:
        self._document = document
        self._patterns = patterns
        self._structures = Structures(document, patterns)
        self._meeting = Meeting(patterns)
        self._unevaluated = Unevaluated(document, self._structures, self._joined)
        self._said: dict[Node, Statement] = {}
        self._open: set[Node] = set()
        self._shapes: dict[tuple[Statement, bool], tuple[Shape, ...]] = {}
        self._known: dict[Statement, bool] = {}
        self._asking: set[Statement] = set()

    def unnamed(self, objects: Objects, name: str) -> Statement:
        """Return what the value under a key must be that an object does not name."""
        return self._meeting.unnamed(objects, name)

    def shapes(self, statement: Statement, *, holds: bool = True) -> tuple[Shape, ...]:
        """Return the values for which a statement holds (or does not).

        Raises RequestError where that takes too much work, or never ends.
        """
        key = (statement, holds)
        known = self._shapes.get(key)
        if known is None:
            known = self._shapes[key] = self._find(statement, holds)
        return known

    def _find(self, statement: Statement, holds: bool) -> tuple[Shape, ...]:
        match statement:
            case Node():
                return self._of_node(statement, holds)
            case Leaf():
                return statement.fits if holds else statement.others
            case Not():
                return self.shapes(statement.of, holds=not holds)
            case Every() | Some():
                parts = [self.shapes(part, holds=holds) for part in statement.parts]
                if isinstance(statement, Every) == holds:
                    return self._shared(parts)
                return self._fewest(tuple(shape for part in parts for shape in part))

    def _of_node(self, node: Node, holds: bool) -> tuple[Shape, ...]:
        if node in self._open:
            raise node.fail("$ref", "it comes back to itself without a value in between")
        self._open.add(node)
        try:
            return self.shapes(self.said(node), holds=holds)
        finally:
            self._open.discard(node)

    def _shared(self, parts: list[tuple[Shape, ...]]) -> tuple[Shape, ...]:
        shared: tuple[Shape, ...] = ANYTHING
        for part in sorted(parts, key=len):
            met: list[Shape] = []
            for a in shared:
                self._check_work()
                both = (self._meeting.of(a, b) for b in part)
                met += [shape for shape in both if shape is not None]
            shared = self._fewest(tuple(met))
        return shared

    def _check_work(self) -> None:
        if self._meeting.steps > MAX_STEPS:
            why = "it is too much work to join all its parts; make it simpler"
            raise Refusal("", "allOf, anyOf, oneOf, not or if", why).error()

    def _fewest(self, shapes: tuple[Shape, ...]) -> tuple[Shape, ...]:
        """Leave out shapes that are part of others."""
        unlike = tuple(dict.fromkeys(shapes))
        if not 1 < len(unlike) <= MAX_COMPARED:
            return unlike
        kept = list(unlike)
        for shape in unlike:
            for other in kept:
                if other is not shape and other.blocked is None and self._covers(other, shape):
                    kept.remove(shape)
                    break
        return tuple(kept)

    def _covers(self, larger: Shape, shape: Shape) -> bool:
        """True if it is certain that a shape is part of another."""
        if type(larger) is not type(shape):
            return False
        plain = replace(shape, blocked=None)
        met = self._meeting.of(plain, larger)
        if met == plain:
            return True
        if not isinstance(met, Objects) or not isinstance(plain, Objects):
            return False
        first, second = dict(met.named), dict(plain.named)
        if first.keys() != second.keys() or replace(met, named=()) != replace(plain, named=()):
            return False
        return all(self._same(value, second[name]) for name, value in first.items())

    def _same(self, one: Statement, other: Statement) -> bool:
        """True if two statements are known to say the same of values without parts."""
        if one == other:
            return True
        try:
            found = set(self.shapes(one))
            return found == set(self.shapes(other)) and all(
                isinstance(shape, Constant | Numbers | Strings) for shape in found
            )
        except Refused:
            return False

    def said(self, node: Node) -> Statement:
        """Return all that a schema says. Raises RequestError."""
        known = self._said.get(node)
        if known is None:
            known = self._said[node] = self._read(node)
        return known

    def _read(self, node: Node) -> Statement:
        schema = node.schema
        if isinstance(schema, bool):
            return TRUE if schema else FALSE
        if "$ref" in schema and node.draft < 2019 and not self._document.names_no_draft:
            return self._document.referred(node)
        parts: list[Statement] = []
        for keyword in schema:
            part = self._joined(node, keyword)
            if part is None and keyword in SCALARS:
                part = SCALARS[keyword](node, self._patterns)
            if part is None:
                part = self._structures.said(node, keyword)
            if part is not None:
                parts.append(part)
        parts.append(self._unevaluated.said(node))
        return every(*parts)

    def _joined(self, node: Node, keyword: str) -> Statement | None:
        """Return what a keyword says that joins other schemas."""
        schema, child = node.schema, self._document.meant
        match keyword:
            case "$ref":
                return plain(self._document.referred(node))
            case "$dynamicRef" if node.draft >= 2020:
                return plain(self._document.dynamically_referred(node))
            case "$recursiveRef" if node.draft == 2019:
                raise node.fail(keyword, "it is not supported: use $ref")
            case "allOf" | "anyOf" | "oneOf":
                if not isinstance(schema[keyword], list) or not schema[keyword]:
                    raise node.fail(keyword, "it must be a list of schemas")
                parts = [
                    plain(child(node, keyword, index)) for index in range(len(schema[keyword]))
                ]
                if keyword == "oneOf":
                    return self._one_of(parts)
                return every(*parts) if keyword == "allOf" else some(*parts)
            case "not":
                return negated(plain(child(node, "not")))
            case "if" if node.draft >= 7:
                return self._if(node)
            case _:
                return None

    def _if(self, node: Node) -> Statement:
        test = plain(self._document.meant(node, "if"))
        then, otherwise = (
            plain(self._document.meant(node, name)) if name in node.schema else TRUE
            for name in ("then", "else")
        )
        if then == otherwise == TRUE:
            return TRUE
        return some(every(test, then), every(negated(test), otherwise))

    def _one_of(self, parts: list[Statement]) -> Statement:
        """Return that exactly one holds; those that cannot hold together need no more words."""
        return some(
            *(
                every(
                    part,
                    *(
                        negated(other)
                        for at, other in enumerate(parts)
                        if at != index and self.has_value(every(part, other))
                    ),
                )
                for index, part in enumerate(parts)
            )
        )

    def has_value(self, statement: Statement) -> bool:
        """True unless it is certain that no value fits."""
        known = self._known.get(statement)
        if known is not None:
            return known
        if statement in self._asking:
            return True
        self._asking.add(statement)
        try:
            known = any(self.possible(shape) for shape in self.shapes(statement))
        finally:
            self._asking.discard(statement)
        self._known[statement] = known
        return known

    def possible(self, shape: Shape) -> bool:
        """True unless it is certain that a shape has no value."""
        match shape:
            case Constant():
                return True
            case Numbers():
                return some_number(shape)
            case Strings():
                if shape.values is not None:
                    return True
                constrained = len(shape.patterns) + bool(shape.low or shape.high is not None) > 1
                return not (
                    constrained
                    and self._patterns.nothing_matches(shape.patterns, shape.low, shape.high)
                )
            case Arrays():
                return all(self.has_value(shape.item(index)) for index in range(min(shape.low, 64)))
            case Objects():
                return self._some_object(shape)

    def never_has(self, strings: Strings, letter: str) -> bool:
        """True if it is certain that no string of a shape has a letter."""
        patterns = (*strings.patterns, literal(letter))
        return self._patterns.nothing_matches(patterns, strings.low, strings.high)

    def _some_object(self, shape: Objects) -> bool:
        named = dict(shape.named)
        if any(
            not self.has_value(named[name] if name in named else self._meeting.unnamed(shape, name))
            for name in shape.required
        ):
            return False
        if not shape.outside or shape.patterns or self.has_value(shape.rest):
            return True
        there = [name for name, value in shape.named if self.has_value(value)]
        return all(any(name not in names for name in there) for names in shape.outside)
