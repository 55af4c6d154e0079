"""Answers as they come: the streaming iterator, asyncio, chats, aborts, metrics."""

from __future__ import annotations

import asyncio
from itertools import pairwise

import pytest

from octavo import LLM, AsyncLLM, ConfigError, RequestError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
PROMPT = "The quick brown fox jumps over the lazy dog"


@pytest.fixture
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=4 << 20) as llm:
        yield llm


def test_the_pieces_of_a_stream_add_up_to_the_answer(llm):
    prompts = [PROMPT, "another"]
    whole = [result.outputs[0] for result in llm.generate(prompts, GREEDY)]

    pieces = list(llm.stream(prompts, GREEDY))

    for number, answer in enumerate(whole):
        mine = [piece for piece in pieces if piece.prompt == number]
        assert "".join(piece.text for piece in mine) == answer.text
        assert [i for piece in mine for i in piece.token_ids] == answer.token_ids
        assert [piece.finish_reason for piece in mine][-1] == "length"


def test_a_stream_gives_the_first_piece_before_the_last_is_made(llm):
    stream = llm.stream(PROMPT, GREEDY)

    first = next(stream)

    assert len(first.token_ids) == 1
    assert llm.built.engine.busy
    stream.close()


def test_leaving_a_stream_early_frees_its_memory(llm):
    for _ in llm.stream([PROMPT, "another"], GREEDY):
        break

    assert llm.built.engine.usage().blocks_used == 0
    assert not llm.built.engine.busy


def test_an_aborted_request_says_no_more_and_the_others_go_on(llm):
    seen: list[int] = []
    for piece in llm.stream([PROMPT, "another"], GREEDY):
        seen.append(piece.prompt)
        if len(seen) == 1:
            llm.abort(piece.request_id)

    assert seen.count(seen[0]) == 1
    assert len(seen) == 1 + 12


def test_a_chat_is_rendered_with_the_models_template(llm):
    chat = [{"role": "user", "content": "Hello"}]
    rendered = llm.get_tokenizer().apply_chat_template(chat)

    (result,) = llm.chat(chat, GREEDY)

    ids = llm.get_tokenizer().encode(rendered, add_special_tokens=False)
    assert result.prompt_token_ids == ids
    assert len(llm.chat([chat, chat], GREEDY)) == 2


def test_the_next_turn_of_a_chat_finds_the_last_in_memory(llm):
    chat = [{"role": "user", "content": "Hello there, how are you today, my dear old friend?"}]
    (first,) = llm.chat(chat, GREEDY)
    chat += [
        {"role": "assistant", "content": first.outputs[0].text},
        {"role": "user", "content": "And now?"},
    ]

    (second,) = llm.chat(chat, GREEDY)

    assert second.num_cached_tokens >= len(first.prompt_token_ids) // 16 * 16 - 16


def test_metrics_have_the_names_that_people_look_for(llm):
    llm.generate([PROMPT, PROMPT], GREEDY)

    values = {metric.name: metric.value for metric in llm.get_metrics()}

    assert values["vllm:prefix_cache_queries"] > values["vllm:prefix_cache_hits"] > 0
    assert values["vllm:num_requests_running"] == 0
    assert values["vllm:kv_cache_usage_perc"] == 0.0


def test_tasks_share_one_engine_and_get_the_same_answers(llm):
    truth = [result.outputs[0].text for result in llm.generate([PROMPT, "b", "c"], GREEDY)]

    async def ask(engine: AsyncLLM, prompt: str) -> str:
        texts = [result.outputs[0].text async for result in engine.generate(prompt, GREEDY)]
        assert all(late.startswith(early) for early, late in pairwise(texts))
        return texts[-1]

    async def main() -> list[str]:
        async with AsyncLLM(llm) as engine:
            return await asyncio.gather(*(ask(engine, prompt) for prompt in (PROMPT, "b", "c")))

    assert asyncio.run(main()) == truth


