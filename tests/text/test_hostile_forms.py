"""What would take a library hours, all memory or the process itself is refused, and soon."""

from __future__ import annotations

import json
import threading
import time

import pytest

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.text.grammars.backend import Vocabulary
from octavo.text.grammars.compiler import GrammarCompiler
from octavo.text.grammars.table import GRAMMAR_BACKENDS
from octavo.text.grammars.trial import Trial
from octavo.text.tokenizer import Tokenizer

SOON_S = 20.0
"""On the wall, with others on the machine; by its processor a form may take one second."""


def chain(length):
    links = {f"d{i}": {"properties": {"x": {"$ref": f"#/$defs/d{i + 1}"}}} for i in range(length)}
    return {"$ref": "#/$defs/d0", "$defs": {**links, f"d{length}": {"type": "string"}}}


QUICK = {
    "a number that only hours of search would find": {
        "json": {"type": "integer", "multipleOf": 99999989}
    },
    "references in a chain": {"json": json.dumps(chain(8000))},
}
SLOW = {
    "repetitions of repetitions": {"regex": "((a{900}){900}){900}"},
    "a hundred thousand letters that may come": {"regex": "a?" * 100_000},
    "thousands of properties": {
        "json": {"properties": {f"p{i}": {"type": "string"} for i in range(8000)}}
    },
}


@pytest.fixture(scope="module")
def vocabulary(tiny_folder):
    return Vocabulary.of(Tokenizer.from_folder(tiny_folder), 272)


@pytest.fixture(scope="module")
def compiler(vocabulary):
    made = GrammarCompiler(lambda: vocabulary, GRAMMAR_BACKENDS, trial=Trial)
    made.start(StructuredOutputs(regex="a"))
    yield made
    made.close()


@pytest.mark.parametrize(
    "form",
    [
        *(pytest.param(form, id=name) for name, form in QUICK.items()),
        *(pytest.param(form, id=name, marks=pytest.mark.slow) for name, form in SLOW.items()),
    ],
)
def test_a_hostile_form_is_refused_soon_and_the_next_one_is_compiled(compiler, form):
    before_s = time.monotonic()

    with pytest.raises(RequestError, match="structured_outputs"):
        compiler.start(StructuredOutputs(**form))

    assert time.monotonic() - before_s < SOON_S
    compiler.start(StructuredOutputs(regex=f"b{len(str(form))}"))


def test_nobody_else_stands_still_meanwhile(compiler):
    done = compiler.begin(StructuredOutputs(regex="((b{900}){900}){900}"))
    longest_s, last_s = 0.0, time.thread_time()
    threads = threading.active_count()
    while not done.done():
        # Of this thread's own work: others on the machine may take the processor, none of ours.
        now_s = time.thread_time()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
        time.sleep(0.001)

    assert longest_s < 0.02
    assert threading.active_count() == threads


def test_what_a_library_refuses_is_refused_in_its_words(compiler):
    with pytest.raises(RequestError, match=r"(?s)structured_outputs: regex: .*\(ab"):
        compiler.start(StructuredOutputs(regex="(ab"))


def test_an_answer_behind_a_marker_is_tried_too(compiler):
    with pytest.raises(RequestError, match="work"):
        compiler.start(StructuredOutputs(regex="a?" * 100_000, after="</think>"))


def test_closing_ends_the_process(vocabulary):
    trial = Trial("llguidance", vocabulary)
    trial.run(StructuredOutputs(regex="a"))
    process = trial._process

    trial.close()
    trial.close()

    assert process.poll() is not None


def test_a_process_that_somebody_has_ended_is_started_again(vocabulary):
    trial = Trial("llguidance", vocabulary)
    trial.run(StructuredOutputs(regex="a"))
    trial._process.kill()
    trial._process.wait()

    trial.run(StructuredOutputs(regex="b"))
    trial.close()


@pytest.fixture(scope="module")
def other(vocabulary):
    pytest.importorskip("xgrammar", reason="xgrammar is an extra that is not installed")
    made = GrammarCompiler(lambda: vocabulary, GRAMMAR_BACKENDS, backend="xgrammar", trial=Trial)
    yield made
    made.close()


@pytest.mark.slow  # it loads torch, twice
def test_another_library_has_as_little_time_and_goes_on_with_the_next_form(other):
    other.start(StructuredOutputs(regex="a+"))  # loaded
    before_s = time.monotonic()

    with pytest.raises(RequestError, match="it takes more than 1 s of work"):
        other.start(StructuredOutputs(regex="a?" * 32_000))

    assert time.monotonic() - before_s < SOON_S
    other.start(StructuredOutputs(json={"properties": {"a": {"type": "string"}}}))


def test_a_form_is_tried_with_the_tokens_that_its_library_reads(vocabulary):
    of_tokens = Trial("xgrammar", vocabulary)._words.vocabulary()
    of_definition = Trial("llguidance", vocabulary)._words.vocabulary()

    assert [of_tokens.spell(token) for token in range(of_tokens.size)] == [
        vocabulary.spell(token) for token in range(vocabulary.size)
    ]
    assert of_definition.spell(5) == b""
    assert of_definition.definition == vocabulary.definition
