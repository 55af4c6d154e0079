"""How much a body holds, seen before anything reads it piece by piece."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from octavo.server.failures import ApiError
from octavo.server.settings import RequestBounds


def check_sizes(body: object, bounds: RequestBounds) -> None:
    """Raise ApiError for a list or an object that is longer than a server reads.

    What is no list or object where one belongs is left to those who know its type.
    """
    if not isinstance(body, Mapping):
        return
    fields = cast("Mapping[str, object]", body)
    for name in ("stop", "stop_sequences", "include"):
        _check(name, _length(fields.get(name)), bounds.max_stop, "texts")
    for name in ("logit_bias", "allowed_token_ids", "stop_token_ids", "bad_words"):
        _check(name, _length(fields.get(name)), bounds.max_logit_bias, "entries")
    _check("tokens", _length(fields.get("tokens")), bounds.max_token_ids, "token ids")
    _check_prompt("prompt", fields.get("prompt"), bounds)
    for name in ("messages", "input", "system"):
        given = fields.get(name)
        if name == "input" and _is_prompt(given):
            _check_prompt(name, given, bounds)
        else:
            _check_messages(name, given, bounds)
    for name in ("tools", "documents"):
        _check(name, _length(fields.get(name)), bounds.max_tools, "of them")
        if _holds_more(fields.get(name), bounds.max_tool_chars):
            most = bounds.max_tool_chars
            raise ApiError(400, f"{name}: at most {most} characters, names and values", param=name)
    name = "chat_template_kwargs"
    most = bounds.max_template_chars
    if _holds_more(fields.get(name), most):
        raise ApiError(400, f"{name}: at most {most} characters, names and values", param=name)


def _is_prompt(given: object) -> bool:
    """True for a list of what is no object: texts or token ids."""
    many = cast("list[object]", given) if isinstance(given, list) else []
    return bool(many) and not isinstance(many[0], Mapping)


def _check_prompt(name: str, given: object, bounds: RequestBounds) -> None:
    if not isinstance(given, list):
        return
    many = cast("list[object]", given)
    if many and isinstance(many[0], str | list):
        _check(name, len(many), bounds.max_prompts, "prompts in a request")
        ids = sum(map(_length, many))
    else:
        ids = len(many)
    _check(name, ids, bounds.max_token_ids, "token ids in a request")


def _check_messages(name: str, given: object, bounds: RequestBounds) -> None:
    if not isinstance(given, list):
        return
    many = cast("list[object]", given)
    _check(name, len(many), bounds.max_messages, "of them")
    calls = sum(_length(_field(one, "tool_calls")) for one in many)
    _check(name, calls, bounds.max_messages, "tool_calls in all of them")
    _check(name, sum(map(_parts, many)), bounds.max_messages, "parts in all of them")


def _parts(message: object) -> int:
    """Count the parts of a message, those of a call's result in it too, whatever its API is."""
    content = _field(message, "content")
    inner = cast("list[object]", content) if isinstance(content, list) else []
    own = sum(_length(_field(message, name)) for name in ("content", "output", "summary"))
    return own + sum(_length(_field(part, "content")) for part in inner)


def _field(given: object, name: str) -> object:
    return cast("Mapping[str, object]", given).get(name) if isinstance(given, Mapping) else None


def _check(name: str, count: int, most: int, what: str) -> None:
    if count > most:
        raise ApiError(400, f"{name}: at most {most} {what}, got {count}", param=name)


def _holds_more(value: object, most: int) -> bool:
    """Count the characters of all texts in a JSON value, and one for each text and value.

    Stops as soon as they are more than so many.
    """
    chars, unseen = 0, [value]
    while unseen and chars + len(unseen) <= most:
        one = unseen.pop()
        if isinstance(one, dict):
            unseen += [*cast("Any", one), *cast("Any", one).values()]
        elif isinstance(one, list):
            unseen += cast("Any", one)
        chars += 1 + (len(one) if isinstance(one, str) else 0)
    return chars + len(unseen) > most


def _length(value: object) -> int:
    """Return how many things a list or an object holds; of anything else, none."""
    return len(cast("Any", value)) if isinstance(value, list | dict) else 0
