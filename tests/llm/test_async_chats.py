"""Chats of `AsyncLLM` say what those of `LLM` say, piece by piece; both recompute their counts."""

from __future__ import annotations

import asyncio
import json
import random

import pytest

from octavo import LLM, AsyncLLM, RequestError, SamplingParams, StructuredOutputs
from octavo.chats import Chats, tool_use
from octavo.results import CompletionOutput, RequestOutput
from octavo.testing.damage import DAMAGES

ASKS = [{"role": "user", "content": "hello"}]
SCHEMA = {
    "type": "object",
    "properties": {"at": {"enum": ["the inn", "the fox"]}},
    "required": ["at"],
    "additionalProperties": False,
}
LOOK = {"type": "function", "function": {"name": "look", "parameters": SCHEMA}}
CALL = {"tools": [LOOK], "tool_choice": "required", "tool_call_parser": "hermes"}
HELD = SamplingParams(max_tokens=80, seed=3, structured_outputs=StructuredOutputs(json=SCHEMA))
WROTE = '<think>\nhe\n</think>\n\nthe\n<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'


def on_both(path, ask):
    """What `LLM` says, and all that `AsyncLLM` says on the way."""
    with LLM(str(path), kv_cache_memory_bytes=1 << 20) as llm:
        whole = ask(llm)

    async def told():
        async with AsyncLLM(LLM(str(path), kv_cache_memory_bytes=1 << 20)) as engine:
            return [result async for result in ask(engine)]

    return whole[0].outputs[0], [one.outputs[0] for one in asyncio.run(told())]


def test_a_forced_call_is_the_same_and_comes_piece_by_piece(tiny_gguf):
    params = SamplingParams(max_tokens=120, seed=5)
    whole, pieces = on_both(tiny_gguf, lambda llm: llm.chat(ASKS, params, **CALL))

    last = pieces[-1]
    assert (last.text, last.content, last.finish_reason) == (whole.text, whole.content, "stop")
    (call,), (other,) = last.tool_calls, whole.tool_calls
    assert (call.name, call.arguments) == (other.name, other.arguments)
    assert json.loads(call.arguments)["at"] in ("the inn", "the fox")
    arguments = [one.tool_calls[0].arguments for one in pieces if one.tool_calls]
    assert len(arguments) > 1  # pieces that nobody has taken yet are put together
    assert all(call.arguments.startswith(so_far) for so_far in arguments)


def test_a_held_answer_is_the_same(tiny_gguf):
    whole, pieces = on_both(tiny_gguf, lambda llm: llm.chat(ASKS, HELD))

    assert pieces[-1].content == whole.content == whole.text
    assert all(whole.text.startswith(one.content) for one in pieces)


def test_what_cannot_be_answered_is_refused(tiny_gguf):
    async def told():
        async with AsyncLLM(LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20)) as engine:
            for given, options in (
                ([], {}),
                (ASKS, {"tool_choice": "required"}),
                (ASKS, {"continue_final_message": True, "tools": 3}),
            ):
                with pytest.raises(RequestError):
                    await anext(engine.chat(given, **options))
            assert (await engine.check()).ok

    asyncio.run(told())


def test_what_is_certain_of_a_part_of_an_answer_never_changes(llm):
    chats = Chats(
        llm.get_tokenizer(),
        tool_use([LOOK], "auto", parallel=True),
        tool_call_parser="hermes",
        reasoning_parser="qwen3",
    )
    chats.prompt(ASKS, {}, add_generation_prompt=True, continue_final_message=False)
    whole, growing = (CompletionOutput(0, text=text) for text in (WROTE, ""))
    whole.finish_reason = "stop"
    result = RequestOutput("r", None, [1], [growing])
    chats.read([RequestOutput("r", None, [1], [whole])], [SamplingParams()])
    reading = chats.reading(0, result, SamplingParams())
    for end in range(1, len(WROTE) + 1):
        growing.text = WROTE[:end]
        growing.finish_reason = "stop" if end == len(WROTE) else None
        reading.read(result)
        assert whole.content.startswith(growing.content)
        assert whole.reasoning.startswith(growing.reasoning or "")
    assert growing == whole


# ── counts ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20) as llm:
        yield llm


def test_counts_are_recomputed_also_between_pieces_of_an_answer(llm):
    before = llm.check().checks.runs
    for _ in llm.stream("hello", SamplingParams(max_tokens=3, ignore_eos=True)):
        found = llm.check()
        assert (found.ok, found.error) == (True, None)
    assert found.checks.runs == before + 3
    assert found.checks.failures == 0


def test_a_count_that_is_wrong_is_told_and_set_right_and_answers_go_on(tiny_gguf):
    params = SamplingParams(max_tokens=20, temperature=0, ignore_eos=True)
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20) as llm:
        (right,) = llm.generate("hello", params)
        told = list(damaged(llm, params))

        assert told == right.outputs[0].token_ids
        found = llm.check()
        assert (found.ok, found.checks.failures) == (True, 1)


def damaged(llm, params):
    """The tokens of an answer in whose middle a count goes wrong."""
    for number, delta in enumerate(llm.stream("hello", params)):
        yield from delta.token_ids
        if number == 5:
            DAMAGES["a holder is made up"](llm.built.engine.loop._cache.device, random)
            found = llm.check()
            assert not found.ok
            assert found.error == found.checks.last_error != ""
