"""What every library that makes grammars must keep; raises AssertionError with what is broken."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.text.grammars.backend import GrammarMaker, TokenMatcher, Vocabulary
from octavo.text.grammars.byte_vocabulary import END, byte_vocabulary

SPARE = 9
"""Rows of a model's matrix that no token stands for."""

_JSON: list[tuple[object, list[str], list[str]]] = [
    ({"type": "integer"}, ["0", "-17"], ["1.5", '"1"', ""]),
    ({"type": "string", "maxLength": 2}, ['""', '"ab"', '"é!"'], ['"abc"', "1"]),
    ({"enum": ["a", 1, None]}, ['"a"', "1", "null"], ['"b"', "2"]),
    (
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        ["[true]", "[true,false]"],
        ["[]", "[1]", "[true,true,true]"],
    ),
    (
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "null"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        ['{"a":1}', '{"a":1,"b":null}'],
        ["{}", '{"b":null}', '{"a":1,"c":2}', '{"a":"1"}'],
    ),
    (
        {"$defs": {"n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/o"}]}}}
        | {"$ref": "#/$defs/n"}
        | {"$defs": {
            "n": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/o"}]},
            "o": {"type": "array", "items": {"$ref": "#/$defs/n"}, "maxItems": 1},
        }},
        ["null", "[[[]]]", "[[null]]"],
        ["1", "[1]", "[null,null]"],
    ),
    ({"type": "string", "pattern": "^a+$"}, ['"a"', '"aaa"'], ['""', '"ab"']),
]  # fmt: skip


def byte_tokens() -> Vocabulary:
    """Return a vocabulary of single bytes, an end, and rows that no token stands for."""
    return Vocabulary(
        byte_vocabulary(),
        END + 1 + SPARE,
        (END,),
        lambda token: bytes([token]) if token < 256 else b"",
    )


def check_grammar_maker(make: Callable[[Vocabulary], GrammarMaker]) -> None:
    """Check a library that makes grammars. make: returns it over a vocabulary."""
    maker = make(byte_tokens())
    _an_expression_is_matched_whole(maker)
    _a_choice_is_one_of_them(maker)
    _json_fits_its_schema(maker)
    _space_between_the_parts_of_json_can_be_forbidden(maker)
    _any_object_is_one(maker)
    _a_tag_holds_what_is_in_it(maker)
    _matchers_know_nothing_of_each_other(maker)
    _what_does_not_fit_is_refused(maker)
    _after_the_end_nothing_comes(maker)
    _what_cannot_be_compiled_is_the_callers_error(maker)


def allowed(matcher: TokenMatcher) -> set[int]:
    """Return the tokens that may come next."""
    mask = np.full(-(-(END + 1 + SPARE) // 32), -1, dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    found = {int(token) for token in np.flatnonzero(bits)}
    assert max(found, default=0) <= END, "a row without a token may come next"
    return found


def accepts(matcher: TokenMatcher, text: str) -> bool:
    """Return whether a whole answer may come, token by token and then the end."""
    for token in text.encode():
        if token not in allowed(matcher):
            return False
        matcher.consume([token])
    return END in allowed(matcher)


def _start(maker: GrammarMaker, **form: Any) -> Callable[[], TokenMatcher]:
    return maker.compile(StructuredOutputs(**form)).start


def _an_expression_is_matched_whole(maker: GrammarMaker) -> None:
    for regex in ("a|ab|b{2}", "(ab)*a?", "[^b]b?", "a{1,2}(b|aa)"):
        start = _start(maker, regex=regex)
        for length in range(5):
            for letters in product("ab", repeat=length):
                text = "".join(letters)
                wanted = re.fullmatch(regex, text) is not None
                assert accepts(start(), text) == wanted, f"{regex!r} and {text!r}: not {wanted}"


def _a_choice_is_one_of_them(maker: GrammarMaker) -> None:
    texts = ["ab", "abc", 'say "é"\n', "\\"]
    start = _start(maker, choice=texts)
    assert all(accepts(start(), text) for text in texts), f"one of {texts} may not come"
    assert not any(accepts(start(), text) for text in ("a", "abcd", "x")), "another text may come"


def _json_fits_its_schema(maker: GrammarMaker) -> None:
    for schema, good, bad in _JSON:
        start = _start(maker, json=schema, disable_any_whitespace=True)
        for text in good:
            assert accepts(start(), text), f"{text} is valid for {schema} and may not come"
        for text in bad:
            assert not accepts(start(), text), f"{text} is not valid for {schema} and may come"


def _space_between_the_parts_of_json_can_be_forbidden(maker: GrammarMaker) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "null"}}, "required": ["a"]}
    spaced = '{"a": null}'
    assert accepts(_start(maker, json=schema)(), spaced), "white space may not come"
    tight = _start(maker, json=schema, disable_any_whitespace=True)
    assert not accepts(tight(), spaced), "white space may come that is forbidden"


def _any_object_is_one(maker: GrammarMaker) -> None:
    start = _start(maker, json_object=True)
    assert accepts(start(), '{"a":[1,{"b":null}]}'), "an object may not come"
    assert not accepts(start(), "[]"), "a list may come for an object"


def _a_tag_holds_what_is_in_it(maker: GrammarMaker) -> None:
    schema = {"type": "integer"}
    tag = {"structures": [{"begin": "<f=a>", "schema": schema, "end": "</f>"}], "triggers": ["<f"]}
    start = _start(maker, structural_tag=json.dumps({"type": "structural_tag", **tag}))
    for text in ("no call", "one <f=a>1</f>", "<f=a>1</f> and <f=a>2</f>."):
        assert accepts(start(), text), f"{text!r} may not come"
    for text in ("<f=b>", "<f=a>x", "<f=a>1</g>"):
        assert not accepts(start(), text), f"{text!r} may come"


def _matchers_know_nothing_of_each_other(maker: GrammarMaker) -> None:
    start = _start(maker, choice=["ab", "cd"])
    first, second = start(), start()
    first.consume(list(b"a"))
    assert allowed(first) == set(b"b"), "a matcher does not follow its text"
    assert allowed(second) == set(b"ac"), "a matcher follows another's text"


def _what_does_not_fit_is_refused(maker: GrammarMaker) -> None:
    matcher = _start(maker, choice=["ab"])()
    try:
        matcher.consume(list(b"b"))
    except RequestError:
        return
    raise AssertionError("a token that does not fit was taken")


def _after_the_end_nothing_comes(maker: GrammarMaker) -> None:
    matcher = _start(maker, regex="a+")()
    matcher.consume(list(b"aa"))
    assert allowed(matcher) == {*b"a", END}, "an answer that is complete may end or go on"
    matcher.consume([END])
    assert not allowed(matcher) - {END}, "a text goes on after its end"


def _what_cannot_be_compiled_is_the_callers_error(maker: GrammarMaker) -> None:
    for form in (
        {"regex": "(ab"},
        {"json": {"type": "sort"}},
        {"structural_tag": {"triggers": ["x"], "structures": [{"begin": "y"}]}},
    ):
        told = ""
        try:
            maker.compile(StructuredOutputs(**form))  # pyright: ignore[reportArgumentType]
        except RequestError as error:
            told = str(error)
        assert told.startswith("structured_outputs: "), f"{form} was compiled, or: {told}"
