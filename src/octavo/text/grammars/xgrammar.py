"""Grammars by xgrammar, an extra: it loads torch, and reads fewer schemas exactly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.text.grammars.backend import Vocabulary
from octavo.text.grammars.schema import exact_schema
from octavo.text.grammars.tags import Tags

MAX_CHARS = 1 << 16
"""Of a form. Time is bounded where forms are tried (`trial`), since the library bounds none."""
_QUOTED = 400


class XgrammarMaker:
    """Compiles forms over one vocabulary. Raises RequestError without the library."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            import xgrammar
        except ImportError as error:
            raise RequestError(
                f"structured_outputs: backend xgrammar is not installed ({error}): pip install "
                "'octavo[xgrammar]', or leave it out"
            ) from None
        if not vocabulary.ends:
            raise RequestError(
                "structured_outputs: this model names no token that ends an answer: leave it out"
            )
        self._library: Any = xgrammar
        spelled = [vocabulary.spell(token) for token in range(vocabulary.size)]
        special = _special(vocabulary.definition)
        texts = [b"" if token in special else text for token, text in enumerate(spelled)]
        bits = [bool(text) or token in vocabulary.ends for token, text in enumerate(texts)]
        padded = np.zeros(-(-vocabulary.size // 32) * 32, dtype=np.uint8)
        padded[: vocabulary.size] = bits
        self._real = np.packbits(padded, bitorder="little").view(np.int32)
        info = xgrammar.TokenizerInfo(
            texts,
            vocab_type=xgrammar.VocabType.RAW,
            vocab_size=vocabulary.size,
            stop_token_ids=list(vocabulary.ends),
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)

    def compile(self, form: StructuredOutputs) -> XgrammarGrammar:
        """Compile a form; see `GrammarMaker.compile`."""
        _check_size(form)
        try:
            compiled = self._compile(form)
        except RequestError:
            raise
        except Exception as error:  # the library raises several kinds, its binding others
            raise RequestError(
                f"structured_outputs: {form.form}: {str(error).strip()[:_QUOTED]}"
            ) from None
        return XgrammarGrammar(self._library, compiled, self._real)

    def _compile(self, form: StructuredOutputs) -> Any:  # the library's compiled grammar
        compiler = self._compiler
        match form.form:
            case "json" | "json_object":
                return self._of_json(form)
            case "regex":
                return compiler.compile_regex(form.text)
            case "choice":
                assert form.choice is not None
                texts = " | ".join(json.dumps(one) for one in form.choice)
                return compiler.compile_grammar(f"root ::= {texts}")
            case "grammar":
                return compiler.compile_grammar(form.text)
            case "structural_tag":
                tags = Tags.read(form.text).tags
                for tag in tags:
                    _check_patterns(form, json.loads(tag.schema))
                item = self._library.StructuralTagItem
                return compiler.compile_structural_tag(
                    [item(begin=t.begin, schema=t.schema, end=t.end) for t in tags],
                    list(dict.fromkeys(tag.trigger for tag in tags)),
                )

    def _of_json(self, form: StructuredOutputs) -> Any:  # the library's compiled grammar
        if form.whitespace_pattern is not None:
            raise RequestError(
                "structured_outputs: whitespace_pattern is not supported by xgrammar: leave it "
                "out, or name llguidance as the backend"
            )
        schema = exact_schema(form.text) if form.form == "json" else '{"type":"object"}'
        _check_patterns(form, json.loads(schema))
        return self._compiler.compile_json_schema(
            schema,
            any_whitespace=not form.disable_any_whitespace,
            separators=(",", ":") if form.disable_any_whitespace else None,
            strict_mode=False,
        )


class XgrammarGrammar:
    """A compiled form."""

    def __init__(self, library: Any, compiled: Any, real: NDArray[np.int32]) -> None:
        self._library = library
        self._compiled = compiled
        self._real = real

    def start(self) -> XgrammarMatcher:
        """Return a matcher at the beginning of an output."""
        return XgrammarMatcher(self._library.GrammarMatcher(self._compiled), self._real)


class XgrammarMatcher:
    """Follows one output."""

    def __init__(self, matcher: Any, real: NDArray[np.int32]) -> None:
        self._matcher = matcher
        self._real = real
        """Tokens that have a text, or end one: where all may come, the library has all bits."""

    def consume(self, tokens: list[int]) -> None:
        """Take in tokens that follow those before. Raises RequestError where they do not fit."""
        for token in tokens:
            if self._matcher.is_terminated() or not self._matcher.accept_token(token):
                raise RequestError(f"structured_outputs: token {token} does not fit the form")

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Write which tokens may come next; after the end, none."""
        if self._matcher.is_terminated():
            mask[:] = 0
            return
        if not self._matcher.fill_next_token_bitmask(mask.reshape(1, -1)):
            mask[:] = -1
        mask &= self._real


def _special(definition: str) -> frozenset[int]:
    rows = json.loads(definition).get("added_tokens") or []
    return frozenset(row["id"] for row in rows if row.get("special"))


def _check_patterns(form: StructuredOutputs, schema: object) -> None:
    """Refuse strings of several patterns, which stand behind allOf: the library reads one."""
    parts = schema if isinstance(schema, list) else []
    if isinstance(schema, dict):
        if "allOf" in schema and schema.get("type") == "string":
            raise RequestError(
                f"structured_outputs: {form.form}: a string of several patterns, as some formats "
                "are, is not supported by xgrammar: name llguidance as the backend"
            )
        parts = [value for key, value in schema.items() if key not in ("enum", "required")]
    for part in parts:
        _check_patterns(form, part)


def _check_size(form: StructuredOutputs) -> None:
    if len(form.text) > MAX_CHARS:
        raise RequestError(
            f"structured_outputs: {form.form}: at most {MAX_CHARS} characters are compiled by "
            "xgrammar: make it smaller, or name llguidance as the backend"
        )
