"""Render chat templates: minijinja first, since it is quick; jinja2 for what that refuses.

Templates come with the model, so both run without access to Python objects.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import minijinja

from octavo.errors import RequestError


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

    def render(self, messages: list[dict[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return the prompt for a conversation.

        Variables do not change what a special token is, or the messages. Raises `RequestError` if
        there is no template, or with the template's own message if
        it rejects the conversation.
        """
        name = "tool_use" if variables.get("tools") and "tool_use" in self._templates else "default"
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
        except Exception:
            # Either a dialect that only jinja2 reads, or a real mistake, which jinja2 words best.
            return _render_with_jinja2(source, context)


def _minijinja_environment(templates: Mapping[str, str]) -> minijinja.Environment:
    environment = minijinja.Environment(
        templates=templates,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_escape_callback=lambda _: False,
    )
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
    try:
        return environment.from_string(source).render(context)
    except RequestError:
        raise
    except Exception as error:  # foreign code: whatever it raises is about this chat
        raise RequestError(f"the model's chat template cannot render this chat: {error}") from error


def _to_json(
    value: Any,  # any JSON value
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as chat templates expect: no HTML escapes, and text as it is."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> None:
    raise RequestError(f"the model's chat template rejects this chat: {message}")


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)
