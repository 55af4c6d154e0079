"""A template that knows no tools gets them as plain turns, in words that never change."""

from __future__ import annotations

from octavo.text.conversation import Tool, ToolCall, Turn
from octavo.text.formats.lowering import lowered, one_by_one
from octavo.text.formats.table import TOOL_FORMATS

HERMES = TOOL_FORMATS["hermes"].spelling
TOOLS = (Tool(name="look", parameters={"type": "object", "properties": {"a": {}}}),)
CHAT = (
    Turn(role="system", content="Be brief."),
    Turn(role="user", content="Look."),
    Turn(
        role="assistant",
        content="Well.",
        calls=(
            ToolCall(id="1", name="look", arguments='{"a":1}'),
            ToolCall(id="2", name="look", arguments=""),
        ),
    ),
    Turn(role="tool", content="one", call_id="1"),
    Turn(role="tool", content="two", call_id="2"),
    Turn(role="assistant", content="Seen."),
)


def test_tools_are_told_behind_what_the_system_says():
    system = lowered(CHAT, TOOLS, HERMES)[0]

    assert system.role == "system"
    assert system.content.startswith("Be brief.\n\nThese functions can be called.")
    assert '{"name": "look", "description": "", "parameters": {"type": "object",' in system.content
    assert '<tool_call>\n{"name": "NAME", "arguments": {' in system.content


def test_tools_are_told_first_where_the_system_says_nothing():
    turns = lowered(CHAT[1:], TOOLS, HERMES)

    assert [turn.role for turn in turns] == ["system", "user", "assistant", "user", "assistant"]


def test_calls_stand_in_the_words_of_the_model():
    turns = lowered(CHAT, (), HERMES)

    assert turns[2] == Turn(
        role="assistant",
        content='Well.\n<tool_call>\n{"name": "look", "arguments": {"a":1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>',
    )


def test_results_that_follow_each_other_are_one_turn():
    turns = lowered(CHAT, (), HERMES)

    assert turns[3] == Turn(
        role="user",
        content="<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response>",
    )
    assert turns[4] == CHAT[-1]


def test_without_tools_and_calls_nothing_changes():
    assert lowered(CHAT[:2], (), HERMES) == CHAT[:2]


def test_calls_of_one_turn_are_turns_of_their_own_where_a_template_writes_one():
    turns = one_by_one(CHAT)

    assert [(turn.role, turn.content, len(turn.calls)) for turn in turns] == [
        ("system", "Be brief.", 0),
        ("user", "Look.", 0),
        ("assistant", "Well.", 1),
        ("tool", "one", 0),
        ("assistant", "", 1),
        ("tool", "two", 0),
        ("assistant", "Seen.", 0),
    ]


def test_results_that_answer_no_call_are_kept():
    stray = Turn(role="tool", content="three", call_id="9")

    turns = one_by_one((CHAT[2], *CHAT[3:5], stray))

    assert turns[-1] == stray
    assert len(turns) == 5
