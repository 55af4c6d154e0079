"""In which order the keys of an object are written: as the schema first names them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from octavo.text.grammars.schema.document import Document, Json, Node
from octavo.text.grammars.schema.logic import Every, Leaf, Not, Some, Statement

_Said: TypeAlias = Callable[[str, Json], list[str]]
_BESIDE = ("allOf", "anyOf", "oneOf")
_BELOW = ("not", "if", "then", "else")


class Order:
    """Ranks keys for one document."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._known: dict[tuple[Node, _Said], tuple[str, ...]] = {}

    def ranks(self, statement: Statement) -> dict[str, int]:
        """Return the place of each key that schemas name which look at this very value."""
        names: dict[str, None] = {}
        for said in (_given, _wanted):
            self._collect(statement, said, names)
        return {name: rank for rank, name in enumerate(names)}

    def _collect(self, statement: Statement, said: _Said, names: dict[str, None]) -> None:
        match statement:
            case Node():
                names.update(dict.fromkeys(self._of(statement, said)))
            case Not():
                self._collect(statement.of, said, names)
            case Every() | Some():
                for part in statement.parts:
                    self._collect(part, said, names)
            case Leaf():
                for shape in statement.fits:
                    for name, _ in getattr(shape, "named", ()):
                        names.setdefault(name)

    def _of(self, node: Node, said: _Said) -> tuple[str, ...]:
        known = self._known.get((node, said))
        if known is None:
            self._known[node, said] = ()  # of one that comes back to itself: named already
            names: dict[str, None] = {}
            if isinstance(node.schema, dict):
                for keyword, value in node.schema.items():
                    names.update(dict.fromkeys(said(keyword, value)))
                    for below in self._beside(node, keyword, value):
                        names.update(dict.fromkeys(self._of(below, said)))
            known = self._known[node, said] = tuple(names)
        return known

    def _beside(self, node: Node, keyword: str, value: Json) -> list[Node]:
        """Return the schemas that a keyword has look at the same value."""
        child = self._document.child
        below: list[Node] = []
        if keyword == "$ref":
            below = [self._document.referred(node)]
        elif keyword == "$dynamicRef":
            below = [self._document.dynamically_referred(node)]
        elif keyword in _BESIDE and isinstance(value, list):
            below = [child(node, keyword, index) for index in range(len(value))]
        elif keyword in _BELOW:
            below = [child(node, keyword)]
        elif keyword in ("dependentSchemas", "dependencies") and isinstance(value, dict):
            below = [
                child(node, keyword, name)
                for name, part in value.items()
                if isinstance(part, dict | bool)
            ]
        return below


def _given(keyword: str, value: Json) -> list[str]:
    """Return keys for whose values a keyword has a schema, or of a value that it shows."""
    if keyword == "properties" and isinstance(value, dict):
        return list(value)
    if keyword in ("const", "enum"):
        values = value if keyword == "enum" and isinstance(value, list) else [value]
        return [name for one in values if isinstance(one, dict) for name in one]
    return []


def _wanted(keyword: str, value: Json) -> list[str]:
    """Return keys that a keyword wants, or lets depend on others."""
    if keyword == "required" and isinstance(value, list):
        return [name for name in value if isinstance(name, str)]
    if keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
        pairs = value.items() if isinstance(value, dict) else ()
        return [name for key, of in pairs for name in (key, *(of if isinstance(of, list) else ()))]
    if keyword == "propertyNames" and isinstance(value, dict):
        return [name for name in value.get("enum", ()) if isinstance(name, str)]
    return []
