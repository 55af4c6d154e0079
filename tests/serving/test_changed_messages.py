"""A history that is not as it stands in memory is told by the message that changed."""

from __future__ import annotations

import pytest
from tiny_served import saying

from octavo.server.settings import ServerSettings
from octavo.testing.near_server import served

PATH = "/v1/chat/completions"
CHAT = [
    {"role": "system", "content": "in the hell an other thing is on and on"},
    {"role": "user", "content": "hello the"},
    {"role": "assistant", "content": "an answer in the hell"},
    {"role": "user", "content": "and on"},
]
TOOLS = [{"type": "function", "function": {"name": "look"}}]


def changed(tokenizer, first, second, **body):
    """Return what a second conversation is told of its miss, after a first one."""
    told = []

    async def test(server):
        for messages, more in (first, second):
            asked = {"messages": messages, "max_tokens": 1, "include_cache": True, **body, **more}
            reply = await server.post(PATH, **asked)
            assert reply.status_code == 200, reply.text
        misses = reply.json()["usage"]["cache"]["misses"]
        told.append(misses[0]["changed"] if misses else "nothing")

    options = saying(tokenizer, "the")
    served(test, **options, settings=ServerSettings(reasoning_parser="none"))
    return told[0]


@pytest.mark.parametrize("place", [1, 2, 3])
def test_the_message_that_was_edited_is_named(tiny_tokenizer, place):
    edited = [*CHAT]
    edited[place] = CHAT[place] | {"content": CHAT[place]["content"] + " xyz"}

    assert changed(tiny_tokenizer, (CHAT, {}), (edited, {})) == f"message {place} changed"


def test_tools_stand_with_the_first_message(tiny_tokenizer):
    first = [CHAT[0] | {"content": "the"}, *CHAT[1:]]

    said = changed(tiny_tokenizer, (first, {}), (first, {"tools": TOOLS}))

    assert said == "the tools or message 0 changed"


def test_reasoning_that_a_template_leaves_out_later_is_a_change_of_its_message(tiny_tokenizer):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n"
        "{% if m.reasoning and loop.last %}{{ m.reasoning }}\n{% endif %}"
        "{{ m.content }}<|im_end|>\n{% endfor %}"
    )
    tokenizer = tiny_tokenizer.with_template(template)
    answer = CHAT[2] | {"reasoning": "re on the hell"}
    before = [*CHAT[:2], answer]

    assert changed(tokenizer, (before, {}), ([*before, CHAT[3]], {})) == "message 2 changed"


def test_a_history_that_goes_on_as_it_was_has_changed_nowhere(tiny_tokenizer):
    more = [*CHAT, {"role": "assistant", "content": "the"}, {"role": "user", "content": "on"}]

    assert changed(tiny_tokenizer, (CHAT, {}), (more, {})) in (None, "nothing")


def test_a_prompt_that_was_cut_is_told_nothing(tiny_tokenizer):
    edited = [*CHAT[:3], CHAT[3] | {"content": "and in"}]

    assert changed(tiny_tokenizer, (CHAT, {}), (edited, {}), truncate_prompt_tokens=40) is None
