"""What the keywords about arrays and objects say."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

from octavo.text.grammars.schema.document import Document, Json, Node
from octavo.text.grammars.schema.logic import FALSE, TRUE, Leaf, Statement, every, negated, some
from octavo.text.grammars.schema.patterns import Patterns
from octavo.text.grammars.schema.scalars import count, pattern_of
from octavo.text.grammars.schema.shapes import Arrays, Containing, Objects, Shape, all_but


class Structures:
    """Reads the keywords about arrays and objects in one document."""

    def __init__(self, document: Document, patterns: Patterns) -> None:
        self._document = document
        self._patterns = patterns
        self._says: Mapping[str, Callable[[Node], Statement]] = {
            "prefixItems": self._items,
            "items": self._items,
            "additionalItems": self._items,
            "minItems": self._min_items,
            "maxItems": self._max_items,
            "contains": self._contains,
            "uniqueItems": self._unique,
            "properties": self._values,
            "patternProperties": self._values,
            "additionalProperties": self._values,
            "required": self._required,
            "minProperties": self._min_properties,
            "maxProperties": self._max_properties,
            "propertyNames": self._names,
            "dependentRequired": self._dependent_required,
            "dependentSchemas": self._dependent_schemas,
            "dependencies": self._dependencies,
        }

    def said(self, node: Node, keyword: str) -> Statement | None:
        """Return what a keyword says; None: it is not about arrays or objects.

        Those that are read together say it all at the first of them.
        """
        say = self._says.get(keyword)
        return None if say is None else say(node)

    def _items(self, node: Node) -> Statement:
        prefix, rest, where = self.items_of(node)
        fits = Arrays(prefix=prefix, rest=rest)
        others: list[Shape] = [
            Arrays(prefix=(*(TRUE,) * index, negated(item)), low=index + 1)
            for index, item in enumerate(prefix)
            if item != TRUE
        ]
        if rest == FALSE:
            others.append(Arrays(low=len(prefix) + 1))
        elif rest != TRUE:
            why = "some item that does not fit can be asked for only where maxItems bounds them"
            found = Containing(negated(rest), len(prefix), 1, None, node.refusal(where, why))
            others.append(Arrays(containing=(found,)))
        return Leaf((*all_but(Arrays), fits), tuple(others))

    def items_of(self, node: Node) -> tuple[tuple[Statement, ...], Statement, str]:
        """Return what the first items must be, what the others, and which keyword says so."""
        schema = node.schema
        items = schema.get("items", True)
        first, rest = "prefixItems", "items"
        if isinstance(items, list):
            if node.draft >= 2020 and not self._document.names_no_draft:
                raise node.fail("items", "a list of schemas is written prefixItems in this draft")
            first, rest = "items", "additionalItems"
        elif node.draft < 2020 and "prefixItems" in schema and not self._document.names_no_draft:
            first = ""
        given = schema.get(first, [])
        if not isinstance(given, list):
            raise node.fail(first, "it must be a list of schemas")
        prefix = tuple(self._document.meant(node, first, index) for index in range(len(given)))
        behind = self._document.meant(node, rest) if rest in schema else TRUE
        return tuple(map(plain, prefix)), plain(behind), rest

    def _min_items(self, node: Node) -> Statement:
        low = count(node, "minItems")
        return Leaf((*all_but(Arrays), Arrays(low=low)), (Arrays(high=low - 1),) if low else ())

    def _max_items(self, node: Node) -> Statement:
        high = count(node, "maxItems")
        return Leaf((*all_but(Arrays), Arrays(high=high)), (Arrays(low=high + 1),))

    def _contains(self, node: Node) -> Statement:
        if node.draft < 6:
            return TRUE
        low, high = 1, None
        if node.draft >= 2019:
            low = count(node, "minContains") if "minContains" in node.schema else 1
            high = count(node, "maxContains") if "maxContains" in node.schema else None
        item = plain(self._document.meant(node, "contains"))
        refusal = node.refusal("contains", "it is supported only where maxItems bounds the items")
        fits: list[Shape] = [*all_but(Arrays)]
        fits.append(Arrays(containing=(Containing(item, 0, low, high, refusal),)))
        others: list[Shape] = []
        if low:
            others.append(Arrays(containing=(Containing(item, 0, 0, low - 1, refusal),)))
        if high is not None:
            others.append(Arrays(containing=(Containing(item, 0, high + 1, None, refusal),)))
        return Leaf(tuple(fits), tuple(others))

    def _unique(self, node: Node) -> Statement:
        if node.schema["uniqueItems"] is not True:
            return TRUE
        why = "it is supported only where the items have few values, or there is at most one"
        refusal = node.refusal("uniqueItems", why)
        return Leaf(
            (*all_but(Arrays), Arrays(unique=refusal)),
            (Arrays(blocked=node.refusal("uniqueItems", "equal items cannot be asked for")),),
        )

    def _values(self, node: Node) -> Statement:
        named, patterns, rest = self.values_of(node)
        blocked = None
        for (one, _), (other, _) in combinations(patterns, 2):
            if not self._patterns.share_nothing(one, other):
                why = f"keys may match both {one} and {other}, which is not supported"
                blocked = node.refusal("patternProperties", why)
        fits = Objects(named=named, patterns=patterns, rest=rest, blocked=blocked)
        others: list[Shape] = [
            Objects(named=((name, negated(value)),), required=(name,))
            for name, value in named
            if value != TRUE
        ]
        for keyword, values in (
            ("patternProperties", [value for _, value in patterns]),
            ("additionalProperties", [rest]),
        ):
            if all(value == TRUE for value in values):
                continue
            if rest == FALSE and not patterns:
                others.append(Objects(outside=(tuple(name for name, _ in named),)))
            else:
                why = "keys that break it cannot be asked for"
                others.append(Objects(blocked=node.refusal(keyword, why)))
        return Leaf((*all_but(Objects), fits), tuple(others))

    def values_of(
        self, node: Node
    ) -> tuple[tuple[tuple[str, Statement], ...], tuple[tuple[str, Statement], ...], Statement]:
        """Return what values must be: by name, by pattern, and of all other keys."""
        schema, child = node.schema, self._document.meant
        for keyword in ("properties", "patternProperties"):
            if not isinstance(schema.get(keyword, {}), dict):
                raise node.fail(keyword, "it must be an object")
        by_pattern: dict[str, Statement] = {}
        for pattern in schema.get("patternProperties", {}):
            spelled = pattern_of(node, "patternProperties", pattern, self._patterns)
            value = plain(child(node, "patternProperties", pattern))
            by_pattern[spelled] = every(by_pattern.get(spelled, TRUE), value)
        named = tuple(
            (
                name,
                every(
                    plain(child(node, "properties", name)),
                    *(of for one, of in by_pattern.items() if self._patterns.found(one, name)),
                ),
            )
            for name in schema.get("properties", {})
        )
        has_rest = "additionalProperties" in schema
        rest = plain(child(node, "additionalProperties")) if has_rest else TRUE
        return named, tuple(by_pattern.items()), rest

    def _required(self, node: Node) -> Statement:
        value = node.schema["required"]
        if isinstance(value, bool) and node.draft == 4:
            return TRUE
        return _has(_names(node, "required", value))

    def _min_properties(self, node: Node) -> Statement:
        low = count(node, "minProperties")
        return Leaf((*all_but(Objects), Objects(low=low)), (Objects(high=low - 1),) if low else ())

    def _max_properties(self, node: Node) -> Statement:
        high = count(node, "maxProperties")
        return Leaf((*all_but(Objects), Objects(high=high)), (Objects(low=high + 1),))

    def _names(self, node: Node) -> Statement:
        if node.draft < 6:
            return TRUE
        keys = plain(self._document.meant(node, "propertyNames"))
        others: tuple[Shape, ...] = (Objects(low=1),)
        if keys == TRUE:
            others = ()
        elif keys != FALSE:
            why = "keys that break it cannot be asked for"
            others = (Objects(blocked=node.refusal("propertyNames", why)),)
        return Leaf((*all_but(Objects), Objects(keys=keys)), others)

    def _dependent_required(self, node: Node) -> Statement:
        return self._depends(node, "dependentRequired") if node.draft >= 2019 else TRUE

    def _dependent_schemas(self, node: Node) -> Statement:
        return self._depends(node, "dependentSchemas") if node.draft >= 2019 else TRUE

    def _dependencies(self, node: Node) -> Statement:
        return self._depends(node, "dependencies")

    def _depends(self, node: Node, keyword: str) -> Statement:
        given = node.schema[keyword]
        if not isinstance(given, dict):
            raise node.fail(keyword, "it must be an object")
        parts: list[Statement] = []
        for name, value in given.items():
            if isinstance(value, list):
                then = _has(_names(node, keyword, value))
            elif isinstance(value, str):
                then = _has((value,))
            else:
                then = plain(self._document.meant(node, keyword, name))
            parts.append(some(lacks(name), every(then, has(name))))
        return every(*parts)


def plain(node: Statement) -> Statement:
    """Return the statement of a schema; of one that says nothing, or forbids all, as such."""
    if isinstance(node, Node):
        if node.schema is False:
            return FALSE
        if node.schema is True or node.schema == {}:
            return TRUE
    return node


def has(name: str) -> Statement:
    """Say that an object has a key; other values do not."""
    return Leaf((Objects(required=(name,)),), (*all_but(Objects), Objects(named=((name, FALSE),))))


def lacks(name: str) -> Statement:
    """Say that it is no object, or one without a key."""
    return negated(has(name))


def _has(names: tuple[str, ...]) -> Statement:
    return Leaf(
        (*all_but(Objects), Objects(required=names)),
        tuple(Objects(named=((name, FALSE),)) for name in names),
    )


def _names(node: Node, keyword: str, value: Json) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise node.fail(keyword, "it must be a list of names")
    return tuple(dict.fromkeys(value))