def test_a_task_that_leaves_early_frees_its_memory(llm):
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

    async def main() -> int:
        async with AsyncLLM(llm) as engine:
            answer = engine.generate(PROMPT, long)
            async for _ in answer:
                break
            await answer.aclose()
            await engine.reset_prefix_cache()  # waits for the abort before it
            return llm.built.engine.usage().blocks_used

    assert asyncio.run(main()) == 0


def test_a_cancelled_task_disturbs_nobody(llm):
    async def read(engine: AsyncLLM) -> str:
        results = [result async for result in engine.generate(PROMPT, GREEDY)]
        return results[-1].outputs[0].text

    async def main() -> tuple[str, bool]:
        async with AsyncLLM(llm) as engine:
            doomed = asyncio.create_task(read(engine))
            other = asyncio.create_task(read(engine))
            await asyncio.sleep(0.005)
            doomed.cancel()
            done = await asyncio.gather(doomed, other, return_exceptions=True)
            return done[1], isinstance(done[0], (str, asyncio.CancelledError))

    text, fine = asyncio.run(main())

    assert fine
    assert len(text) > 0


def test_a_bad_prompt_is_an_error_for_its_task_alone(llm):
    async def main() -> None:
        async with AsyncLLM(llm) as engine:
            with pytest.raises(RequestError, match="out of range"):
                async for _ in engine.generate({"prompt_token_ids": [9999]}, GREEDY):
                    pass
            with pytest.raises(RequestError, match="and the context 512"):
                async for _ in engine.generate({"prompt_token_ids": [5] * 600}, GREEDY):
                    pass
            async for result in engine.generate(PROMPT, GREEDY):
                assert result.outputs

    asyncio.run(main())


def test_closing_tells_tasks_that_still_wait(llm):
    long = SamplingParams(temperature=0, max_tokens=400, ignore_eos=True)

    async def main() -> None:
        engine = AsyncLLM(llm)

        async def read() -> None:
            async for _ in engine.generate(PROMPT, long):
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        await engine.close()
        with pytest.raises(ConfigError, match="closed"):
            await task

    asyncio.run(main())


def test_calls_made_while_a_stream_is_open_disturb_nothing(llm):
    whole = [result.outputs[0].token_ids for result in llm.generate([PROMPT, "b"], GREEDY)]
    stream = llm.stream([PROMPT, "b"], GREEDY)
    pieces = [next(stream) for _ in range(4)]

    (between,) = llm.generate("x", GREEDY)
    pieces += list(stream)

    assert len(between.outputs[0].token_ids) == 12
    for number, ids in enumerate(whole):
        assert [i for p in pieces if p.prompt == number for i in p.token_ids] == ids


def test_two_streams_take_turns(llm):
    truth = [llm.generate(prompt, GREEDY)[0].outputs[0].token_ids for prompt in (PROMPT, "b")]

    turns = list(zip(llm.stream(PROMPT, GREEDY), llm.stream("b", GREEDY), strict=True))

    assert [[i for p in side for i in p.token_ids] for side in zip(*turns, strict=True)] == truth


def test_a_second_thread_is_told_to_bring_its_own(llm, monkeypatch):
    import threading

    step, inside, go = llm.built.engine.step, threading.Event(), threading.Event()

    def slow():
        inside.set()
        go.wait(10)
        return step()

    monkeypatch.setattr(llm.built.engine, "step", slow)
    first = threading.Thread(target=llm.generate, args=(PROMPT, GREEDY))
    first.start()
    inside.wait(10)
    with pytest.raises(ConfigError, match="in use by another thread"):
        llm.generate("b", GREEDY)
    go.set()
    first.join(20)

    assert not first.is_alive()


def test_asyncio_reports_the_effective_maximum(llm):
    async def main() -> int:
        async with AsyncLLM(llm) as engine:
            results = [result async for result in engine.generate(PROMPT, GREEDY)]
        return results[-1].effective_max_tokens

    assert asyncio.run(main()) == 12
