"""What form an answer must have: a value, checked as far as that needs no grammar."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import blake2b
from typing import Literal, TypeAlias, cast, get_args

import msgspec

from octavo.contract.numbers import shown
from octavo.errors import RequestError

GrammarBackend: TypeAlias = Literal["auto", "llguidance", "xgrammar"]

Form: TypeAlias = Literal["json", "json_object", "regex", "choice", "grammar", "structural_tag"]

MAX_FORM_CHARS = 1 << 18
"""Characters of a schema, a regular expression, a grammar, or all choices together."""
MAX_CHOICES = 4096

_TEXTS = ("regex", "grammar")
_JSON = ("json", "structural_tag")


class StructuredOutputs(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The form of an answer: one of `Form`, named as in vLLM. Anything else is a RequestError.

    Whether a grammar can be made of it is found out when it is compiled.
    """

    json: str | dict[str, object] | bool | None = None
    """A JSON Schema: as text, or as the value itself; kept as text, keys in their order."""
    json_object: bool = False
    """Any JSON object."""
    regex: str | None = None
    """The whole answer matches it; syntax of Rust's regex crate."""
    choice: tuple[str, ...] | None = None
    """The answer is one of these texts."""
    grammar: str | None = None
    """A context-free grammar, in the syntax of the backend."""
    structural_tag: str | dict[str, object] | None = None
    """Free text in which certain beginnings start a given form; kept as text."""
    disable_any_whitespace: bool = False
    """JSON is written without spaces and line ends between its parts."""
    whitespace_pattern: str | None = None
    """What may stand between the parts of JSON, as a regular expression."""
    after: str = ""
    """Not empty: the form begins behind the first such text, and all before it is free. What a
    model thinks is left to itself."""
    backend: GrammarBackend = "auto"
    """Which library makes the grammar; auto: llguidance."""

    def __post_init__(self) -> None:
        if self.choice is not None:
            msgspec.structs.force_setattr(self, "choice", _choices(self.choice))
        for name in _JSON:
            value = getattr(self, name)
            if value is not None:
                msgspec.structs.force_setattr(self, name, _json_text(name, value))
        self._check_types()
        given = [name for name in get_args(Form) if getattr(self, name) not in (None, False)]
        if len(given) != 1:
            raise RequestError(
                f"structured_outputs: {' and '.join(given) or 'nothing'} is given: give one of "
                f"{', '.join(get_args(Form))}"
            )
        if len(self.text) > MAX_FORM_CHARS:
            raise RequestError(
                f"structured_outputs: {self.form} has {len(self.text)} characters, but at most "
                f"{MAX_FORM_CHARS} are compiled: make it smaller"
            )
        for name, text in ((self.form, self.text), ("after", self.after)):
            _check_unicode(name, text)
        self._check_whitespace()

    def _check_types(self) -> None:
        for name in (*_TEXTS, "whitespace_pattern"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, str) or not value):
                raise RequestError(
                    f"structured_outputs: {name} must be a text that is not empty, got "
                    f"{shown(value)}"
                )
        for name in ("json_object", "disable_any_whitespace"):
            if not isinstance(getattr(self, name), bool):
                raise RequestError(
                    f"structured_outputs: {name} must be true or false, got "
                    f"{shown(getattr(self, name))}"
                )
        if not isinstance(self.after, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"structured_outputs: after must be a text, got {shown(self.after)}")
        if self.backend not in get_args(GrammarBackend):
            raise RequestError(
                f"structured_outputs: backend {shown(self.backend)} is not one of "
                f"{', '.join(get_args(GrammarBackend))}"
            )

    def _check_whitespace(self) -> None:
        _check_unicode("whitespace_pattern", self.whitespace_pattern or "")
        for name in ("disable_any_whitespace", "whitespace_pattern"):
            if getattr(self, name) and self.form not in ("json", "json_object"):
                raise RequestError(
                    f"structured_outputs: {name} is about JSON, but {self.form} is given: leave "
                    "one of them out"
                )
        if self.disable_any_whitespace and self.whitespace_pattern is not None:
            raise RequestError(
                "structured_outputs: disable_any_whitespace leaves whitespace_pattern nothing to "
                "match: leave one of them out"
            )

    @property
    def form(self) -> Form:
        """Which of the forms it is."""
        return next(name for name in get_args(Form) if getattr(self, name) not in (None, False))

    @property
    def text(self) -> str:
        """What a grammar is made of: the schema, expression or grammar; choices as JSON."""
        value: object = getattr(self, self.form)
        if isinstance(value, str):
            return value
        return "" if isinstance(value, bool) else json.dumps(value, ensure_ascii=False)

    @property
    def key(self) -> bytes:
        """16 bytes that differ for all that compiles differently: what caches go by."""
        return blake2b(
            msgspec.msgpack.encode(self), digest_size=16, person=b"octavo.form/1"
        ).digest()


def _check_unicode(name: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise RequestError(
            f"structured_outputs: {name} has half a surrogate pair, which no answer can hold: "
            "leave it out"
        ) from None


def _choices(given: object) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise RequestError(
            f"structured_outputs: choice must be a list of texts, got {shown(given)}"
        )
    many = list(cast("Iterable[object]", given))
    texts = tuple(text for text in many if isinstance(text, str) and text)
    if not texts or len(texts) < len(many):
        raise RequestError(
            "structured_outputs: choice must be a list of at least one text, none of them empty, "
            f"got {shown(many)}"
        )
    if len(texts) > MAX_CHOICES:
        raise RequestError(
            f"structured_outputs: choice has {len(texts)} texts, but at most {MAX_CHOICES} are "
            "compiled: give fewer, or a grammar"
        )
    return texts


def _json_text(name: str, value: object) -> str:
    """Return a schema as text, keys in their order; one that is text already is only read."""
    try:
        if isinstance(value, str):
            _check_json(name, json.loads(value, parse_constant=_no_json))
            return value
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (ValueError, TypeError, RecursionError) as error:
        if isinstance(error, RequestError):
            raise
        raise RequestError(f"structured_outputs: {name} is no JSON: {error}") from None
    _check_json(name, value)
    return text


def _check_json(name: str, value: object) -> None:
    if isinstance(value, dict) or (name == "json" and isinstance(value, bool)):
        return
    kind = "an object, or true or false" if name == "json" else "an object"
    raise RequestError(f"structured_outputs: {name} must be {kind}, got {shown(value)}")


def _no_json(name: str) -> object:
    raise ValueError(f"{name} is no number of JSON")
