"""Render chat templates: minijinja first, since it is quick; jinja2 for what that refuses.

Templates come with the model, so both run without access to Python objects.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, cast

import minijinja

from octavo.errors import RequestError
from octavo.text.conversation import Spelled

_CODE = re.compile(r"\{[%{].*?[%}]\}", re.DOTALL)
_TEXTS = re.compile(r"'[^']*[^'\w][^']*'|\"[^\"]*[^\"\w][^\"]*\"")
"""Texts of more than a word; one of a word may be the name of a field."""
_WORDS = re.compile(r"\w+")

_STEPS = 20_000_000
"""Instructions of a template for one chat: half a second, in which nobody else is served."""
_TOO_LONG = (
    "the model's chat template takes too long for this chat: send fewer messages, or smaller "
    "chat_template_kwargs"
)


class ChatTemplate:
    """The chat templates of one model, and the special tokens that they may name."""

    def __init__(self, templates: Mapping[str, str], special_tokens: Mapping[str, str]) -> None:
        self._templates = dict(templates)
        """By name: "default", and for some models "tool_use"."""
        self._special_tokens = dict(special_tokens)
        self._environment: minijinja.Environment | None = None

    @property
    def exists(self) -> bool:
        """True if the model's files have a template."""
        return bool(self._templates)

    @property
    def names(self) -> list[str]:
        """Of all templates."""
        return list(self._templates)

    def source(self, *, tools: bool = False) -> str | None:
        """Return the template for conversations, with tools or without; None: there is none."""
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        return self._templates.get(name)

    def reads(self, variable: str) -> bool:
        """Tell whether the template knows a variable, or a field of a message, by its name."""
        source = self.source(tools=True) or ""
        return any(
            word == variable
            for code in _CODE.findall(source)
            for word in _WORDS.findall(_TEXTS.sub(" ", code))
        )

    def replaced(self, source: str) -> ChatTemplate:
        """Return one template in the place of all, over the same special tokens."""
        return ChatTemplate({"default": source}, self._special_tokens)

    def named(self, name: str) -> str | None:
        """Return the source of a template; None: there is none with that name."""
        return self._templates.get(name)

    def render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt for a conversation.

        Variables do not change what a special token is, or the messages. Raises `RequestError` if
        there is no template, or with the template's own message if it rejects the conversation.
        """
        tools = bool(variables.get("tools"))
        name = "tool_use" if tools and "tool_use" in self._templates else "default"
        source = self._templates.get(name)
        if source is None:
            raise RequestError(
                "the model's files have no chat template. Send a plain prompt: "
                "`octavo generate --raw` or LLM.generate()."
            )
        context = {**variables, **self._special_tokens, "messages": messages}
        try:
            if self._environment is None:
                self._environment = _minijinja_environment(self._templates)
            return self._environment.render_template(name, **context)
        except RequestError:
            raise
        except Exception as error:
            if getattr(error, "kind", None) == "OutOfFuel":
                raise RequestError(_TOO_LONG) from None
            # Either a dialect that only jinja2 reads, or a real mistake, which jinja2 words best.
            return _render_with_jinja2(source, context)


def up_to_message(text: str, last: str) -> str:
    """Return a rendered conversation up to the end of its last message, to be continued.

    Raises RequestError for a template that does not write the message as it is.
    """
    place = text.rfind(last.strip())
    if place < 0 or not last.strip():
        raise RequestError(
            "continue_final_message: the template does not write the last message as it is"
        )
    # Spaces at its end count if the template keeps them.
    whole = last.lstrip()
    kept = text.startswith(whole, place)
    return text[: place + len(whole if kept else last.strip())]


def _minijinja_environment(templates: Mapping[str, str]) -> minijinja.Environment:
    environment = minijinja.Environment(
        templates=templates,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_escape_callback=lambda _: False,
    )
    environment.fuel = _STEPS
    environment.add_filter("tojson", _to_json)
    environment.add_global("raise_exception", _raise_exception)
    environment.add_global("strftime_now", _strftime_now)
    return environment


def _render_with_jinja2(source: str, context: Mapping[str, Any]) -> str:
    # Few templates need jinja2, and it takes longer to import than minijinja to render.
    from jinja2 import nodes
    from jinja2.ext import Extension
    from jinja2.parser import Parser
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Marks what the assistant wrote, for training; means nothing when serving."""

        tags = {"generation"}  # noqa: RUF012 (jinja2 declares it as an instance variable)

        def parse(self, parser: Parser) -> list[nodes.Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.globals["range"] = _Ranges().range
    try:
        return environment.from_string(source).render(context)
    except RequestError:
        raise
    except Exception as error:  # foreign code: whatever it raises is about this chat
        raise RequestError(f"the model's chat template cannot render this chat: {error}") from error


class _Ranges:
    """Counts what all ranges of one rendering have together: jinja2 bounds each alone."""

    def __init__(self) -> None:
        self._left = _STEPS // 20

    def range(self, *bounds: int) -> range:
        """Return a range. Raises RequestError once they are too many."""
        found = range(*bounds)
        self._left -= len(found)
        if self._left < 0:
            raise RequestError(_TOO_LONG)
        return found


def _to_json(
    value: Any,  # any JSON value
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect: no HTML escapes, and text as it is."""
    if indent is None and separators is None and not sort_keys and _holds_spelled(value):
        return _as_spelled(value)
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _holds_spelled(value: object) -> bool:
    """True for arguments of a call, the call, or several: what templates write out."""
    parts = value if isinstance(value, list) else [value]
    for part in cast("list[object]", parts):
        inner = part
        for name in ("function", "arguments"):
            if not isinstance(inner, Spelled) and isinstance(inner, dict):
                inner = cast("dict[str, object]", inner).get(name, inner)
        if isinstance(inner, Spelled):
            return True
    return False


def _as_spelled(value: object) -> str:
    match value:
        case Spelled():
            return value.text
        case dict():
            fields = cast("dict[str, object]", value)
            parts = [f"{_to_json(name)}: {_as_spelled(one)}" for name, one in fields.items()]
            return "{" + ", ".join(parts) + "}"
        case list():
            return "[" + ", ".join(map(_as_spelled, cast("list[object]", value))) + "]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _raise_exception(message: str) -> None:
    raise RequestError(f"the model's chat template rejects this chat: {message}")


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
