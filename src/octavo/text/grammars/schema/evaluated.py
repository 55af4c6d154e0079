"""What unevaluatedProperties and unevaluatedItems say: it depends on which schemas beside hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

from octavo.text.grammars.schema.document import Document, Node
from octavo.text.grammars.schema.logic import TRUE, Leaf, Statement, every, negated, some
from octavo.text.grammars.schema.shapes import Arrays, Objects, all_but
from octavo.text.grammars.schema.structures import Structures, has, lacks, plain

MAX_BRANCHES = 4
"""Of an anyOf that say something about keys or items: all ways are told apart."""
_KEYWORDS = ("unevaluatedProperties", "unevaluatedItems")


@dataclass(frozen=True, slots=True)
class Evaluated:
    """Keys and items that schemas have looked at."""

    names: frozenset[str] = frozenset()
    patterns: frozenset[str] = frozenset()
    every_key: bool = False
    items: int = 0
    every_item: bool = False

    def with_(self, other: Evaluated) -> Evaluated:
        """Return what either has looked at."""
        return Evaluated(
            self.names | other.names,
            self.patterns | other.patterns,
            self.every_key or other.every_key,
            max(self.items, other.items),
            self.every_item or other.every_item,
        )


NOTHING = Evaluated()
_Way = tuple[Statement, Evaluated]
"""If it holds, so much has been looked at."""


class Unevaluated:
    """Reads both keywords in one document."""

    def __init__(
        self,
        document: Document,
        structures: Structures,
        joined: Callable[[Node, str], Statement | None],
    ) -> None:
        self._document = document
        self._structures = structures
        self._joined = joined

    def said(self, node: Node) -> Statement:
        """Return what they say about keys and items that nothing else in the schema looks at."""
        if node.draft < 2019 or not any(name in node.schema for name in _KEYWORDS):
            return TRUE
        return some(
            *(every(way, self._rest(node, evaluated)) for way, evaluated in self._ways(node, set()))
        )

    def _rest(self, node: Node, evaluated: Evaluated) -> Statement:
        parts: list[Statement] = []
        if "unevaluatedProperties" in node.schema and not evaluated.every_key:
            keyword = "unevaluatedProperties"
            rest = plain(self._document.child(node, keyword))
            shape = Objects(
                named=tuple((name, TRUE) for name in sorted(evaluated.names)),
                patterns=tuple((pattern, TRUE) for pattern in sorted(evaluated.patterns)),
                rest=rest,
            )
            blocked = node.refusal(keyword, "keys that break it cannot be asked for")
            parts.append(Leaf((*all_but(Objects), shape), (Objects(blocked=blocked),)))
        if "unevaluatedItems" in node.schema and not evaluated.every_item:
            keyword = "unevaluatedItems"
            if any("contains" in below.schema for below in self._beside(node, set())):
                raise node.fail(keyword, "it is not supported beside contains")
            rest = plain(self._document.child(node, keyword))
            items = Arrays(prefix=(TRUE,) * evaluated.items, rest=rest)
            blocked = node.refusal(keyword, "items that break it cannot be asked for")
            parts.append(Leaf((*all_but(Arrays), items), (Arrays(blocked=blocked),)))
        return every(*parts)

    def _beside(self, node: Node, seen: set[Node]) -> list[Node]:
        """Return a schema and those that look at the same value."""
        if node in seen or not isinstance(node.schema, dict):
            return []
        seen.add(node)
        found = [node]
        for below in self._applied(node):
            found += self._beside(below, seen)
        return found

    def _applied(self, node: Node) -> list[Node]:
        below: list[Node] = []
        for keyword, value in node.schema.items():
            if keyword == "$ref":
                below.append(self._document.referred(node))
            elif keyword == "$dynamicRef":
                below.append(self._document.dynamically_referred(node))
            elif keyword in ("allOf", "anyOf", "oneOf"):
                below += [self._document.child(node, keyword, at) for at in range(len(value))]
            elif keyword in ("if", "then", "else"):
                below.append(self._document.child(node, keyword))
            elif keyword == "dependentSchemas":
                below += [self._document.child(node, keyword, name) for name in value]
        return below

    def _ways(self, node: Node, above: set[Node], *, whole: bool = False) -> list[_Way]:
        """Return in which ways a schema may hold, by what has then been looked at.

        whole: the unevaluated keywords of the schema itself count too.
        """
        if not isinstance(node.schema, dict) or node in above:
            return [(TRUE, NOTHING)]
        above = above | {node}
        own = self._own(node, whole=whole)
        ways: list[_Way] = [(TRUE, own)]
        for keyword in node.schema:
            more = self._ways_of(node, keyword, above)
            if any(evaluated != NOTHING for _, evaluated in more):
                ways = [
                    (every(a, b), first.with_(second))
                    for (a, first), (b, second) in product(ways, more)
                ]
        return ways

    def _own(self, node: Node, *, whole: bool) -> Evaluated:
        named, patterns, _ = self._structures.values_of(node)
        prefix, _, rest = self._structures.items_of(node)
        schema = node.schema
        return Evaluated(
            frozenset(name for name, _ in named),
            frozenset(pattern for pattern, _ in patterns),
            "additionalProperties" in schema or (whole and "unevaluatedProperties" in schema),
            len(prefix),
            rest in schema or (whole and "unevaluatedItems" in schema),
        )

    def _ways_of(self, node: Node, keyword: str, above: set[Node]) -> list[_Way]:
        schema, child = node.schema, self._document.child
        match keyword:
            case "$ref":
                return self._ways(self._document.referred(node), above, whole=True)
            case "$dynamicRef":
                return self._ways(self._document.dynamically_referred(node), above, whole=True)
            case "allOf":
                ways: list[_Way] = [(TRUE, NOTHING)]
                for at in range(len(schema[keyword])):
                    more = self._ways(child(node, keyword, at), above, whole=True)
                    ways = [
                        (every(a, b), first.with_(second))
                        for (a, first), (b, second) in product(ways, more)
                    ]
                return ways
            case "anyOf" | "oneOf":
                branches = [child(node, keyword, at) for at in range(len(schema[keyword]))]
                return self._of_branches(node, keyword, branches, above)
            case "if":
                return self._of_if(node, above)
            case "dependentSchemas":
                ways = [(TRUE, NOTHING)]
                for name in schema[keyword]:
                    more = [
                        (every(has(name), way), evaluated)
                        for way, evaluated in self._ways(
                            child(node, keyword, name), above, whole=True
                        )
                    ] + [(lacks(name), NOTHING)]
                    ways = [
                        (every(a, b), first.with_(second))
                        for (a, first), (b, second) in product(ways, more)
                    ]
                return ways
            case _:
                return [(TRUE, NOTHING)]

    def _of_if(self, node: Node, above: set[Node]) -> list[_Way]:
        child = self._document.child
        test = child(node, "if")
        ways: list[_Way] = []
        for holding, name in ((True, "then"), (False, "else")):
            after = self._ways(child(node, name), above, whole=True) if name in node.schema else []
            tests = self._ways(test, above, whole=True) if holding else [(TRUE, NOTHING)]
            condition = plain(test) if holding else negated(plain(test))
            ways += [
                (every(condition, a, b), first.with_(second))
                for (a, first), (b, second) in product(tests, after or [(TRUE, NOTHING)])
            ]
        return ways

    def _of_branches(
        self, node: Node, keyword: str, branches: list[Node], above: set[Node]
    ) -> list[_Way]:
        """Return the ways of an anyOf or oneOf: by which branches hold that look at something."""
        ways = [self._ways(branch, above, whole=True) for branch in branches]
        looking = [
            (branch, of)
            for branch, of in zip(branches, ways, strict=True)
            if any(evaluated != NOTHING for _, evaluated in of)
        ]
        if len(looking) > MAX_BRANCHES and keyword == "anyOf":
            raise node.fail(
                keyword,
                f"beside unevaluated keywords at most {MAX_BRANCHES} branches are told apart",
            )
        found: list[_Way] = []
        for holding in product((True, False), repeat=len(looking)):
            if keyword == "oneOf" and sum(holding) > 1:
                continue
            options: list[list[_Way]] = [
                [(every(plain(branch), way), evaluated) for way, evaluated in of]
                if holds
                else [(negated(plain(branch)), NOTHING)]
                for holds, (branch, of) in zip(holding, looking, strict=True)
            ]
            for chosen in product(*options):
                evaluated = NOTHING
                for _, more in chosen:
                    evaluated = evaluated.with_(more)
                found.append((every(*(way for way, _ in chosen)), evaluated))
        return found
