"""Shapes as a schema of few words, which the libraries that make grammars get exactly right."""

from __future__ import annotations

from dataclasses import replace

from octavo.text.grammars.schema.document import Json, Node, Refused
from octavo.text.grammars.schema.hosts import UNLIKE
from octavo.text.grammars.schema.items import longest, positions
from octavo.text.grammars.schema.logic import FALSE, TRUE, Every, Statement
from octavo.text.grammars.schema.meaning import Meaning
from octavo.text.grammars.schema.objects import Presence, allowed, key_rule, outside, presences
from octavo.text.grammars.schema.order import Order
from octavo.text.grammars.schema.shapes import (
    ANYTHING,
    NO_OTHER_HOSTS,
    Arrays,
    Constant,
    Numbers,
    Objects,
    Shape,
    Strings,
)
from octavo.text.grammars.schema.values import interval, only, string


class _Part:
    """A part of the schema that is written once, and referred to from wherever it is used."""

    def __init__(self) -> None:
        self.body: Json = None
        self.uses = 0
        self.name = ""


class Writer:
    """Writes what statements mean; each statement once."""

    def __init__(self, meaning: Meaning, order: Order) -> None:
        self._meaning = meaning
        self._order = order
        self._parts: dict[Statement, _Part] = {}
        self._definitions: dict[str, Json] = {}

    def whole(self, root: Statement) -> Json:
        """Return the schema. Raises RequestError for what cannot be written."""
        written = self._resolved(self._refer(root), ())
        if not self._definitions:
            return written
        return {**written, "$defs": self._definitions}

    def _refer(self, statement: Statement) -> Json:
        """Return a statement as a part, to be put in place or referred to."""
        if statement == TRUE:
            return True
        part = self._parts.get(statement)
        if part is None:
            part = self._parts[statement] = _Part()
            part.body = self._union(statement)
        part.uses += 1
        return part

    def _resolved(self, part: Json, above: tuple[_Part, ...]) -> Json:
        """Return a part with all that it uses; what is used twice goes to the definitions."""
        if isinstance(part, list):
            return [self._resolved(one, above) for one in part]
        if isinstance(part, dict):
            return {key: self._resolved(one, above) for key, one in part.items()}
        if not isinstance(part, _Part):
            return part
        plain = not isinstance(part.body, dict) or part.body.keys() <= {"type", "enum"}
        if plain or part.uses == 1:
            return self._resolved(part.body, (*above, part))
        if not part.name:
            part.name = str(len(self._definitions))
            self._definitions[part.name] = True  # its place: what it is may use it
            self._definitions[part.name] = self._resolved(part.body, ())
        return {"$ref": f"#/$defs/{part.name}"}

    def _union(self, statement: Statement) -> Json:
        try:
            return self._told(statement)
        except Refused as refused:
            where = _pointer(statement)
            if refused.refusal.pointer or not where:
                raise
            raise replace(refused.refusal, pointer=where).error() from None

    def _told(self, statement: Statement) -> Json:
        found = self._meaning.shapes(statement)
        shapes = [shape for shape in found if self._meaning.possible(shape)]
        for shape in shapes:
            if shape.blocked is not None:
                raise shape.blocked.error()
        if set(shapes) >= set(ANYTHING):
            return True
        self._check_hosts(shapes)
        ranks = self._order.ranks(statement)
        ways = [way for shape in shapes for way in self._written(shape, ranks)]
        constants = [value for way in ways for value in way.get("enum", ())]
        ways = [way for way in ways if "enum" not in way]
        if constants:
            ways.insert(0, {"enum": constants})
        if len(ways) == 1:
            return ways[0]
        return {"anyOf": ways} if ways else False

    def _check_hosts(self, shapes: list[Shape]) -> None:
        """Refuse names of hosts beside other strings, among which no stand-in could be told."""
        rules = [one for one in shapes if isinstance(one, Strings) and one.values is None]
        if Strings() in rules or not any(one.of_hosts for one in rules):
            return
        if not all(one.of_hosts or self._meaning.never_has(one, UNLIKE) for one in rules):
            raise NO_OTHER_HOSTS.error()

    def _written(self, shape: Shape, ranks: dict[str, int]) -> list[dict[str, Json]]:
        match shape:
            case Constant():
                return [{"enum": [shape.value]}]
            case Numbers():
                if shape.low is not None and shape.low == shape.high:
                    return [only(shape.low)]
                return [interval(shape)]
            case Strings():
                return [{"enum": list(shape.values)} if shape.values is not None else string(shape)]
            case Arrays():
                ways = [self._array(way) for way in positions(shape, self._meaning)]
                return [way for way in ways if way is not None]
            case Objects():
                return self._objects(shape, ranks)

    def _array(self, arrays: Arrays) -> dict[str, Json] | None:
        high = longest(arrays, self._meaning)
        for index, item in enumerate(arrays.prefix):
            if not self._meaning.has_value(item):
                high = index if high is None else min(high, index)
                break
        if high is not None and arrays.low > high:
            return None
        schema: dict[str, Json] = {"type": "array"}
        prefix = arrays.prefix[:high]
        if prefix:
            schema["prefixItems"] = [self._refer(item) for item in prefix]
        if high is not None and high <= len(prefix):
            schema["items"] = False
        elif arrays.rest != TRUE:
            schema["items"] = self._refer(arrays.rest)
        if arrays.low:
            schema["minItems"] = arrays.low
        if high is not None and high > len(prefix):
            schema["maxItems"] = high
        return schema

    def _objects(self, objects: Objects, ranks: dict[str, int]) -> list[dict[str, Json]]:
        rest = objects.rest if self._meaning.has_value(objects.rest) else FALSE
        closed = rest == FALSE and not objects.patterns
        rule = key_rule(objects, self._meaning, closed=closed)
        names = {*(name for name, _ in objects.named), *objects.required, *(rule.names or ())}
        named = dict(objects.named)
        known = [*named, *objects.required, *(rule.names or ())]
        values: dict[str, Statement] = {}
        for name in sorted(
            names, key=lambda name: (ranks.get(name, len(ranks)), known.index(name))
        ):
            value = named[name] if name in named else self._meaning.unnamed(objects, name)
            fits = self._meaning.has_value(value) and allowed(name, objects, self._meaning)
            values[name] = value if fits else FALSE
        if any(values[name] == FALSE for name in objects.required):
            return []
        patterns = {one: value for one, value in objects.patterns if value != objects.rest}
        if rule.names is not None:
            patterns, rest = {}, FALSE
        elif rule.pattern is not None:
            if patterns:
                raise rule.refusal.error()
            patterns, rest = ({} if rest == FALSE else {rule.pattern: rest}), FALSE
        more = bool(patterns) or rest != FALSE
        found: list[dict[str, Json]] = []
        for way in outside(objects, values, more=more):
            absent = {name: value for name, value in way.named if value == FALSE}
            left = values | {name: FALSE for name in absent}
            found += [
                self._object(left, patterns, rest, one) for one in presences(way, left, more=more)
            ]
        return found

    def _object(
        self,
        values: dict[str, Statement],
        patterns: dict[str, Statement],
        rest: Statement,
        way: Presence,
    ) -> dict[str, Json]:
        schema: dict[str, Json] = {"type": "object"}
        more = not way.closed and (bool(patterns) or rest != FALSE)
        named = {
            name: False if value == FALSE or name in way.absent else self._refer(value)
            for name, value in values.items()
            if more or (value != FALSE and name not in way.absent)
        }
        if named:
            schema["properties"] = named
        if way.required:
            schema["required"] = [name for name in values if name in way.required]
        if not more or rest == FALSE:
            schema["additionalProperties"] = False
        elif rest != TRUE:
            schema["additionalProperties"] = self._refer(rest)
        if more:
            if patterns:
                schema["patternProperties"] = {
                    one: self._refer(value) for one, value in patterns.items()
                }
            if way.low:
                schema["minProperties"] = way.low
            if way.high is not None:
                schema["maxProperties"] = way.high
        return schema


def _pointer(statement: Statement) -> str:
    """Return where a statement stands, or the first of several that are joined."""
    if isinstance(statement, Node):
        return statement.pointer
    parts = statement.parts if isinstance(statement, Every) else ()
    return next((part.pointer for part in parts if isinstance(part, Node)), "")
