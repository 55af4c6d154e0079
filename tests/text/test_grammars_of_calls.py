"""The grammars of calls take what a template writes, and nothing by which no tool is called."""

from __future__ import annotations

import json

import pytest
import tokenizers

from octavo.contract.structured import StructuredOutputs
from octavo.errors import RequestError
from octavo.models.gguf import GGUFFile
from octavo.text.conversation import Tool, ToolChoice
from octavo.text.formats.reading import Formats, ToolUse
from octavo.text.formats.table import TOOL_FORMATS
from octavo.text.grammars.backend import Vocabulary
from octavo.text.grammars.llguidance import LlguidanceMaker
from octavo.text.tokenizer import SpecialTokens, Tokenizer

LOOK = Tool(
    name="look",
    strict=True,
    parameters={"properties": {"a": {"type": "integer"}}, "additionalProperties": False},
)
GO = Tool(name="go", parameters={"properties": {"b": {"type": "integer"}}})
HERMES = TOOL_FORMATS["hermes"].spelling
ONE = HERMES.write([("look", '{"a": 1}')])
WRONG = HERMES.write([("look", '{"a": "1"}')])


@pytest.fixture(scope="module")
def tokenizer(tiny_gguf):
    return Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)


@pytest.fixture(scope="module")
def maker(tokenizer):
    return LlguidanceMaker(Vocabulary.of(tokenizer, tokenizer.vocab_size))


