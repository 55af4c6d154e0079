"""Names of hosts are those there can be and no others, those in Punycode among them."""

from __future__ import annotations

import json
from random import Random

import numpy as np
import pytest

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.models.gguf import GGUFFile
from octavo.testing.grammar_suite import byte_tokens
from octavo.text.grammars.backend import Vocabulary
from octavo.text.grammars.byte_vocabulary import END
from octavo.text.grammars.llguidance import LlguidanceMaker
from octavo.text.grammars.schema.hosts import is_international
from octavo.text.tokenizer import Tokenizer

HOST = {"type": "string", "format": "hostname"}


@pytest.fixture(scope="module")
def maker():
    return LlguidanceMaker(byte_tokens())


def start(maker, schema):
    return maker.compile(StructuredOutputs(json=json.dumps(schema))).start()


def takes(maker, schema, value):
    try:
        start(maker, schema).consume([*json.dumps(value, ensure_ascii=False).encode(), END])
    except RequestError:
        return False
    return True


def allowed(matcher):
    mask = np.zeros(-(-byte_tokens().size // 32), dtype=np.int32)
    matcher.fill(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return {chr(token) if token != END else "" for token in np.flatnonzero(bits)}


@pytest.mark.parametrize(
    "name",
    [
        "a", "x", "xn", "x-n", "xn-a", "X", "7", "a-b.c", "xa--b", f"{'x' * 63}.nx",
        "xn--bcher-kva", "www.xn--bcher-kva.de", "XN--BCHER-KVA.de",
        ".".join(["a" * 63] * 3 + ["b" * 61]),
        f"{'a' * 63}.{'a' * 63}.{'a' * 63}.{'b' * 47}.xn--bcher-kva",
    ],
)  # fmt: skip
def test_a_name_that_there_can_be_is_allowed(maker, name):
    assert takes(maker, HOST, name)


@pytest.mark.parametrize(
    "name",
    [
        "", ".", "a.", ".a", "-a", "a-", "a_b", "a..b", "ä", "x-", "xn-", "xn--", "xn--a",
        "xn--a.b", "a.xn--abc-", "x" * 64, ".".join(["a" * 63] * 3 + ["b" * 62]),
        "xn--bcher-kva-", "xn---",
        f"{'a' * 63}.{'a' * 63}.{'a' * 63}.{'b' * 48}.xn--bcher-kva", "\U0010ffff" * 9,
    ],
)  # fmt: skip
def test_a_name_that_there_cannot_be_is_forbidden(maker, name):
    assert not takes(maker, HOST, name)


def test_other_strings_may_hold_what_no_name_does(maker):
    schema = {
        "properties": {"host": HOST, "text": {"type": "string"}, "key": {"pattern": "^[^ ]*$"}}
    }

    assert takes(maker, schema, {"host": "a", "text": "xn--a \U0010fffd", "key": "xn--a"})
    assert takes(maker, schema, {"host": "xn--bcher-kva", "text": "a xn--bcher-kva"})
    assert not takes(maker, schema, {"host": "xn--a", "text": ""})


def test_a_string_that_another_rule_allows_may_be_no_name(maker):
    schema = {"anyOf": [HOST, {"enum": ["xn--a", "-"]}, {"type": "string", "format": "ipv6"}]}

    for one in ("xn--a", "::1", "xn--bcher-kva", "-"):
        assert takes(maker, schema, one)
    assert not takes(maker, schema, "xn--b")


def test_given_values_that_are_names_are_kept_and_others_are_not(maker):
    schema = {**HOST, "enum": ["xn--bcher-kva", "xn--a", "a.b", "a_b"]}

    assert [takes(maker, schema, one) for one in schema["enum"]] == [True, False, True, False]


@pytest.mark.parametrize("more", [{"pattern": "^a"}, {"not": {"const": "a"}}])
def test_another_rule_for_the_same_name_is_refused(maker, more):
    with pytest.raises(RequestError, match="`format`: hostname is not supported together with"):
        start(maker, {**HOST, **more})


def test_masks_allow_what_is_taken_and_an_end_once_the_label_is_a_name(maker):
    matcher, ends = start(maker, HOST), []
    for letter in '"xn--bcher-kva"':
        may = allowed(matcher)
        assert letter in may
        ends.append('"' in may)
        matcher.consume([ord(letter)])

    assert allowed(matcher) == {""}
    assert ends[2:5] == [True, True, False]  # x and xn are names, too
    assert ends[-1]
    assert not any(ends[5:-4])


@pytest.mark.parametrize("seed", range(2))
def test_whatever_is_drawn_of_the_masks_comes_to_an_end(maker, seed):
    draw, matcher, written = Random(seed), start(maker, HOST), '"xn--' + "a" * seed * 40
    matcher.consume([*written.encode()])
    while not written.endswith('"'):
        may = allowed(matcher)
        written += draw.choice(sorted(may - {".", '"'}) or sorted(may))
        matcher.consume([ord(written[-1])])

    assert all(is_international(one) for one in written[1:-1].split(".") if one[:4] == "xn--")


def test_tokens_of_many_letters_are_read_letter_by_letter(tiny_gguf):
    tokenizer = Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)
    maker = LlguidanceMaker(Vocabulary.of(tokenizer, tokenizer.vocab_size))
    taken = []
    for name in ("hello.xn--hello-bcher-zhb.in", "hello.xn--a.in", "hello"):
        ids = tokenizer.encode(json.dumps({"a": name}), add_special_tokens=False)
        assert b"hello" in map(tokenizer.token_bytes, ids)
        matcher = start(maker, {"properties": {"a": HOST}})
        try:
            matcher.consume([*ids, *tokenizer.eos_token_ids])
        except RequestError:
            taken.append(False)
        else:
            taken.append(True)

    assert taken == [True, False, True]
