"""Grammars by llguidance: the default, for JSON Schema, regular expressions, choices and Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping

import llguidance
import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from numpy.typing import NDArray

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.text.grammars.backend import Grammar, Vocabulary
from octavo.text.grammars.hosts import HostGrammar, Letters
from octavo.text.grammars.nested import exact_grammar
from octavo.text.grammars.schema import exact_schema
from octavo.text.grammars.schema.hosts import names_hosts
from octavo.text.grammars.tags import Tags, special_tokens

_LIMITS = LLParserLimits(
    initial_lexer_fuel=1_000_000,
    step_lexer_fuel=200_000,
    step_max_items=50_000,
    max_lexer_states=50_000,
    max_grammar_size=200_000,
    verbose_errors=False,
)
_PLAIN = r'[^"\\\x00-\x1F\x7F]'
"""A character that stands for itself in a string of JSON."""
SLICES = (
    r"[\x20\x0A\x0D\x09]+",
    *(f"{_PLAIN}{{1,{most}}}" for most in (10, 15, 20, 30)),
    f"{_PLAIN}+",
)
"""Tokens that are allowed together, without a walk over them: the library's own general slices, and
those up to 15 and 20, without which a string that may have 11 to 29 more characters is walked for
each mask (135 instead of 15 us over 49,152 tokens)."""
_QUOTED = 400
"""Characters of the library's own words in an error."""


class LlguidanceMaker:
    """Compiles forms over one vocabulary. Raises RequestError if none can be made over it."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        if not vocabulary.ends:
            raise RequestError(
                "structured_outputs: this model names no token that ends an answer: leave it out"
            )
        try:
            self._tokenizer = LLTokenizer(
                vocabulary.definition,
                n_vocab=vocabulary.size,
                eos_token=list(vocabulary.ends),
                slices=list(SLICES),
            )
        except Exception as error:  # the library raises no narrower kind
            raise RequestError(
                f"structured_outputs: no grammar can be made over this model's vocabulary: {error}"
            ) from None
        self._vocabulary = vocabulary
        self._letters: Letters | None = None
        self._special = special_tokens(vocabulary.definition)
        self._words = -(-vocabulary.size // 32)

    def compile(self, form: StructuredOutputs) -> Grammar:
        """Compile a form; see `GrammarMaker.compile`."""
        defined = definition(form, self._special)
        matcher = LLMatcher(self._tokenizer, defined, log_level=0, limits=_LIMITS)
        _check(form, matcher)
        # The first mask is computed here: what is put off until it is no step's work, and its
        # limits count as the form's.
        _fill(matcher, np.zeros(self._words, dtype=np.int32))
        _check(form, matcher)
        grammar = LlguidanceGrammar(matcher)
        return self._with_hosts(grammar) if names_hosts(defined) else grammar

    def _with_hosts(self, grammar: Grammar) -> Grammar:
        if self._letters is None:
            self._letters = Letters(self._vocabulary)
        return HostGrammar(grammar, self._letters) if self._letters.complete else grammar


class LlguidanceGrammar:
    """A compiled form; never told a token itself."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def start(self) -> LlguidanceMatcher:
        """Return a matcher at the beginning of an output."""
        return LlguidanceMatcher(self._matcher.deep_copy())


class LlguidanceMatcher:
    """Follows one output."""

    def __init__(self, matcher: LLMatcher) -> None:
        self._matcher = matcher

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens that follow those before. Raises RequestError where they do not fit."""
        if not self._matcher.consume_tokens(tokens):
            raise RequestError(f"structured_outputs: {_quoted(self._matcher.get_error())}")

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next. Raises RequestError at a limit on work."""
        _fill(self._matcher, mask)
        if self._matcher.is_error():
            raise RequestError(f"structured_outputs: {_quoted(self._matcher.get_error())}")


def definition(form: StructuredOutputs, special: Mapping[str, int]) -> str:
    """Return a form in the library's own notation. Raises RequestError.

    special: tokens that stand for themselves and have no text, by the text they are shown as.
    """
    text = form.text
    try:
        match form.form:
            case "json" | "json_object":
                return _of_json(
                    form, exact_schema(text) if form.form == "json" else '{"type":"object"}'
                )
            case "regex":
                return LLMatcher.grammar_from_regex(text)
            case "choice":
                assert form.choice is not None
                # JSON's escapes are Lark's, too.
                texts = [json.dumps(one, ensure_ascii=False) for one in form.choice]
                return LLMatcher.grammar_from_lark("start: " + " | ".join(texts))
            case "grammar":
                return llguidance.grammar_from("grammar", exact_grammar(text))
            case "structural_tag":
                return LLMatcher.grammar_from_lark(Tags.read(text).lark(special))
    except ValueError as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"structured_outputs: {form.form}: {_quoted(str(error))}") from None


def _of_json(form: StructuredOutputs, schema: str) -> str:
    return LLMatcher.grammar_from_json_schema(
        schema,
        overrides={
            "whitespace_flexible": not form.disable_any_whitespace,
            "whitespace_pattern": form.whitespace_pattern,
            "lenient": False,
        },
    )


def _fill(matcher: LLMatcher, mask: NDArray[np.int32]) -> None:
    assert mask.dtype == np.int32
    assert mask.flags.c_contiguous
    matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)


def _check(form: StructuredOutputs, matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise RequestError(f"structured_outputs: {form.form}: {_quoted(matcher.get_error())}")


def _quoted(message: str) -> str:
    """Return the library's words, which quote the place, without what is its own affair."""
    lines = message.split("<backtrace>")[0].replace("<non-verbose/>", "").strip()
    return lines if len(lines) <= _QUOTED else f"{lines[:_QUOTED]}…"
