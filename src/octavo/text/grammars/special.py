"""Special tokens in grammars: no text spells one, whatever names they are shown by."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping

_SKIPPED = r'"(?:\\.|[^"\\])*"|//[^\n]*|/(?:\\.|[^/\\\n])+/'
"""Texts, comments and expressions of a Lark grammar: names in them are letters."""
_NAMES = re.compile(rf"{_SKIPPED}|(<[^<>\s\[\]]+>)")


def special_tokens(definition: str) -> dict[str, int]:
    """Return the tokens that no text spells, by what they are shown as.

    The library counts those in angle brackets among them, whether a tokenizer calls them special
    or not.
    """
    rows = json.loads(definition).get("added_tokens") or []
    return {row["content"]: row["id"] for row in rows if row.get("special") or _bracketed(row)}


def nameless(definition: str, special: Mapping[str, int]) -> str:
    """Return a tokenizer in which special tokens have names that no text has.

    Where a grammar leaves one text alone, the library cuts it as the tokenizer does, which reads
    the name of a special token as the token: as an end of the answer, or as what does not fit.
    """
    if not special:
        return definition
    unlike = secrets.token_hex(8)
    names = {name: f"<{unlike}-{token}>" for name, token in special.items()}
    value = json.loads(definition)
    for row in value["added_tokens"]:
        row["content"] = names.get(row["content"], row["content"])
    # Only of use around a whole prompt.
    value["post_processor"] = None
    model = value["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {names.get(word, word): token for word, token in model["vocab"].items()}
    else:
        model["vocab"] = [[names.get(word, word), *rest] for word, *rest in model["vocab"]]
    if model.get("unk_token") is not None:
        model["unk_token"] = names.get(model["unk_token"], model["unk_token"])
    if model.get("merges"):
        model["merges"] = [one for one in model["merges"] if not _touches(one, names)]
    return json.dumps(value, ensure_ascii=False)


def numbered(lark: str, special: Mapping[str, int]) -> str:
    """Return a Lark grammar in which the special tokens that it names are called by number."""

    def by_number(found: re.Match[str]) -> str:
        token = special.get(found[1]) if found[1] else None
        return found[0] if token is None else f"<[{token}]>"

    return _NAMES.sub(by_number, lark)


def _bracketed(row: Mapping[str, str]) -> bool:
    return row["content"].startswith("<") and row["content"].endswith(">")


def _touches(merge: str | list[str], names: Mapping[str, str]) -> bool:
    parts = merge.split(" ") if isinstance(merge, str) else merge
    return "".join(parts) in names or any(part in names for part in parts)
