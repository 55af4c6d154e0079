"""Calls whose parameters stand between marks: how they are spelled, and grammars of them.

Texts stand as they are, all other values as JSON. So a text must not hold the mark behind it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from octavo.errors import RequestError
from octavo.text.conversation import Tool
from octavo.text.formats.spelling import (
    LIKE_TEMPLATES,
    MAX_CALLS,
    SPELLING,
    TEXT,
    Texts,
    schema_of,
)
from octavo.text.grammars.schema.ecma import literal, translated
from octavo.text.grammars.schema.formats import REFUSED, expressions

Json = dict[str, object]

_TELL = frozenset(("title", "description", "default", "examples", "$comment", "deprecated"))
"""Keywords that allow all values."""
_OF_TEXTS = _TELL | {"type", "enum", "const", "minLength", "maxLength", "pattern", "format"}
_OF_ALL = _TELL | {
    "type", "properties", "required", "additionalProperties", "$schema", "$id", "$defs",
    "definitions", "strict",
}  # fmt: skip
_REFERRED = ("$schema", "$defs", "definitions")
"""What each parameter's schema may speak of."""
_ANY = r"(.|\n)"


def is_text(schema: object) -> bool:
    """True for a parameter that stands as it is: its schema allows texts alone, in plain words."""
    if not isinstance(schema, dict) or not schema.keys() <= _OF_TEXTS:
        return False
    if schema.get("type") == "string":
        return True
    given = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return "type" not in schema and isinstance(given, list) and _all_texts(given)


