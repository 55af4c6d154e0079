"""Instances in the spelling that answers have: keys in the schema's order, numbers plain."""

from __future__ import annotations

import json
from decimal import Decimal

from octavo.text.grammars.schema.document import Document, Node

BESIDE = ("allOf", "anyOf", "oneOf")
BELOW = ("not", "if", "then", "else")
ITEMS = ("items", "additionalItems", "contains", "unevaluatedItems", "prefixItems")


def spelled(value: object, document: Document | None, nodes: list[Node]) -> str:
    """Return a value as JSON; nodes: the schemas that look at it."""
    seen = [] if document is None else looking(document, nodes)
    if isinstance(value, dict):
        order = {name: at for at, name in enumerate(named(seen))}
        keys = sorted(value, key=lambda name: order.get(name, len(order)))
        parts = [
            f"{json.dumps(key, ensure_ascii=False)}: "
            + spelled(value[key], document, below(document, seen, key))
            for key in keys
        ]
        return "{" + ", ".join(parts) + "}"
    if isinstance(value, list):
        parts = [spelled(one, document, items(document, seen, at)) for at, one in enumerate(value)]
        return "[" + ", ".join(parts) + "]"
    if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
        number = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
        whole = number == number.to_integral_value()
        return str(int(number)) if whole else f"{number:f}"
    return json.dumps(value, ensure_ascii=False)


def looking(document: Document, nodes: list[Node]) -> list[tuple[Node, str]]:
    """Return all keywords that look at the same value, in reading order."""
    found: list[tuple[Node, str]] = []
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        if node in seen or not isinstance(node.schema, dict):
            return
        seen.add(node)
        for keyword in node.schema:
            found.append((node, keyword))
            for other in beside(document, node, keyword):
                visit(other)

    for node in nodes:
        visit(node)
    return found


def beside(document: Document, node: Node, keyword: str) -> list[Node]:
    """Return the schemas that a keyword has look at the same value."""
    value = node.schema[keyword]
    if keyword == "$ref":
        return [document.referred(node)]
    if keyword == "$dynamicRef":
        return [document.dynamically_referred(node)]
    if keyword in BESIDE:
        return [document.child(node, keyword, at) for at in range(len(value))]
    if keyword in BELOW:
        return [document.child(node, keyword)]
    if keyword in ("dependentSchemas", "dependencies"):
        names = [name for name, part in value.items() if isinstance(part, dict | bool)]
        return [document.child(node, keyword, name) for name in names]
    return []


def named(seen: list[tuple[Node, str]]) -> list[str]:
    """Return keys in the order in which schemas name them: with values first, then wanted ones."""
    first: list[str] = []
    then: list[str] = []
    for node, keyword in seen:
        value = node.schema[keyword]
        if keyword == "properties":
            first += value
        elif keyword in ("const", "enum"):
            for one in value if keyword == "enum" else [value]:
                first += one if isinstance(one, dict) else ()
        elif keyword == "required" and isinstance(value, list):
            then += value
        elif keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for key, of in value.items():
                then += [key, *(of if isinstance(of, list) else ())]
        elif keyword == "propertyNames" and isinstance(value, dict):
            then += [name for name in value.get("enum", ()) if isinstance(name, str)]
    return list(dict.fromkeys([*first, *then]))


def below(document: Document | None, seen: list[tuple[Node, str]], key: str) -> list[Node]:
    """Return the schemas of the value under a key."""
    found: list[Node] = []
    for node, keyword in seen if document is not None else ():
        value = node.schema[keyword]
        if keyword == "properties" and key in value:
            found.append(document.child(node, keyword, key))
        elif keyword == "patternProperties":
            found += [document.child(node, keyword, pattern) for pattern in value]
        elif keyword in ("additionalProperties", "unevaluatedProperties"):
            found.append(document.child(node, keyword))
    return found


def items(document: Document | None, seen: list[tuple[Node, str]], at: int) -> list[Node]:
    """Return the schemas of an item."""
    found: list[Node] = []
    for node, keyword in seen if document is not None else ():
        if keyword not in ITEMS:
            continue
        if not isinstance(node.schema[keyword], list):
            found.append(document.child(node, keyword))
        elif at < len(node.schema[keyword]):
            found.append(document.child(node, keyword, at))
    return found
