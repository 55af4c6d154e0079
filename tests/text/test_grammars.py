"""Forms are compiled once, beside everything else; a matcher lets come what the form allows."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from octavo.contract.structured import StructuredOutputs
from octavo.errors import ConfigError, OverLimit, RequestError
from octavo.models.gguf import GGUFFile
from octavo.text.grammars import compiler as compilers
from octavo.text.grammars.backend import Vocabulary
from octavo.text.grammars.compiler import GrammarCompiler
from octavo.text.grammars.llguidance import LlguidanceMaker
from octavo.text.tokenizer import Tokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tokenizer(tiny_folder) -> Tokenizer:
    return Tokenizer.from_folder(tiny_folder)


@pytest.fixture(scope="module")
def vocabulary(tokenizer) -> Vocabulary:
    # As a model's matrix, it has rows without a token.
    return Vocabulary.of(tokenizer, tokenizer.vocab_size + 7)


@pytest.fixture
def compiler(vocabulary):
    made = GrammarCompiler(lambda: vocabulary, {"llguidance": LlguidanceMaker})
    yield made
    made.close()


def allowed(matcher, vocabulary):
    mask = np.zeros(-(-vocabulary.size // 32), dtype=np.int32)
    matcher.fill(mask)
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")))


def accepts(form, text, compiler, tokenizer, vocabulary):
    """Return whether a whole answer may come, token by token and then an end."""
    matcher = compiler.start(form)
    for token in tokenizer.encode(text, add_special_tokens=False):
        if token not in allowed(matcher, vocabulary):
            return False
        matcher.consume([token])
    return set(vocabulary.ends) <= allowed(matcher, vocabulary)


@pytest.mark.parametrize(
    ("form", "good", "bad"),
    [
        ({"json": SCHEMA}, '{"a": 1, "b": "x"}', '{"a": 1, "b": "z"}'),
        ({"json": SCHEMA, "disable_any_whitespace": True}, '{"a":1,"b":"x"}', '{"a": 1,"b":"x"}'),
        ({"json_object": True}, '{"any": [1, {}]}', "[1]"),
        ({"regex": "[0-9]+(in)?"}, "12in", "in"),
        ({"choice": ["the", 'he said: "\n\U0001f600"']}, 'he said: "\n\U0001f600"', "he"),
        ({"grammar": 'start: "a" rest\nrest: /b+/'}, "abb", "ba"),
    ],
)
def test_an_answer_of_the_form_may_come_and_another_may_not(
    form, good, bad, compiler, tokenizer, vocabulary
):
    form = StructuredOutputs(**form)

    assert accepts(form, good, compiler, tokenizer, vocabulary)
    assert not accepts(form, bad, compiler, tokenizer, vocabulary)


def test_matchers_of_one_form_follow_texts_of_their_own(compiler, tokenizer, vocabulary):
    form = StructuredOutputs(choice=["ab", "cd"])
    first, second = compiler.start(form), compiler.start(form)

    first.consume(tokenizer.encode("a", add_special_tokens=False))

    assert allowed(first, vocabulary) == set(tokenizer.encode("b", add_special_tokens=False))
    assert allowed(second, vocabulary) == set(tokenizer.encode("ac", add_special_tokens=False))


def test_what_does_not_fit_is_refused_when_it_is_told(compiler, tokenizer):
    matcher = compiler.start(StructuredOutputs(choice=["ab"]))

    with pytest.raises(RequestError, match="structured_outputs"):
        matcher.consume(tokenizer.encode("b", add_special_tokens=False))


def test_a_form_behind_a_marker_begins_there_and_all_before_it_is_free(
    compiler, tokenizer, vocabulary
):
    form = StructuredOutputs(choice=["ab"], after="</think>")

    assert accepts(form, "</thi hello {} </think>ab", compiler, tokenizer, vocabulary)
    assert not accepts(form, "hello </think>b", compiler, tokenizer, vocabulary)
    assert not accepts(form, "hello", compiler, tokenizer, vocabulary)


def test_a_token_that_ends_the_marker_and_begins_the_form_may_not_come(
    compiler, tokenizer, vocabulary
):
    matcher = compiler.start(StructuredOutputs(choice=["xe"], after="h"))
    (joined,) = tokenizer.encode("he", add_special_tokens=False)

    assert joined not in allowed(matcher, vocabulary)
    assert accepts(
        StructuredOutputs(choice=["b"], after="x"), "xb", compiler, tokenizer, vocabulary
    )


@pytest.mark.parametrize(
    ("form", "quoted"),
    [
        ({"regex": "(ab"}, r"regex: .*\(ab"),
        ({"grammar": "start: foo"}, 'grammar: .*"foo"'),
        ({"json": {"type": "sort"}}, "json: .*sort"),
        ({"regex": "a", "backend": "xgrammar"}, "backend xgrammar is not one of llguidance"),
    ],
)
def test_what_cannot_be_compiled_is_refused_in_words_that_quote_it(form, quoted, compiler):
    with pytest.raises(RequestError, match=f"(?s)structured_outputs: {quoted}"):
        compiler.begin(StructuredOutputs(**form)).result()


def test_a_model_without_an_end_of_an_answer_has_no_forms(tokenizer):
    endless = Vocabulary(tokenizer.definition(), 300, (), tokenizer.token_bytes)
    compiler = GrammarCompiler(lambda: endless, {"llguidance": LlguidanceMaker})

    with pytest.raises(RequestError, match="no token that ends an answer"):
        compiler.start(StructuredOutputs(regex="a"))
    compiler.close()


class Counted:
    """Compiles nothing, and counts; waits for a gate if there is one."""

    def __init__(self, gate=None):
        self.forms = []
        self.gate = gate

    def __call__(self, vocabulary):
        return self

    def compile(self, form):
        if self.gate is not None:
            self.gate.wait(10)
        self.forms.append(form.text)
        return self

    def start(self):
        return self


def test_a_form_is_compiled_once_while_it_is_remembered(vocabulary):
    maker = Counted()
    compiler = GrammarCompiler(lambda: vocabulary, {"llguidance": maker})

    for _ in range(3):
        compiler.start(StructuredOutputs(regex="a"))
    compiler.start(StructuredOutputs(regex="b"))
    compiler.close()

    assert maker.forms == ["a", "b"]


def test_the_form_asked_for_longest_ago_is_forgotten_first(vocabulary, monkeypatch):
    monkeypatch.setattr(compilers, "MAX_FORMS", 2)
    maker = Counted()
    compiler = GrammarCompiler(lambda: vocabulary, {"llguidance": maker})

    for text in "abacab":
        compiler.start(StructuredOutputs(regex=text))
    compiler.close()

    assert maker.forms == ["a", "b", "c", "b"]


def test_large_forms_are_forgotten_sooner(vocabulary, monkeypatch):
    monkeypatch.setattr(compilers, "MAX_BYTES", 1 << 20)
    maker = Counted()
    compiler = GrammarCompiler(lambda: vocabulary, {"llguidance": maker})

    for text in ("a", "b" * 2000, "a", "c" * 2000, "b" * 2000):
        compiler.start(StructuredOutputs(regex=text))
    compiler.close()

    assert [text[0] for text in maker.forms] == ["a", "b", "c", "b"]


def test_whoever_begins_does_not_wait_and_too_many_are_refused(vocabulary, monkeypatch):
    monkeypatch.setattr(compilers, "MAX_WAITING", 2)
    gate = threading.Event()
    compiler = GrammarCompiler(lambda: vocabulary, {"llguidance": Counted(gate)})

    begun = [compiler.begin(StructuredOutputs(regex=text)) for text in "a"]
    while compiler._work.qsize():
        pass
    begun += [compiler.begin(StructuredOutputs(regex=text)) for text in "bc"]
    with pytest.raises(OverLimit, match="2 forms wait"):
        compiler.begin(StructuredOutputs(regex="d"))

    assert not any(one.done() for one in begun)
    gate.set()
    assert [one.result(10) for one in begun] == [None] * 3
    compiler.close()


def test_what_waits_when_all_is_closed_hears_of_it(vocabulary):
    gate = threading.Event()
    compiler = GrammarCompiler(lambda: vocabulary, {"llguidance": Counted(gate)})
    compiler.begin(StructuredOutputs(regex="a"))
    compiler.close()

    with pytest.raises(ConfigError, match="closed"):
        compiler.begin(StructuredOutputs(regex="b"))
    gate.set()


def test_a_backend_that_there_is_not_is_refused(vocabulary):
    with pytest.raises(ConfigError, match="structured_outputs_backend 'x' is not one of llg"):
        GrammarCompiler(lambda: vocabulary, {"llguidance": Counted()}, backend="x")


@pytest.mark.weights
def test_slices_of_the_vocabulary_change_no_mask(smollm2_path, monkeypatch):
    """Random answers with strings that end soon, beside masks of the library without slices."""
    vocabulary = Vocabulary.of(Tokenizer.from_gguf(GGUFFile(smollm2_path).metadata), 49_152)
    schema = {"type": "array", "items": {"type": "string", "maxLength": 33}, "minItems": 9}
    form = StructuredOutputs(json=schema)
    sliced = LlguidanceMaker(vocabulary).compile(form)
    monkeypatch.setattr("octavo.text.grammars.llguidance.SLICES", ())
    whole = LlguidanceMaker(vocabulary).compile(form)
    draw = random.Random(0)
    for _ in range(4):
        one, other = sliced.start(), whole.start()
        for _ in range(30):
            may = allowed(one, vocabulary)
            assert may == allowed(other, vocabulary)
            token = draw.choice(sorted(may))
            one.consume([token])
            other.consume([token])
