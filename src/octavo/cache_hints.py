"""What a caller writes about the further use of a text's KV, checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias, TypeGuard, cast, get_args

from msgspec.structs import replace

from octavo.config import EngineConfig
from octavo.contract.hint import CacheHint, Word
from octavo.contract.numbers import is_number, is_whole, plain, shown
from octavo.errors import RequestError
from octavo.text.unicode import check_unicode

Hint: TypeAlias = Word | float | CacheHint | Iterable[CacheHint]
"""A word or a probability for the whole text, or several `CacheHint` for its parts, in order."""


def is_one_hint(cache_hint: object) -> TypeGuard[Word | float | CacheHint | None]:
    """True of what is said of all prompts, False of what says something of each."""
    one = plain(cache_hint)
    return one is None or is_number(one) or isinstance(one, (str, bool, CacheHint))


def unheard(config: EngineConfig) -> str:
    """Say that an engine of these settings heeds no hints."""
    by = f"eviction_policy {config.eviction_policy}"
    if config.reservation != "on_demand":
        by = f"reservation {config.reservation}"
    return (
        f"octavo: cache_hint changes nothing with {by}: hints are heeded by eviction_policy bonus, "
        "gittins and cost (reservation on_demand)"
    )


def check_hints(cache_hint: object, *, source: str) -> tuple[CacheHint, ...]:
    """Check what is said of the further use of one request's KV.

    source: who says it, where a hint names nobody. Raises RequestError.
    """
    if cache_hint is None:
        return ()
    if isinstance(cache_hint, (CacheHint, str, bytes, Mapping)) or not isinstance(
        cache_hint, Iterable
    ):
        parts: list[object] = [cache_hint]
    else:
        parts = list(cast("Iterable[object]", cache_hint))
    hints: list[CacheHint] = []
    for part in parts:
        hint = _checked(part if isinstance(part, CacheHint) else CacheHint(_says(part)))
        end = hints[-1].tokens if hints else 0
        if end is None or (hint.tokens is not None and hint.tokens <= end):
            raise RequestError(
                f"cache_hint {hint!r} says something of no token, after "
                f"{'all' if end is None else end} tokens: give leading tokens that grow from hint "
                "to hint, and leave them out in the last"
            )
        hints.append(replace(hint, source=hint.source or source))
    return tuple(hints)


def _checked(hint: CacheHint) -> CacheHint:
    """Return a hint with numbers of Python. Raises RequestError for fields of the wrong type."""
    tokens, source = plain(hint.tokens), cast("object", hint.source)
    if tokens is not None and not is_whole(tokens):
        raise RequestError(
            f"cache_hint: tokens must be a whole number or None, got {shown(tokens)}"
        )
    if not isinstance(source, str):
        raise RequestError(f"cache_hint: source must be a text, got {shown(source)}")
    check_unicode(source, "cache_hint's source")
    return CacheHint(_says(hint.says), tokens, source)


def _says(value: object) -> Word | float:
    number = plain(value)
    if isinstance(value, str):
        for word in get_args(Word):
            if value == word:
                return word
    elif is_number(number) and 0 <= number <= 1:
        return float(number)
    raise RequestError(
        f"cache_hint must be one of {', '.join(get_args(Word))}, or a probability from 0 to 1, "
        f"got {shown(value)}"
    )
