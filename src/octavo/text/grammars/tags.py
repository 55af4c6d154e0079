"""Structural tags: free text in which certain beginnings start a part of a given form."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from octavo.errors import RequestError
from octavo.text.grammars.schema import exact_schema

MAX_TAGS = 256


@dataclass(frozen=True, slots=True)
class Tag:
    """One kind of part: what stands before and behind a JSON value, and what the value must be."""

    begin: str
    schema: str
    """As `exact_schema` returns it."""
    end: str
    trigger: str
    """The beginning of `begin` that, once written, must go on to one of the tags that share it."""


@dataclass(frozen=True, slots=True)
class Tags:
    """All kinds of parts that an answer may have, in any number and order, with text between."""

    tags: tuple[Tag, ...]

    @classmethod
    def read(cls, text: str) -> Tags:
        """Read a structural tag in either spelling of vLLM's. Raises RequestError."""
        value = json.loads(text)
        if "structures" in value:
            _only(value, {"type", "structures", "triggers"}, "structural_tag")
            rows = [_row(row, "structures") for row in _list(value, "structures")]
        else:
            _only(value, {"type", "format"}, "structural_tag")
            value = _object(value, "format", "structural_tag")
            if value.get("type") != "triggered_tags":
                raise _refused("format", "its type must be triggered_tags")
            _only(value, {"type", "triggers", "tags"}, "format")
            rows = [_row(row, "tags") for row in _list(value, "tags")]
        triggers = _list(value, "triggers")
        if not all(isinstance(one, str) and one for one in triggers):
            raise _refused("triggers", "they must be texts that are not empty")
        if len(rows) > MAX_TAGS:
            raise _refused("tags", f"at most {MAX_TAGS} are compiled, got {len(rows)}")
        return cls(tuple(_tag(row, triggers) for row in rows))

    def lark(self, special: Mapping[str, int]) -> str:
        """Return them as a grammar in llguidance's Lark; special: tokens that have no text."""
        names = " | ".join(f"tag_{index}" for index in range(len(self.tags)))
        lines = [f"start: ({names})* rest", "rest: TEXT", r"TEXT: /(.|\n)*/"]
        for index, tag in enumerate(self.tags):
            value = f"%json {tag.schema}"
            behind = _pieces(tag.begin[len(tag.trigger) :], special)
            body = " ".join([*behind, value, *_pieces(tag.end, special)])
            trigger = _pieces(tag.trigger, special)
            if tag.trigger in special:
                lines.append(f"tag_{index}: TEXT {trigger[0]} {body}")
            elif len(trigger) == 1:
                lines.append(f"begin_{index}[lazy]: TEXT {trigger[0]}")
                lines.append(f"tag_{index}: begin_{index} {body}")
            else:
                raise _refused("triggers", "one must be a special token, or hold none", tag.trigger)
        return "\n".join(lines)


def _pieces(text: str, special: Mapping[str, int]) -> list[str]:
    """Return a text in Lark: what is a special token by its number, all else as it is."""
    if not text:
        return []
    if not special:
        return [json.dumps(text, ensure_ascii=False)]
    longest_first = sorted(special, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, longest_first))})", text)
    return [
        f"<[{special[part]}]>" if part in special else json.dumps(part, ensure_ascii=False)
        for part in parts
        if part
    ]


def _row(row: object, where: str) -> tuple[str, str, str]:
    """Return where a tag begins, its schema, and where it ends."""
    if not isinstance(row, dict):
        raise _refused(where, "each must be an object", row)
    if where == "structures":
        _only(row, {"begin", "schema", "end"}, where)
        schema = row.get("schema", True)
    else:
        _only(row, {"type", "begin", "content", "end"}, where)
        content = _object(row, "content", where)
        if content.get("type") != "json_schema":
            raise _refused("content", "its type must be json_schema", content)
        _only(content, {"type", "json_schema"}, "content")
        schema = content.get("json_schema", True)
    begin, end = row.get("begin"), row.get("end", "")
    if not isinstance(begin, str) or not isinstance(end, str):
        raise _refused(where, "begin and end must be texts", row)
    return begin, schema if isinstance(schema, str) else json.dumps(schema), end


def _tag(row: tuple[str, str, str], triggers: list[object]) -> Tag:
    begin, schema, end = row
    found = [one for one in triggers if isinstance(one, str) and begin.startswith(one)]
    if len(found) != 1:
        raise _refused("triggers", f"{len(found)} of them begin this tag, and one must", begin)
    try:
        return Tag(begin, exact_schema(schema), end, found[0])
    except RequestError as error:
        told = str(error).removeprefix("structured_outputs: ")
        raise RequestError(f"structured_outputs: structural_tag: {begin!r:.80}: {told}") from None


def _list(value: Mapping[str, object], name: str) -> list[object]:
    found = value.get(name)
    if not isinstance(found, list) or not found:
        raise _refused(name, "it must be a list that is not empty", found)
    return found


def _object(value: Mapping[str, object], name: str, where: str) -> dict[str, object]:
    found = value.get(name)
    if not isinstance(found, dict):
        raise _refused(where, f"its {name} must be an object", found)
    return found


def _only(value: Mapping[str, object], known: set[str], where: str) -> None:
    unknown = next((name for name in value if name not in known), None)
    if unknown is not None:
        raise _refused(where, f"{unknown!r:.80} is none of {', '.join(sorted(known))}")


def _refused(where: str, why: str, part: object = None) -> RequestError:
    got = "" if part is None else f", got {part!r:.80}"
    return RequestError(f"structured_outputs: structural_tag: {where}: {why}{got}")
