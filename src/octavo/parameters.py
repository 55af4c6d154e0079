"""Settings that name a part together with its parameters: how they are written, read and checked.

A part is a row of a table: its name, and a callable whose keyword arguments are its parameters.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

from octavo.contract.numbers import plain
from octavo.errors import ConfigError

Value: TypeAlias = str | int | float | bool
_Row = TypeVar("_Row")

NAME = "name"
_LARGEST = 10**12
"""Of a number: products of two can still be counted."""

_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "float": (int, float),
    "bool": (bool,),
}
_ITEM = re.compile(
    r"""\s*(?P<key>[A-Za-z_]\w*|"\w+"|'\w+')\s*:\s*(?P<value>"[^"]*"|'[^']*'|[^\s,:{}"'][^,:{}"']*)"""
)


def write_setting(what: str, setting: object) -> str:
    """Write a setting as text that `read_setting` reads; text stays as it is.

    setting: a name, such a text, or a mapping with the key name. Raises ConfigError.
    """
    if isinstance(setting, str):
        return setting
    if not isinstance(setting, Mapping):
        raise ConfigError(f"{what} must be a name, or a mapping with a name, got {setting!r:.80}")
    fields = dict(cast("Mapping[object, object]", setting))
    checked = _check_fields(what, fields)
    return json.dumps(checked)


def read_setting(what: str, text: str) -> tuple[str, dict[str, Value]]:
    """Read a name, `{name: x, key: value}` or a JSON object; returns the name and the parameters.

    Raises ConfigError.
    """
    if not text.lstrip().startswith("{"):
        return text, {}
    try:
        fields = read_json(what, text)
    except ConfigError:  # a ValueError too
        raise
    except ValueError:
        fields = _read_flow(what, text)
    assert isinstance(fields, dict)  # it begins with a brace
    checked = _check_fields(what, cast("dict[object, object]", fields))
    name = checked.pop(NAME)
    assert isinstance(name, str)
    return name, checked


def read_json(what: str, text: str) -> object:
    """Read JSON. Raises ConfigError for a key that stands twice, ValueError for what is no JSON."""

    def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
        fields: dict[str, object] = {}
        for key, value in pairs:
            if key in fields:
                raise _Twice(key)
            fields[key] = value
        return fields

    try:
        return json.loads(text, object_pairs_hook=unique)
    except _Twice as error:
        raise _given_twice(what, text, error.args[0]) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class _Twice(Exception):
    """An object has a key more than once."""


def _given_twice(what: str, text: str, key: str) -> ConfigError:
    return ConfigError(f"{what} {text:.80} gives {key} twice: leave one out")


def with_parameters(
    what: str, name: str, row: Callable[..., _Row], parameters: Mapping[str, Value]
) -> Callable[[], _Row]:
    """Return a callable that makes the part with its parameters; one is made to see that it can be.

    Raises ConfigError for a parameter that it does not have or of another type, or a bad value.
    """
    make = _bound(what, name, row, parameters) if parameters else row
    try:
        make()
    except ConfigError as error:
        raise ConfigError(f"{what} {name}: {error}") from None
    return make


def _bound(
    what: str, name: str, row: Callable[..., _Row], parameters: Mapping[str, Value]
) -> Callable[[], _Row]:
    known = _parameters(row)
    for key, value in parameters.items():
        if key not in known:
            has = ", ".join(f"{one} ({kind})" for one, kind in known.items()) or "none"
            raise ConfigError(f"{what} {name} has no parameter {key!r}; it has: {has}")
        kinds = _KINDS.get(known[key])
        if kinds is None:
            continue
        if not isinstance(value, kinds) or (isinstance(value, bool) and known[key] != "bool"):
            raise ConfigError(
                f"{what} {name}: {key} must be of type {known[key]}, got {value!r:.80}"
            )
        if isinstance(value, (int, float)) and not abs(value) <= _LARGEST:  # nor is NaN
            raise ConfigError(
                f"{what} {name}: {key} must be a number of at most {_LARGEST:.0e} in size, "
                f"got {value!r:.80}"
            )
    return partial(row, **parameters)


def _parameters(row: Callable[..., Any]) -> dict[str, str]:
    """Return the keyword arguments of a callable, with the name of their type; "": not told."""
    found: dict[str, str] = {}
    for one in inspect.signature(row).parameters.values():
        if one.kind not in (one.KEYWORD_ONLY, one.POSITIONAL_OR_KEYWORD):
            continue
        hint = one.annotation
        if hint is one.empty:
            hint = "" if one.default is one.empty or one.default is None else type(one.default)
        found[one.name] = hint if isinstance(hint, str) else getattr(hint, "__name__", "")
    return found


def _check_fields(what: str, fields: dict[object, object]) -> dict[str, Value]:
    checked: dict[str, Value] = {}
    for key, given in fields.items():
        value = plain(given)
        if not isinstance(key, str):
            raise ConfigError(f"{what}: the names of parameters must be text, got {key!r}")
        if not isinstance(value, str | int | float):
            raise ConfigError(
                f"{what}: {key} must be a text, a number or a bool, got {value!r:.80}"
            )
        checked[key] = value
    name = checked.get(NAME)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{what} {fields!r:.80} names nothing: give {{name: lru}}, for example")
    return checked


def _read_flow(what: str, text: str) -> dict[str, Value]:
    """Read a flat mapping in YAML's flow style: bare words are text, true and false bools."""
    stripped = text.strip()
    inside, end = stripped[1:-1].strip(), stripped[-1]
    fields: dict[str, Value] = {}
    while inside and end == "}":
        item = _ITEM.match(inside)
        rest = "" if item is None else inside[item.end() :].lstrip()
        if item is None or (rest and rest[0] != ","):
            break
        key = item["key"].strip("\"'")
        if key in fields:
            raise _given_twice(what, text, key)
        fields[key] = _scalar(item["value"].strip())
        inside = rest[1:].lstrip()
        if not inside:
            return fields
    raise ConfigError(
        f"{what} {text:.80} cannot be read: write a name, or {{name: lfu, remember: 4}}, or JSON"
    )


def _scalar(text: str) -> Value:
    if text[0] in "\"'":
        return text[1:-1]
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return text
    return value if isinstance(value, bool | int | float) else text
