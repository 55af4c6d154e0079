"""Calls and reasoning are read out of an answer alike, however its text is cut."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo.errors import ConfigError
from octavo.text.conversation import Tool
from octavo.text.formats.table import REASONING_FORMATS, TOOL_FORMATS, find_format
from octavo.text.parsing import OneCall

PARAMETERS = {"properties": {"city": {"type": "string"}, "days": {"type": "array"}}}
NAMES = {name: Tool(name=name, parameters=PARAMETERS) for name in ("look", "look_up", "go.to")}
ARGUMENTS = '{"city": "Ås {}\\"\\\\", "days": [1, {"a": null}]}'

CALLS = [
    # name of the row, an answer, its content, its calls
    ("hermes", "just words", "just words", []),
    (
        "hermes",
        f'Well.\n<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>',
        "Well.",
        [("look", ARGUMENTS)],
    ),
    (
        "hermes",
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>\n'
        '<tool_call>{"arguments":{"a":"</tool_call>"},"name":"go.to"}</tool_call>\n',
        "",
        [("look", "{}"), ("go.to", '{"a":"</tool_call>"}')],
    ),
    ("hermes", '<tool_call>{"name": "look"}</tool_call> and so', " and so", [("look", "{}")]),
    ("hermes", '<tool_call>{"name":"look","arguments":{"a":1}}}', "", [("look", '{"a":1}')]),
    ("hermes", '<tool_call>{"name": "look", "arguments": {"a": [1', "", [("look", '{"a": [1')]),
    ("hermes", "<tool_call>no call</tool_call>", "<tool_call>no call</tool_call>", []),
    (
        "hermes",
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "other", "arguments": {}}</tool_call>',
        [],
    ),
    ("hermes", '<tool_call>{"name": "lo', '<tool_call>{"name": "lo', []),
    ("hermes", "so\n<tool_c", "so\n<tool_c", []),
    ("hermes", '<tool_call>[{"name": "look"}]', '<tool_call>[{"name": "look"}]', []),
    (
        "llama3_json",
        f'{{"name": "look", "parameters": {ARGUMENTS}}}',
        "",
        [("look", ARGUMENTS)],
    ),
    (
        "llama3_json",
        '<|python_tag|>{"type": "function", "name": "look", "parameters": {}}; '
        '{"name": "go.to", "parameters": {"x": 1}}',
        "",
        [("look", "{}"), ("go.to", '{"x": 1}')],
    ),
    ("llama3_json", ' {"city": "Oslo"}', ' {"city": "Oslo"}', []),
    ("llama3_json", 'As {"name": "look"}', 'As {"name": "look"}', []),
    ("llama3_json", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    (
        "mistral",
        f'[TOOL_CALLS] [{{"name": "look", "arguments": {ARGUMENTS}}}, '
        '{"name": "go.to", "arguments": {}, "id": "abcdefghi"}]',
        "",
        [("look", ARGUMENTS), ("go.to", "{}")],
    ),
    (
        "mistral",
        'So[TOOL_CALLS]look_up[ARGS]{"a": 1}[TOOL_CALLS]look{"b": 2}',
        "So",
        [("look_up", '{"a": 1}'), ("look", '{"b": 2}')],
    ),
    ("mistral", "[TOOL_CALLS] [1]", "[TOOL_CALLS] [1]", []),
    ("mistral", "[TOOL_CALLS]other[ARGS]{}", "[TOOL_CALLS]other[ARGS]{}", []),
    (
        "qwen3_coder",
        'So.\n<tool_call>\n<function=look>\n<parameter=city>\n1 "<Ås>"\n\n</parameter>\n'
        '<parameter=days>\n[1, {"a": "</parameter>"}]\n</parameter>\n</function>\n</tool_call>',
        "So.",
        [("look", '{"city": "1 \\"<Ås>\\"\\n", "days": [1, {"a": "</parameter>"}]}')],
    ),
    (
        "qwen3_coder",
        "<tool_call><function=look><parameter=city>a</parameter><parameter=x>True</parameter>"
        "<parameter=y> 1.50 </parameter><parameter=z>so so</parameter></function></tool_call>"
        "\n<function=go.to>\n</function>\n</tool_call> on",
        " on",
        [("look", '{"city": "a", "x": true, "y": 1.50, "z": "so so"}'), ("go.to", "{}")],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=look>\n<parameter=city>\nÅs and",
        "",
        [("look", '{"city": "Ås and')],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=look>\n<parameter=days>\n[1",
        "",
        [("look", '{"days": ')],
    ),
    ("qwen3_coder", "<tool_call>\n<function=look>\n</tool_call>", "", [("look", "{}")]),
    (
        "qwen3_coder",
        "a\n<tool_call> <function=other>\n</function>",
        "a\n<tool_call> <function=other>\n</function>",
        [],
    ),
    ("qwen3_coder", "a <tool_call>\n{}", "a <tool_call>\n{}", []),
    ("qwen3_coder", "<tool_call>\n<function=lo", "<tool_call>\n<function=lo", []),
]

THOUGHTS = [
    # name of the row, begun by the prompt, an answer, its reasoning, its content
    ("qwen3", False, "<think>\nwhy\n</think>\n\nso", "why", "so"),
    ("qwen3", True, "why\n\n</think>so <think>", "why\n", "so <think>"),
    ("qwen3", False, "no thought", "", "no thought"),
    ("qwen3", False, "\n<think>cut off", "cut off", ""),
    ("qwen3", False, " <thi", "", " <thi"),
    ("deepseek_r1", True, "all of it", "all of it", ""),
    ("mistral", False, "[THINK]why[/THINK]so", "why", "so"),
]


def ids(number):
    return f"id-{number}"


def read(parser, pieces):
    """Return what a parser says of an answer all together: its pieces joined, call by call."""
    said = [*map(parser.push, pieces), parser.finish()]
    calls = [call for one in said for call in one.calls]
    joined = []
    for number in sorted({call.index for call in calls}):
        own = [call for call in calls if call.index == number]
        assert own[0].name
        assert own[0].id == ids(number)
        assert not any(call.name or call.id for call in own[1:])
        joined.append((own[0].name, "".join(call.arguments for call in own)))
    content = "".join(one.content for one in said)
    return content, "".join(one.reasoning for one in said), joined


def cut(text, places):
    ends = [0, *sorted(place % (len(text) + 1) for place in places), len(text)]
    return [text[start:end] for start, end in pairwise(ends)]


@pytest.mark.parametrize(("row", "answer", "content", "calls"), CALLS)
def test_an_answer_is_read_as_content_and_calls(row, answer, content, calls):
    parser = TOOL_FORMATS[row].parser(NAMES, ids)

    assert read(parser, [answer]) == (content, "", calls)


@pytest.mark.parametrize(("row", "answer", "content", "calls"), CALLS)
def test_an_answer_letter_by_letter_is_the_same(row, answer, content, calls):
    parser = TOOL_FORMATS[row].parser(NAMES, ids)

    assert read(parser, answer) == (content, "", calls)


@pytest.mark.parametrize(("row", "opened", "answer", "reasoning", "content"), THOUGHTS)
def test_reasoning_is_split_from_the_rest(row, opened, answer, reasoning, content):
    for pieces in ([answer], answer):
        rest = TOOL_FORMATS["hermes"].parser(NAMES, ids)
        parser = REASONING_FORMATS[row].parser(rest, opened=opened)

        assert read(parser, pieces) == (content, reasoning, [])


PARTS = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "\n", " ", "{", "}", "[", "]", '"', ",", ": ", "\\", "x",
        '"name": "look"', '"arguments": {', '"parameters": {', '"a": 1', "<think>", "</think>",
        "[TOOL_CALLS]", "[ARGS]", "look", "<|python_tag|>", ";", "<function=look>", "</function>",
        "<parameter=city>", "<parameter=x>", "</parameter>", "<function=", "True",
        '{"name": "look", "arguments": {"a": "b"}}',
    ]
)  # fmt: skip


@given(
    row=st.sampled_from(["hermes", "llama3_json", "mistral", "qwen3_coder"]),
    answer=st.lists(PARTS, max_size=14).map("".join),
    places=st.lists(st.integers(0, 200), max_size=8),
    opened=st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_where_an_answer_is_cut_changes_nothing(row, answer, places, opened):
    def parser():
        rest = TOOL_FORMATS[row].parser(NAMES, ids)
        return REASONING_FORMATS["qwen3"].parser(rest, opened=opened)

    assert read(parser(), cut(answer, places)) == read(parser(), [answer])


@pytest.mark.parametrize("row", ["hermes", "llama3_json", "mistral", "qwen3_coder"])
@pytest.mark.parametrize("count", [1, 2])
def test_what_a_row_writes_it_reads_again(row, count):
    calls = [("look", '{"a": 1}'), ("go.to", ARGUMENTS)][:count]
    format_ = TOOL_FORMATS[row]

    said = read(format_.parser(NAMES, ids), [format_.spelling.write(calls)])

    assert said == ("", "", calls)


def test_arguments_are_told_as_they_come():
    parser = TOOL_FORMATS["hermes"].parser(NAMES, ids)

    first = parser.push('<tool_call>{"name": "look", "arguments": {"a": "lo')
    second = parser.push("ng")

    assert [call.name or call.arguments for call in first.calls] == ["look", '{"a": "lo']
    assert [call.arguments for call in second.calls] == ["ng"]


def test_of_several_calls_one_is_told_where_no_more_are_wanted():
    parser = OneCall(TOOL_FORMATS["hermes"].parser(NAMES, ids))
    answer = TOOL_FORMATS["hermes"].spelling.write([("look", "{}"), ("go.to", "{}")])

    assert read(parser, [answer])[2] == [("look", "{}")]


@pytest.mark.parametrize(
    ("template", "row"),
    [
        ("{% if tools %}<tool_call>{% endif %}", "hermes"),
        ("{{'<|im_start|>' + message['role']}}", "hermes"),
        ("<|im_start|><tool_call>\n<function=' + name + '>\n<parameter=' + key", "qwen3_coder"),
        ("[INST][TOOL_CALLS]", "mistral"),
        ("<|start_header_id|>{{ 'parameters' }}", "llama3_json"),
        ("{{ messages }}", None),
    ],
)
def test_a_template_tells_how_its_model_writes_calls(template, row):
    found = find_format("tool_call_parser", "auto", TOOL_FORMATS, template)

    assert found is (None if row is None else TOOL_FORMATS[row])


def test_a_template_tells_how_its_model_thinks():
    found = find_format("reasoning_parser", "auto", REASONING_FORMATS, "{% if x %}</think>")

    assert found is REASONING_FORMATS["qwen3"]


@pytest.mark.parametrize(
    ("prompt", "opened", "closed"),
    [("assistant\n<think>\n", True, False), ("<think>\n\n</think>\n\n", False, True), ("", 0, 0)],
)
def test_a_prompt_tells_whether_the_answer_begins_with_reasoning(prompt, opened, closed):
    row = REASONING_FORMATS["qwen3"]

    assert (row.opened(prompt), row.closed(prompt)) == (opened, closed)


@pytest.mark.parametrize("rows", [TOOL_FORMATS, REASONING_FORMATS])
def test_a_format_that_there_is_not_is_refused_with_those_there_are(rows):
    with pytest.raises(ConfigError, match="parser 'nobodys' is not one of auto, none, mistral"):
        find_format("parser", "nobodys", rows, None)


def test_a_row_may_be_left_out_whatever_the_template_is():
    assert find_format("parser", "none", TOOL_FORMATS, "<tool_call>") is None


@pytest.mark.parametrize(("row", "letters"), [("hermes", 29), ("mistral", 9)])
def test_ids_are_those_that_templates_of_the_family_take(row, letters):
    assert len(TOOL_FORMATS[row].spell_id("0123456789abcdef" * 2)) == letters


def test_a_grammar_holds_the_schema_of_each_tool_and_special_tokens_by_number():
    tools = [Tool(name="look", parameters={"properties": {"a": {}}}), Tool(name="go.to")]

    grammar = TOOL_FORMATS["mistral"].spelling.grammar(tools, {"[TOOL_CALLS]": 5}, several=True)

    first, second, *rules = grammar.splitlines()
    assert first == 'start: <[5]> " [" call (", " call){0,15} "]"'
    assert second == "call: call_0 | call_1"
    schema = json.loads(rules[1].removeprefix("call_0_arguments: %json "))
    assert (schema["type"], schema["properties"]) == ("object", {"a": {}})
