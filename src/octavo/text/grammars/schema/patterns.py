"""Questions about regular expressions: what they match, and whether two match the same text.

They are answered by the library that makes the grammars, whose work is linear in the text and
bounded: expressions come from anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from octavo.errors import RequestError
from octavo.text.grammars.byte_vocabulary import END, byte_vocabulary
from octavo.text.grammars.schema.document import Refusal, quoted
from octavo.text.grammars.schema.ecma import NOTHING, literal, translated
from octavo.text.grammars.schema.formats import expressions
from octavo.text.grammars.schema.hosts import with_stand_ins

MAX_ASKED = 2_000
"""Questions in one schema; each takes up to a millisecond."""
ANY = r"[\x{0}-\x{10ffff}]"


class Patterns:
    """Answers for one schema; keeps what it has answered."""

    def __init__(self) -> None:
        self._started: dict[str, Any] = {}  # a matcher of the library's, by schema
        self._found: dict[tuple[str, str], bool] = {}
        self._asked = 0

    def translated(self, pattern: str) -> str:
        """Return an expression of a schema in the library's syntax.

        Raises RequestError, as the end of a sentence, where it has none.
        """
        spelled = translated(pattern)
        error = self._start({"type": "string", "pattern": spelled}).get_error()
        if error and "egex is empty" not in error:
            raise RequestError(f"it cannot be compiled ({_first_line(error)})")
        return spelled

    def found(self, pattern: str, text: str) -> bool:
        """True if an expression matches somewhere in a text."""
        known = self._found.get((pattern, text))
        if known is None:
            matcher = self._start({"type": "string", "pattern": pattern})
            shown = with_stand_ins(text) if pattern in expressions("hostname") else text
            spelled = json.dumps(shown, ensure_ascii=False).encode("utf-8", "replace")
            tokens = [*spelled, END]
            known = not matcher.is_error() and matcher.deep_copy().validate_tokens(tokens) == len(
                tokens
            )
            self._found[pattern, text] = known
        return known

    def share_nothing(self, one: str, other: str) -> bool:
        """True if no text matches both."""
        return self.nothing_matches((one, other), 0, None)

    def nothing_matches(self, patterns: Iterable[str], low: int, high: int | None) -> bool:
        """True if no text of such a length matches all."""
        parts: list[dict[str, object]] = [{"pattern": pattern} for pattern in patterns]
        length = {"minLength": low} | ({} if high is None else {"maxLength": high})
        schema = {"type": "string", **length, "allOf": parts}
        error = self._start(schema).get_error()
        if error and "nsatisfiable" not in error:
            raise Refusal(
                "", "`pattern`", "it is too much work to find out whether any string matches "
                f"{quoted(list(patterns))}",
            ).error()  # fmt: skip
        return bool(error)

    @cached_property
    def _bytes(self) -> Any:  # the library's tokenizer
        """A vocabulary of single bytes, and one more token that ends a text."""
        import llguidance

        return llguidance.LLTokenizer(byte_vocabulary(), n_vocab=END + 1, eos_token=END, slices=[])

    def _start(self, schema: dict[str, object]) -> Any:  # the library's matcher
        import llguidance

        key = json.dumps(schema)
        matcher = self._started.get(key)
        if matcher is None:
            self._asked += 1
            if self._asked > MAX_ASKED:
                raise RequestError("there are too many expressions in one schema")
            limits = llguidance.LLParserLimits(initial_lexer_fuel=200_000, verbose_errors=False)
            matcher = self._started[key] = llguidance.LLMatcher(
                self._bytes,
                llguidance.LLMatcher.grammar_from_json_schema(key),
                log_level=0,
                limits=limits,
            )
        return matcher


def none_of(texts: Iterable[str]) -> str:
    """Return an expression for every text but these."""
    return f"^(?:{_all_but(sorted(set(texts)))})$"


def one_of(texts: Iterable[str]) -> str:
    """Return an expression for exactly these texts."""
    inner = "|".join(literal(text) for text in texts)
    return f"^(?:{inner})$"


def _all_but(texts: list[str]) -> str:
    """Return the inside of an expression for all texts but these, letter by letter."""
    by_letter: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_letter.setdefault(text[0], []).append(text[1:])
    ways = [] if "" in texts else [""]
    if by_letter:
        letters = "".join(literal(letter) for letter in by_letter)
        ways.append(f"[^{letters}]{ANY}*")
    else:
        ways.append(f"{ANY}+")
    for letter, rests in by_letter.items():
        ways.append(f"{literal(letter)}(?:{_all_but(rests)})")
    return "|".join(way for way in ways if way != NOTHING)


def _first_line(error: str) -> str:
    lines = [line.strip() for line in error.strip().splitlines() if line.strip()]
    return (lines[-1] if lines and lines[0].startswith("regex parse") else lines[0])[:120]
