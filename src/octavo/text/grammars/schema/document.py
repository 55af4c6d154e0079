"""A JSON Schema as a document: its subschemas, what their references mean, and its limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin

from octavo.errors import RequestError

Json: TypeAlias = Any  # any JSON value; numbers with a point are Decimal

MAX_DEPTH = 64
"""Of objects and arrays in each other."""
MAX_SUBSCHEMAS = 10_000

_REFERS = frozenset({"$ref", "title", "description", "$comment"})
"""Keywords of a schema that says nothing itself."""
_ONE = (
    "additionalItems", "additionalProperties", "contains", "else", "if", "items", "not",
    "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties", "contentSchema",
)  # fmt: skip
_MANY = ("allOf", "anyOf", "items", "oneOf", "prefixItems")
_NAMED = (
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
)  # fmt: skip

LATEST = 2020
_DRAFTS = {"draft-04": 4, "draft-06": 6, "draft-07": 7, "2019-09": 2019, "2020-12": LATEST}
_SCHEMA = re.compile(
    r"https?://json-schema\.org/(?:draft/)?(draft-0[467]|2019-09|2020-12|schema|next)"
)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a part of a schema is not served."""

    pointer: str
    """Where it stands: a JSON Pointer."""
    keyword: str
    why: str
    part: str = ""
    """What stands there, shortened."""

    def error(self) -> Refused:
        """Return it as what the caller is told."""
        return Refused(self)


class Refused(RequestError):
    """A schema is not served because of one of its parts."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        part = f", got {refusal.part}" if refusal.part else ""
        where = refusal.pointer or "the whole schema"
        super().__init__(
            f"structured_outputs: json: {where}: {refusal.keyword}: {refusal.why}{part}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """One subschema of a document; equal to itself alone."""

    schema: Json = field(repr=False)
    pointer: str
    base: str
    """The URI of the resource it is part of; without a fragment."""
    draft: int

    def refusal(self, keyword: str, why: str) -> Refusal:
        """Return why one of its keywords is not served."""
        value = self.schema.get(keyword) if isinstance(self.schema, dict) else self.schema
        return Refusal(f"{self.pointer}/{escaped(keyword)}", f"`{keyword}`", why, quoted(value))

    def fail(self, keyword: str, why: str) -> RequestError:
        """Return the error of a keyword that cannot be read."""
        return self.refusal(keyword, why).error()


class Document:
    """A schema and all that it may refer to; nothing is fetched from elsewhere."""

    def __init__(self, text: str) -> None:
        schema = _read(text)
        self._root = schema
        self._nodes: dict[str, Node] = {}
        self._anchors: dict[str, Node] = {}
        self._dynamic: dict[str, list[Node]] = {}
        draft = _draft(schema, LATEST)
        self._guess = not (isinstance(schema, dict) and "$schema" in schema)
        self.root = self._walk(schema, "", "", draft)

    def child(self, node: Node, *path: str | int) -> Node:
        """Return the subschema at a place below another."""
        pointer = node.pointer + "".join(f"/{escaped(str(part))}" for part in path)
        found = self._nodes.get(pointer)
        if found is None:
            schema = node.schema
            for part in path:
                schema = schema[part]
            found = self._walk(schema, pointer, node.base, node.draft)
        return found

    def meant(self, node: Node, *path: str | int) -> Node:
        """Return the subschema at a place, or what it stands for if it only refers elsewhere."""
        found = self.child(node, *path)
        for _ in range(MAX_DEPTH):
            schema = found.schema
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            alone = found.draft < 2019 and not self.names_no_draft
            if not alone and not schema.keys() <= _REFERS:
                break
            found = self.referred(found)
        return found

    def referred(self, node: Node, keyword: str = "$ref") -> Node:
        """Return what a reference means. Raises RequestError where it is not in the document."""
        target = node.schema[keyword]
        if not isinstance(target, str):
            raise node.fail(keyword, "it must be a text")
        url, fragment = urldefrag(_joined(node.base, target))
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            found = self._anchors.get(f"{url}#{fragment}")
        else:
            found = self._anchors.get(f"{url}#")
            if found is not None and fragment:
                found = self._below(found, fragment)
        if found is None:
            raise node.fail(
                keyword,
                "it is not in this schema, and nothing is fetched: put it into $defs",
            )
        return found

    def dynamically_referred(self, node: Node) -> Node:
        """Return what a dynamic reference means, where that is the same wherever it is used."""
        found = self.referred(node, "$dynamicRef")
        name = urldefrag(str(node.schema["$dynamicRef"])).fragment
        anchors = self._dynamic.get(name, [])
        if found in anchors and len(anchors) > 1:
            raise node.fail(
                "$dynamicRef",
                f"{len(anchors)} places are named so, and it depends on the way to it which is "
                "meant: use $ref",
            )
        return found

    def _below(self, node: Node, pointer: str) -> Node | None:
        path: list[str | int] = []
        schema = node.schema
        for part in pointer.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            if isinstance(schema, dict) and part in schema:
                path.append(part)
                schema = schema[part]
            elif isinstance(schema, list) and part.isdecimal() and int(part) < len(schema):
                path.append(int(part))
                schema = schema[int(part)]
            else:
                return None
            at = node.pointer + "".join(f"/{escaped(str(step))}" for step in path)
            if at in self._nodes:
                node, path = self._nodes[at], []
        return self.child(node, *path) if path else node

    def _walk(self, schema: Json, pointer: str, base: str, draft: int) -> Node:
        if not isinstance(schema, dict | bool):
            raise Refusal(
                pointer, "schema", "it must be an object, or true or false", quoted(schema)
            ).error()
        if len(self._nodes) >= MAX_SUBSCHEMAS:
            raise Refusal(
                pointer, "schema", f"at most {MAX_SUBSCHEMAS} parts are read: make it smaller"
            ).error()
        draft = _draft(schema, draft, pointer) if isinstance(schema, dict) else draft
        own = _identity(schema, draft) if isinstance(schema, dict) else None
        url = _joined(base, own) if own and not own.startswith("#") else base
        node = Node(schema, pointer, urldefrag(url).url, draft)
        self._nodes[pointer] = node
        self._name(node, own, new_resource=not pointer or url != base)
        if isinstance(schema, dict):
            for path in _subschemas(schema):
                at = pointer + "".join(f"/{escaped(str(part))}" for part in path)
                if at not in self._nodes:
                    below = schema
                    for part in path:
                        below = below[part]
                    self._walk(below, at, node.base, draft)
        return node

    def _name(self, node: Node, own: str | None, *, new_resource: bool) -> None:
        if new_resource:
            self._anchors.setdefault(f"{node.base}#", node)
            if not node.pointer:
                self._anchors.setdefault("#", node)
        if own and own.startswith("#") and len(own) > 1:
            self._anchors.setdefault(node.base + own, node)
        if not isinstance(node.schema, dict):
            return
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = node.schema.get(keyword)
            if isinstance(name, str) and node.draft >= 2019:
                self._anchors.setdefault(f"{node.base}#{name}", node)
                if keyword == "$dynamicAnchor":
                    self._dynamic.setdefault(name, []).append(node)

    @property
    def names_no_draft(self) -> bool:
        """True: it is read leniently, with what either draft knows."""
        return self._guess


def escaped(part: str) -> str:
    """Return a name as a part of a JSON Pointer."""
    return part.replace("~", "~0").replace("/", "~1")


def quoted(value: Json) -> str:
    """Return what stands somewhere, as JSON of at most 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _read(text: str) -> Json:
    try:
        value = json.loads(text, parse_float=Decimal)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"structured_outputs: json is no JSON: {error}") from None
    level = [value]
    for _ in range(MAX_DEPTH):
        level = [below for item in level for below in _inner(item)]
        if not level:
            return value
    raise RequestError(
        f"structured_outputs: json: parts are more than {MAX_DEPTH} deep in each other: make it "
        "flatter"
    )