def takes(maker, tokenizer, form, text):
    """Tell whether an answer may be this text and end."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    try:
        maker.compile(form).start().consume([*ids, *tokenizer.eos_token_ids])
    except RequestError:
        return False
    return True


def form_of(tokenizer, *tools, row="hermes", reasoning="none", prompt="", form=None, **use):
    formats = Formats.find(tokenizer, row, reasoning)
    return formats.form(ToolUse(tools=tools, **use), prompt, form)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (ONE, True),
        (ONE + "\n" + HERMES.write([("go", "{}")]), True),
        (ONE + "\n" + ONE, True),
        (WRONG, False),
        (ONE.replace(": 1", ":1"), False),
        (ONE + " and so", False),
        ("so " + ONE, False),
        (HERMES.write([("other", "{}")]), False),
    ],
)
def test_an_answer_that_must_call_is_nothing_but_calls(maker, tokenizer, text, taken):
    form = form_of(tokenizer, LOOK, GO, choice=ToolChoice("required"))

    assert takes(maker, tokenizer, form, text) is taken


def test_one_call_is_one(maker, tokenizer):
    form = form_of(tokenizer, LOOK, GO, choice=ToolChoice("required"), parallel=False)

    assert takes(maker, tokenizer, form, ONE)
    assert not takes(maker, tokenizer, form, ONE + "\n" + ONE)


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("the hell", True),
        (f"the\n{ONE} on", True),
        (WRONG, False),
        (HERMES.write([("go", '{"b": "any"}')]), True),
        (HERMES.write([("other", "{}")]), False),
    ],
)
def test_a_model_that_is_free_to_call_a_strict_tool_calls_it_right(maker, tokenizer, text, taken):
    form = form_of(tokenizer, LOOK, GO)

    assert takes(maker, tokenizer, form, text) is taken


LLAMA = TOOL_FORMATS["llama3_json"].spelling.write([("look", '{"a": 1}')])
LLAMA_WRONG = LLAMA.replace("1", '"1"')
MISTRAL = TOOL_FORMATS["mistral"].spelling.write([("look", '{"a": 1}'), ("go", '{"b": "any"}')])


@pytest.mark.parametrize(
    ("row", "text", "taken"),
    [
        ("llama3_json", LLAMA, True),
        ("llama3_json", f" \n{LLAMA}", True),
        ("llama3_json", LLAMA.replace("{", '{"type": "function", ', 1), True),
        ("llama3_json", f"{LLAMA}; {LLAMA}", True),
        ("llama3_json", f"so\n<|python_tag|>{LLAMA}", True),
        ("llama3_json", LLAMA.replace("look", "go").replace("1", '"any"'), True),
        ("llama3_json", "", True),
        ("llama3_json", "the hell", True),
        ("llama3_json", '{"name": "hello", "a": 1}', True),
        ("llama3_json", '{"name": "lo', True),
        ("llama3_json", "<|python_tag|>hello(1)", True),
        ("llama3_json", f"so {LLAMA_WRONG}", True),
        ("llama3_json", LLAMA_WRONG, False),
        ("llama3_json", f" {LLAMA_WRONG}", False),
        ("llama3_json", LLAMA_WRONG.replace(" ", ""), False),
        ("llama3_json", LLAMA_WRONG.replace('"name"', '"id": "a", "name"'), False),
        ("llama3_json", LLAMA_WRONG.replace("look", "l\\u006fok"), False),
        ("llama3_json", '{"parameters": {"a": "1"}, "name": "look"}', False),
        ("llama3_json", f"{LLAMA}; {LLAMA_WRONG}", False),
        ("llama3_json", f"so\n<|python_tag|>{LLAMA_WRONG}", False),
        ("mistral", MISTRAL, True),
        ("mistral", f"so{MISTRAL} on", True),
        ("mistral", "the [hell]", True),
        ("mistral", MISTRAL.replace("1", '"1"'), False),
        ("mistral", '[TOOL_CALLS]look[ARGS]{"a": "1"}', False),
        ("mistral", "[TOOL_CALLS] [1]", False),
    ],
)
def test_so_does_one_that_marks_its_calls_otherwise(maker, tokenizer, row, text, taken):
    assert takes(maker, tokenizer, form_of(tokenizer, LOOK, GO, row=row), text) is taken


CODER = TOOL_FORMATS["qwen3_coder"]
WRITE = Tool(
    name="write",
    strict=True,
    parameters={
        "properties": {
            "path": {"type": "string", "pattern": "^[a-z]+/?$", "maxLength": 6},
            "text": {"type": "string"},
            "mode": {"enum": ["a", "w"]},
            "size": {"$ref": "#/$defs/size"},
            "rows": {"type": "array", "items": {"type": ["integer", "string"]}},
        },
        "required": ["path", "text"],
        "additionalProperties": False,
        "$defs": {"size": {"type": ["integer", "null"], "minimum": 1}},
    },
)
GIVEN = {
    "path": "a/", "text": 'x <b>"\n\n</parameter\n', "mode": "w", "size": 3, "rows": [1, "</"]
}  # fmt: skip


def coder_call(name="write", **changed):
    left = {key: value for key, value in (GIVEN | changed).items() if value is not ...}
    return CODER.spelling.write([(name, json.dumps(left))])


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        (coder_call(), True),
        (coder_call(mode=..., rows=...), True),
        (coder_call(text=""), True),
        (coder_call(rows=["</parameter>"]), True),
        (coder_call() + "\n" + CODER.spelling.write([("go", '{"b": 1}')]), True),
        (coder_call(path="a1"), False),
        (coder_call(path="abcdefg"), False),
        (coder_call(mode="r"), False),
        (coder_call(size=0), False),
        (coder_call(text=...), False),
        (coder_call(text="a</parameter>b"), False),
        (coder_call(more=1), False),
        (coder_call("other"), False),
        (coder_call() + " on", False),
    ],
)
def test_parameters_between_marks_fit_their_schemas(maker, tokenizer, text, taken):
    form = form_of(tokenizer, WRITE, GO, row="qwen3_coder", choice=ToolChoice("required"))

    assert takes(maker, tokenizer, form, text) is taken


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("so <function=write>", True),
        (f"so\n{coder_call()} on", True),
        (coder_call("go", rows="any"), True),
        (coder_call(size=0), False),
        ("<tool_call>\n{}", False),
    ],
)
def test_a_model_that_is_free_to_write_parameters_writes_strict_ones_right(
    maker, tokenizer, text, taken
):
    assert takes(maker, tokenizer, form_of(tokenizer, WRITE, GO, row="qwen3_coder"), text) is taken


def test_what_is_forced_between_marks_is_read_as_it_was_meant():
    (first, *more) = CODER.parser({"write": WRITE}, str).push(coder_call()).calls

    assert first.name == "write"
    assert json.loads("".join(piece.arguments for piece in more)) == GIVEN


@pytest.mark.parametrize(
    ("parameters", "told"),
    [
        ({"minProperties": 1}, "minProperties is not held"),
        ({"properties": {"a>b": {}}}, "a parameter cannot be called 'a>b'"),
        ({"properties": {"a": {"type": "string", "pattern": "^a|b$"}}}, "is not held here: write"),
        ({"properties": {"a": {"type": "string", "format": "regex"}}}, "format regex is not"),
        ({"properties": {"a": {"type": "string", "maxLength": "9"}}}, "must be a whole number"),
    ],
)
def test_parameters_that_cannot_be_held_between_marks_are_refused(tokenizer, parameters, told):
    tool = Tool(name="write", parameters=parameters)

    with pytest.raises(RequestError, match=f"tools: parameters of 'write': .*{told}"):
        form_of(tokenizer, tool, row="qwen3_coder", choice=ToolChoice("required"))


def test_without_strict_tools_a_free_model_is_free(tokenizer):
    assert form_of(tokenizer, GO) is None


def test_calls_begin_behind_reasoning_unless_the_prompt_has_ended_it(tokenizer):
    use = {"choice": ToolChoice("required"), "reasoning": "qwen3"}

    open_ = form_of(tokenizer, GO, prompt="<think>\n", **use)
    closed = form_of(tokenizer, GO, prompt="<think>\n\n</think>\n\n", **use)

    assert open_ is not None
    assert closed is not None
    assert open_.grammar is not None
    assert (open_.after, closed.after) == ("</think>", "")
    assert open_.grammar.startswith('start: "\\n\\n" call')


def test_a_form_that_was_asked_for_begins_behind_reasoning_too(tokenizer):
    asked = StructuredOutputs(json_object=True)

    held = form_of(tokenizer, reasoning="qwen3", form=asked)

    assert held is not None
    assert held.after == "</think>"
    assert form_of(tokenizer, form=asked) is asked


def test_two_forms_at_once_are_refused(tokenizer):
    with pytest.raises(RequestError, match="an answer of calls alone has no other form"):
        form_of(
            tokenizer,
            GO,
            choice=ToolChoice("required"),
            form=StructuredOutputs(json_object=True),
        )


@pytest.fixture(scope="module")
def marked(tokenizer):
    """A vocabulary where the mark before a call is a token that is called special by nobody."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.definition())
    backend.add_tokens([tokenizers.AddedToken("<tool_call>", special=False)])
    ends = SpecialTokens(None, tokenizer.eos_token_ids, {}, adds_bos=None, adds_eos=None)
    return Tokenizer(backend, ends, {})


def test_a_mark_that_is_a_token_of_its_own_is_that_token(marked):
    maker = LlguidanceMaker(Vocabulary.of(marked, marked.vocab_size))
    tag = {"begin": "<tool_call>\n", "schema": {"type": "object"}, "end": "\n</tool_call>"}
    tags = {"type": "structural_tag", "triggers": ["<tool_call>"], "structures": [tag]}
    forms = [
        form_of(marked, LOOK, GO),
        form_of(marked, LOOK, GO, choice=ToolChoice("required")),
        StructuredOutputs(structural_tag=tags),
    ]

    assert len(marked.encode("<tool_call>")) == 1
    assert [takes(maker, marked, form, ONE) for form in forms] == [True] * 3
    assert [takes(maker, marked, form, "<tool_call>\nno") for form in forms] == [False] * 3
