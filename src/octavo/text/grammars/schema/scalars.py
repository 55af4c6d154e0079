"""What the keywords about types, numbers and strings say, and equality with a given value."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from decimal import Decimal

from octavo.errors import RequestError
from octavo.text.grammars.schema.document import Json, Node, quoted
from octavo.text.grammars.schema.formats import REFUSED, expressions
from octavo.text.grammars.schema.logic import FALSE, TRUE, Leaf, Statement, negated, some
from octavo.text.grammars.schema.patterns import Patterns
from octavo.text.grammars.schema.shapes import (
    ANYTHING,
    Arrays,
    Constant,
    Numbers,
    Objects,
    Shape,
    Strings,
    all_but,
)

MAX_COUNT = 1 << 20
"""Of items, keys or letters that a schema may name."""

_BASE64 = r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_TYPES: Mapping[str, tuple[Shape, ...]] = {
    "null": (Constant(None),),
    "boolean": (Constant(False), Constant(True)),
    "number": (Numbers(),),
    "integer": (Numbers(integer=True),),
    "string": (Strings(),),
    "array": (Arrays(),),
    "object": (Objects(),),
}


def _type(node: Node, patterns: Patterns) -> Statement:
    value = node.schema["type"]
    names = value if isinstance(value, list) else [value]
    if not all(isinstance(name, str) and name in _TYPES for name in names):
        raise node.fail("type", f"it must be one of {', '.join(_TYPES)}")
    wanted = [name for name in names if name != "integer" or "number" not in names]
    fits = tuple(dict.fromkeys(shape for name in wanted for shape in _TYPES[name]))
    plain = [replace(s, integer=False) if isinstance(s, Numbers) else s for s in fits]
    others: list[Shape] = [shape for shape in ANYTHING if shape not in plain]
    if "integer" in wanted:
        why = "numbers that are not whole cannot be asked for"
        others.append(Numbers(blocked=node.refusal("type", why)))
    return Leaf(fits, tuple(others))


def equal_to(value: Json) -> Statement:
    """Say that it is this value."""
    if value is None or isinstance(value, bool):
        shape = Constant(value)
        return Leaf((shape,), tuple(one for one in ANYTHING if one != shape))
    if isinstance(value, str):
        return _one_of_strings((value,))
    if isinstance(value, list):
        return _equal_list(value)
    if isinstance(value, dict):
        return _equal_object(value)
    number = Decimal(value)
    return Leaf(
        (Numbers(low=number, high=number),),
        (
            *all_but(Numbers),
            Numbers(high=number, high_open=True),
            Numbers(low=number, low_open=True),
        ),
    )


def _one_of_strings(values: tuple[str, ...]) -> Statement:
    unlike = (*all_but(Strings), Strings(excluded=values))
    return Leaf((Strings(values=values),), unlike)


def _equal_list(value: list[Json]) -> Statement:
    count = len(value)
    items = tuple(equal_to(one) for one in value)
    others: list[Shape] = [*all_but(Arrays), Arrays(low=count + 1)]
    if count:
        others.append(Arrays(high=count - 1))
    others += [
        Arrays(prefix=(*(TRUE,) * index, negated(item)), low=index + 1)
        for index, item in enumerate(items)
    ]
    return Leaf((Arrays(prefix=items, rest=FALSE, low=count, high=count),), tuple(others))


def _equal_object(value: dict[str, Json]) -> Statement:
    named = tuple((name, equal_to(one)) for name, one in value.items())
    keys = tuple(value)
    others: list[Shape] = [*all_but(Objects), Objects(low=len(keys) + 1)]
    for name, statement in named:
        others.append(Objects(named=((name, FALSE),)))
        others.append(Objects(named=((name, negated(statement)),), required=(name,)))
    return Leaf((Objects(named=named, required=keys, high=len(keys)),), tuple(others))


def _const(node: Node, patterns: Patterns) -> Statement:
    return equal_to(node.schema["const"]) if node.draft > 4 else TRUE


def _enum(node: Node, patterns: Patterns) -> Statement:
    values = node.schema["enum"]
    if not isinstance(values, list):
        raise node.fail("enum", "it must be a list")
    strings = tuple(dict.fromkeys(one for one in values if isinstance(one, str)))
    rest = [equal_to(one) for one in values if not isinstance(one, str)]
    return some(*([_one_of_strings(strings)] if strings else []), *rest)


def _number(node: Node, keyword: str) -> Decimal:
    value = node.schema[keyword]
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise node.fail(keyword, "it must be a number")
    return Decimal(value)


def _minimum(node: Node, patterns: Patterns) -> Statement:
    limit = _number(node, "minimum")
    above = node.draft == 4 and node.schema.get("exclusiveMinimum") is True
    return _between(Numbers(low=limit, low_open=above), Numbers(high=limit, high_open=not above))


def _maximum(node: Node, patterns: Patterns) -> Statement:
    limit = _number(node, "maximum")
    below = node.draft == 4 and node.schema.get("exclusiveMaximum") is True
    return _between(Numbers(high=limit, high_open=below), Numbers(low=limit, low_open=not below))


def _exclusive_minimum(node: Node, patterns: Patterns) -> Statement:
    if node.draft == 4 and isinstance(node.schema["exclusiveMinimum"], bool):
        return TRUE
    limit = _number(node, "exclusiveMinimum")
    return _between(Numbers(low=limit, low_open=True), Numbers(high=limit))


def _exclusive_maximum(node: Node, patterns: Patterns) -> Statement:
    if node.draft == 4 and isinstance(node.schema["exclusiveMaximum"], bool):
        return TRUE
    limit = _number(node, "exclusiveMaximum")
    return _between(Numbers(high=limit, high_open=True), Numbers(low=limit))


def _between(fits: Numbers, others: Numbers) -> Statement:
    return Leaf((*all_but(Numbers), fits), (others,))


def _multiple_of(node: Node, patterns: Patterns) -> Statement:
    number = _number(node, "multipleOf")
    if number <= 0:
        raise node.fail("multipleOf", "it must be above 0")
    blocked = node.refusal("multipleOf", "numbers that are not its multiples cannot be asked for")
    return _between(Numbers(multiples=(number,)), Numbers(blocked=blocked))


def count(node: Node, keyword: str) -> int:
    """Return a number of things that a schema names. Raises RequestError."""
    value = _number(node, keyword)
    if value < 0 or value != value.to_integral_value():
        raise node.fail(keyword, "it must be a whole number, at least 0")
    if value > MAX_COUNT:
        raise node.fail(keyword, f"at most {MAX_COUNT} are counted")
    return int(value)


def _min_length(node: Node, patterns: Patterns) -> Statement:
    low = count(node, "minLength")
    return Leaf((*all_but(Strings), Strings(low=low)), (Strings(high=low - 1),) if low else ())


def _max_length(node: Node, patterns: Patterns) -> Statement:
    high = count(node, "maxLength")
    return Leaf((*all_but(Strings), Strings(high=high)), (Strings(low=high + 1),))


def _pattern(node: Node, patterns: Patterns) -> Statement:
    spelled = pattern_of(node, "pattern", node.schema["pattern"], patterns)
    blocked = node.refusal("pattern", "strings that do not match cannot be asked for")
    return Leaf((*all_but(Strings), Strings(patterns=(spelled,))), (Strings(blocked=blocked),))


def pattern_of(node: Node, keyword: str, value: Json, patterns: Patterns) -> str:
    """Return an expression as the library has it. Raises RequestError, quoting it."""
    if not isinstance(value, str):
        raise node.fail(keyword, "it must be a text")
    try:
        return patterns.translated(value)
    except RequestError as error:
        raise node.fail(keyword, f"{error} ({quoted(value)})") from None


def _format(node: Node, patterns: Patterns) -> Statement:
    name = node.schema["format"]
    if not isinstance(name, str):
        raise node.fail("format", "it must be a text")
    if name in REFUSED:
        raise node.fail("format", f"{name} is not asserted: {REFUSED[name]}; leave it out")
    spelled = expressions(name)
    if not spelled:
        return TRUE
    blocked = node.refusal("format", "strings of another format cannot be asked for")
    return Leaf((*all_but(Strings), Strings(patterns=spelled)), (Strings(blocked=blocked),))


def _encoding(node: Node, patterns: Patterns) -> Statement:
    """Of draft 7, where it may be asserted; later drafts only tell what it is."""
    if node.draft != 7:
        return TRUE
    name = node.schema["contentEncoding"]
    if name != "base64":
        raise node.fail("contentEncoding", "in draft 7 base64 alone is supported; leave it out")
    blocked = node.refusal("contentEncoding", "strings of another encoding cannot be asked for")
    return Leaf((*all_but(Strings), Strings(patterns=(_BASE64,))), (Strings(blocked=blocked),))


SCALARS: Mapping[str, Callable[[Node, Patterns], Statement]] = {
    "type": _type,
    "const": _const,
    "enum": _enum,
    "minimum": _minimum,
    "maximum": _maximum,
    "exclusiveMinimum": _exclusive_minimum,
    "exclusiveMaximum": _exclusive_maximum,
    "multipleOf": _multiple_of,
    "minLength": _min_length,
    "maxLength": _max_length,
    "pattern": _pattern,
    "format": _format,
    "contentEncoding": _encoding,
}
