"""Offline chats take tools, and tell calls and reasoning apart from the rest of an answer."""

from __future__ import annotations

import json

import jsonschema_rs
import pytest

from octavo import LLM, ConfigError, RequestError, SamplingParams
from octavo.chats import Chats, conversation, tool_use
from octavo.models.gguf import GGUFFile
from octavo.results import CompletionOutput, RequestOutput
from octavo.text.conversation import ToolCall, Turn
from octavo.text.tokenizer import Tokenizer

ASKS = [{"role": "user", "content": "hello"}]
LOOK = {"type": "function", "function": {"name": "look", "description": None, "strict": True}}
WROTE = '<think>\nhe\n</think>\n\nthe\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20) as llm:
        yield llm


def test_tools_stand_in_the_prompt(llm):
    params = SamplingParams(max_tokens=1)
    template = "{% for t in tools %}{{ t.function.name }}{% endfor %}<tool_call>"
    tokenizer = llm.get_tokenizer().with_template(template)
    chats = Chats(
        tokenizer,
        tool_use([LOOK], "auto", parallel=True),
        tool_call_parser="auto",
        reasoning_parser="none",
    )

    prompt = chats.prompt(ASKS, {}, add_generation_prompt=True, continue_final_message=False)

    assert isinstance(prompt, dict)
    assert tokenizer.decode(prompt["prompt_token_ids"]) == "look<tool_call>"
    (held,) = chats.held(params)
    assert held.structured_outputs is not None  # the tool is strict


def test_calls_and_reasoning_of_an_answer_are_told_apart(tiny_gguf):
    tokenizer = Tokenizer.from_gguf(GGUFFile(tiny_gguf).metadata)
    chats = Chats(
        tokenizer,
        tool_use([LOOK], "auto", parallel=True),
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    )
    chats.prompt(ASKS, {}, add_generation_prompt=True, continue_final_message=False)
    output = CompletionOutput(0, text=WROTE, finish_reason="stop")

    chats.read([RequestOutput("r", None, [1], [output])], [SamplingParams()])

    assert (output.reasoning, output.content, output.text) == ("he", "the", WROTE)
    (call,) = output.tool_calls
    assert (call.name, call.arguments) == ("look", "{}")


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 4}, "days": {"enum": [1, True, None]}},
    "required": ["city", "days"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("row", ["hermes", "llama3_json", "mistral", "qwen3_coder"])
def test_a_forced_call_fits_its_schema_however_its_row_writes_it(llm, row):
    tool = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
    template = "{% for tool in tools %}{{ messages[0].content }}{% endfor %}"
    chats = Chats(
        llm.get_tokenizer().with_template(template),
        tool_use([tool], "required", parallel=False),
        tool_call_parser=row,
        reasoning_parser="none",
    )
    prompt = chats.prompt(ASKS, {}, add_generation_prompt=True, continue_final_message=False)
    held = chats.held(SamplingParams(max_tokens=200, temperature=1.5, seed=1, n=4))

    results = llm.generate([prompt], held)
    chats.read(results, held)

    calls = [call for output in results[0].outputs for call in output.tool_calls]
    assert [call.name for call in calls] == ["look"] * 4
    assert all(jsonschema_rs.is_valid(SCHEMA, json.loads(call.arguments)) for call in calls)


def test_without_tools_content_is_the_text(llm):
    (result,) = llm.chat(ASKS, SamplingParams(max_tokens=4))

    (output,) = result.outputs
    assert (output.content, output.tool_calls) == (output.text, ())


def test_a_chat_goes_on_with_its_last_message(llm):
    chat = [*ASKS, {"role": "assistant", "content": "the hell"}]

    (result,) = llm.chat(chat, SamplingParams(max_tokens=1), continue_final_message=True)

    text = llm.get_tokenizer().decode(result.prompt_token_ids)
    assert text.endswith("assistant\nthe hell")


def test_messages_of_the_api_are_turns_as_they_are():
    answer = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "he",
        "refusal": None,
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
        ],
    }

    turns = conversation([answer, {"role": "tool", "tool_call_id": "1", "content": "the"}])

    call = ToolCall(id="1", name="look", arguments="{}")
    assert turns == (
        Turn(role="assistant", reasoning="he", calls=(call,)),
        Turn(role="tool", content="the", call_id="1"),
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tools": [{"name": "look"}]}, "tools: an object with function, type, got"),
        ({"tools": [{"function": {"name": 5}}]}, "tools: Expected `str`, got `int`"),
        ({"tools": LOOK}, "tools cannot be"),
        ({"tools": [LOOK, LOOK]}, "tools: 'look' is there twice"),
        ({"tool_choice": "required"}, "tool_choice: required, but there are no tools"),
        ({"tools": [LOOK], "tool_choice": "perhaps"}, "tool_choice: an object with function"),
        (
            {"tools": [LOOK], "tool_choice": {"function": {"name": "go"}}},
            "tool_choice: 'go' is none of the tools",
        ),
        ({"tools": [LOOK], "tool_call_parser": "none"}, "tools: the model's template knows no"),
    ],
)
def test_tools_that_cannot_be_are_refused(llm, options, message):
    with pytest.raises(RequestError, match=message):
        llm.chat(ASKS, **options)


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": "a", "color": 1}, "'color' is no field of a message"),
        ({"role": "a", "tool_calls": [{"name": "f"}]}, "tool_calls: an object with function"),
        (
            {"role": "a", "tool_calls": [{"function": {"name": "f"}}]},
            "a call has a name and arguments",
        ),
        ({"role": "a", "content": "a", "name": 5}, "'name' of a message must be a text"),
    ],
)
def test_a_message_that_cannot_be_is_refused(llm, message, told):
    with pytest.raises(RequestError, match=told):
        llm.chat([message])


def test_a_parser_that_there_is_not_is_refused(llm):
    with pytest.raises(ConfigError, match="reasoning_parser 'other' is not one of"):
        llm.chat(ASKS, reasoning_parser="other")
