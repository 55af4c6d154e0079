"""A conversation as all APIs hand it over: what does not fit together is refused by its field."""

from __future__ import annotations

import pytest

from octavo.contract.hint import CacheHint
from octavo.contract.retention import NORMAL_PRIORITY, Retention
from octavo.errors import RequestError
from octavo.server.cache_wishes import CacheMark, CacheWish
from octavo.server.chat_request import ChatRequest
from octavo.server.failures import ApiError
from octavo.server.schemas.chat import ChatBody
from octavo.text.conversation import Tool, ToolCall, ToolChoice, Turn

ASKS = (Turn(role="user", content="hi"),)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        (
            {"continue_final_turn": True, "add_generation_prompt": True},
            "continue_final_message",
        ),
        ({"variables": {"messages": []}}, "chat_template_kwargs"),
        ({"variables": {"tools": []}}, "chat_template_kwargs"),
    ],
)
def test_what_does_not_fit_together_is_refused_by_its_field(fields, param):
    with pytest.raises(ApiError) as refused:
        ChatRequest(turns=ASKS, **fields)

    assert (refused.value.status_code, refused.value.param) == (400, param)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": ToolChoice("required")}, "tool_choice: required, but there are no tools"),
        ({"tool_choice": ToolChoice("named", "f")}, "tool_choice: named, but there are no tools"),
        (
            {"tool_choice": ToolChoice("named", "g"), "tools": (Tool(name="f"),)},
            "tool_choice: 'g' is none of the tools",
        ),
        ({"tools": (Tool(name="f"), Tool(name="f"))}, "tools: 'f' is there twice"),
    ],
)
def test_tools_and_choices_that_do_not_fit_are_refused(fields, message):
    with pytest.raises(RequestError, match=message):
        ChatRequest(turns=ASKS, **fields)


@pytest.mark.parametrize(
    ("fields", "generates"),
    [
        ({}, True),
        ({"add_generation_prompt": False}, False),
        ({"continue_final_turn": True}, False),
    ],
)
def test_an_answer_begins_unless_something_else_is_said(fields, generates):
    assert ChatRequest(turns=ASKS, **fields).generates is generates


def test_arguments_and_reasoning_count_among_the_characters():
    call = ToolCall(id="c", name="f", arguments='{"a":1}')
    turn = Turn(role="assistant", content="12", reasoning="345", calls=(call,))

    assert ChatRequest(turns=(turn,)).chars == 12


@pytest.mark.parametrize("spelling", ["reasoning", "reasoning_content"])
def test_a_body_with_either_spelling_of_reasoning_is_the_same_conversation(spelling):
    message = {"role": "assistant", "content": "4", spelling: "2 + 2"}

    chat = ChatBody.model_validate({"messages": [message]}).conversation()

    assert chat.turns == (Turn(role="assistant", content="4", reasoning="2 + 2"),)


def test_a_wish_becomes_what_the_memory_knows():
    wish = CacheWish(pin="rules", ttl_s=60, says="shared")

    assert wish.retention(0, 32) == Retention(0, 32, NORMAL_PRIORITY, 60, "rules")
    assert wish.hint("acme", 32) == CacheHint("shared", 32, "acme")


def test_a_wish_for_nothing_asks_for_nothing():
    assert (CacheWish().retention(), CacheWish().hint("acme")) == (None, None)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"ttl_s": 0}, "ttl_s must be above 0"),
        ({"priority": 101}, "priority must be a whole number from 0"),
        ({"pin": ""}, "pin must be the name"),
        ({"says": "maybe"}, "must say one of continues, closed, shared, got 'maybe'"),
    ],
)
def test_a_wish_that_no_memory_could_grant_is_refused(fields, message):
    with pytest.raises(RequestError, match=message):
        CacheWish(**fields)


def test_a_mark_before_the_first_turn_is_refused():
    with pytest.raises(RequestError, match="there is no turn -1"):
        CacheMark(-1, CacheWish())