def parameters_of(tool: Tool) -> Mapping[str, object]:
    """Return the schemas of a tool's parameters by their names."""
    found = schema_of(tool).get("properties", {})
    return found if isinstance(found, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpelling:
    """A `CallSpelling`. Marks are formats of a name."""

    trigger: str
    """What nothing but calls begins with."""
    function: tuple[str, str]
    """Before and behind all parameters of a call; the first begins with the trigger."""
    parameter: tuple[str, str]
    """Before and behind a value."""
    closing: str
    """What ends a text, wherever it stands."""
    between: str
    """Two calls."""
    single: bool = False

    def write(self, calls: Iterable[tuple[str, str]]) -> str:
        """Return calls as the model would write them: names and arguments."""
        return self.between.join(self._written(name, arguments) for name, arguments in calls)

    def grammar(
        self, tools: list[Tool], added: Mapping[str, int], *, several: bool, gap: str = ""
    ) -> str:
        """See `CallSpelling.grammar`."""
        text = Texts(added)
        more = f" ({text.of(self.between)} call){{0,{MAX_CALLS - 1}}}" if several else ""
        start = f"start: {text.of(gap)} call{more}"
        return "\n".join([start, *self._calls(tools, text)])

    def free_grammar(self, tools: list[Tool], added: Mapping[str, int]) -> str:
        """See `CallSpelling.free_grammar`."""
        text = Texts(added)
        rules = ["start: (begin call)* TEXT", text.until(self.trigger), TEXT]
        return "\n".join([*rules, *self._calls(tools, text, free=True)])

    def _written(self, name: str, arguments: str) -> str:
        before, after = self.parameter
        values = "".join(
            f"{before.format(key)}{value if isinstance(value, str) else _json(value)}{after}"
            for key, value in json.loads(arguments).items()
        )
        return self.function[0].format(name) + values + self.function[1]

    def _calls(self, tools: list[Tool], text: Texts, *, free: bool = False) -> list[str]:
        names = [f"call_{number}" for number in range(len(tools))]
        rules = [f"call: {' | '.join(names)}"]
        for name, tool in zip(names, tools, strict=True):
            head = self.function[0].format(tool.name).removeprefix(self.trigger if free else "")
            if free and not tool.strict:
                values, parts = "any_value*", []
            else:
                values, parts = self._values(name, tool, text)
            rules += [f"{name}: {text.of(head)} {values} {text.of(self.function[1])}", *parts]
        if free and not all(tool.strict for tool in tools):
            begin = _literal(self.parameter[0].format("\0")).replace(_literal("\0"), r"[^>\n]+")
            rules.append(f"any_value[lazy]: /{begin}{_ANY}*/ {text.of(self.parameter[1])}")
        return rules

    def _values(self, call: str, tool: Tool, text: Texts) -> tuple[str, list[str]]:
        """Return what stands in a call, and the rules of its parameters."""
        schema = schema_of(tool)
        unknown = next((key for key in schema if key not in _OF_ALL), None)
        if unknown is not None or schema["type"] != "object":
            raise _refused(tool, f"{unknown or 'type'} is not held in this model's form of calls")
        required = schema.get("required", [])
        known = dict(parameters_of(tool))
        if isinstance(required, list):
            known |= {name: True for name in required if name not in known}
        order: list[str] = []
        rules: list[str] = []
        for number, (name, given) in enumerate(known.items()):
            if re.search(r"[>\n]", name):
                raise _refused(tool, f"a parameter cannot be called {name!r:.80}")
            rule = f"{call}_{number}"
            order.append(rule if isinstance(required, list) and name in required else f"{rule}?")
            before, after = text.of(self.parameter[0].format(name)), text.of(self.parameter[1])
            rules.append(f"{rule}: {before} {rule}_value")
            if is_text(given):
                assert isinstance(given, dict)
                rules.append(f"{rule}_value[lazy]: {rule.upper()} {after}")
                rules += self._text(rule.upper(), given, tool)
            else:
                below = {key: schema[key] for key in _REFERRED if key in schema}
                value = given if isinstance(given, dict) else {"allOf": [given]}
                written = _json({**below, **value, SPELLING: LIKE_TEMPLATES})
                rules += [f"{rule}_value: {rule}_json {after}", f"{rule}_json: %json {written}"]
        return " ".join(order), rules

    def _text(self, name: str, schema: Json, tool: Tool) -> list[str]:
        """Return the rules of a text that is not in quotes."""
        limits = [schema.get(key) for key in ("minLength", "maxLength")]
        if not all(one is None or isinstance(one, int) for one in limits):
            raise _refused(tool, f"a length must be a whole number, got {limits!r:.80}")
        low, high = ("" if one is None else f"{one:d}" for one in limits)
        parts = [f"{_ANY}{{{low or 0},{high}}}"]
        if isinstance(pattern := schema.get("pattern"), str):
            parts.append(_whole(pattern, tool))
        if isinstance(form := schema.get("format"), str):
            if form in REFUSED:
                raise _refused(tool, f"format {form} is not asserted: {REFUSED[form]}")
            parts += [one.removeprefix("^").removesuffix("$") for one in expressions(form)]
        rules: list[str] = []
        given = [schema[key] for key in ("enum",) if key in schema]
        given += [[schema["const"]]] if "const" in schema else []
        for number, values in enumerate(given):
            if not isinstance(values, list) or not _all_texts(values):
                raise _refused(tool, f"a text must be one of texts, got {values!r:.80}")
            rules.append(f"{name}_{number}: " + " | ".join(map(_json, values)))
        terms = [f"{name}_{number}" for number in range(len(given))]
        terms += [f"/{_slashed(part)}/" for part in parts]
        terms.append(f"~/{_ANY}*{_literal(self.closing)}{_ANY}*/")
        return [*rules, f"{name}: {' & '.join(terms)}"]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _all_texts(values: list[object]) -> bool:
    return bool(values) and all(isinstance(one, str) for one in values)


def _literal(text: str) -> str:
    return _slashed(literal(text))


def _slashed(pattern: str) -> str:
    """Return an expression as it stands between slashes."""
    return re.sub(r"\\.|/", lambda found: r"\/" if found[0] == "/" else found[0], pattern)


def _whole(pattern: str, tool: Tool) -> str:
    """Return an expression of all texts in which another is found. Raises RequestError."""
    try:
        spelled = translated(pattern)
    except RequestError as error:
        raise _refused(tool, f"pattern: {error} ({pattern!r:.80})") from None
    bare = re.sub(r"\\.|\[(?:\\.|[^\]])*\]", "x", spelled)  # neither escapes nor classes
    anchors = len(re.findall(r"[\^$]", bare))
    if not anchors:
        return f"{_ANY}*({spelled}){_ANY}*"
    if anchors == 2 and bare.startswith("^") and bare.endswith("$") and "|" not in _outside(bare):
        return spelled[1:-1]
    raise _refused(tool, f"pattern {pattern!r:.80} is not held here: write it as ^(…)$")


def _outside(pattern: str) -> str:
    """Return what stands outside of all brackets."""
    while (shorter := re.sub(r"\([^()]*\)", "", pattern)) != pattern:
        pattern = shorter
    return pattern


def _refused(tool: Tool, why: str) -> RequestError:
    return RequestError(f"tools: parameters of {tool.name!r}: {why}")