def _inner(value: Json) -> list[Json]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


def _subschemas(schema: dict[str, Json]) -> Iterator[tuple[str | int, ...]]:
    """Yield where the parts of a schema stand, in their order."""
    for name, value in schema.items():
        if name in _ONE and isinstance(value, dict | bool):
            yield (name,)
        elif name in _MANY and isinstance(value, list):
            yield from ((name, index) for index in range(len(value)))
        elif name in _NAMED and isinstance(value, dict):
            yield from ((name, key) for key, part in value.items() if isinstance(part, dict | bool))


def _draft(schema: Json, default: int, pointer: str = "") -> int:
    named = schema.get("$schema") if isinstance(schema, dict) else None
    if named is None:
        return default
    found = _SCHEMA.match(named) if isinstance(named, str) else None
    if found is None:
        raise Refusal(
            f"{pointer}/$schema", "`$schema`", f"it must name one of {', '.join(_DRAFTS)}",
            quoted(named),
        ).error()  # fmt: skip
    return _DRAFTS.get(found.group(1), LATEST)


def _identity(schema: dict[str, Json], draft: int) -> str | None:
    if draft < 2019 and "$ref" in schema:
        return None
    own = schema.get("id" if draft == 4 else "$id")
    return own if isinstance(own, str) else None


def _joined(base: str, target: str) -> str:
    """Return a reference, resolved; urljoin leaves those of unknown schemes (urn:) alone."""
    if target.startswith("#"):
        return base + target
    try:
        return urljoin(base, target)
    except ValueError:
        return target
