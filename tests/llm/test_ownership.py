"""One thread at a time, one owner: nobody's requests are lost to somebody who comes in between."""

from __future__ import annotations

import asyncio
import sys
import threading
import time

import pytest

from octavo import LLM, AsyncLLM, ConfigError, SamplingParams

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=60, ignore_eos=True)


@pytest.fixture
def llm(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=8 << 20) as llm:
        yield llm


def tokens(llm, prompt, params=GREEDY):
    return llm.generate(prompt, params)[0].outputs[0].token_ids


# ── an AsyncLLM has taken it ──────────────────────────────────────────────────────────────


def test_an_llm_that_was_handed_over_answers_nothing_itself(llm):
    expected = tokens(llm, "hello")

    async def main():
        engine = AsyncLLM(llm)
        refused = [
            lambda: llm.generate("hi", GREEDY),
            lambda: llm.abort("0"),
            llm.reset_prefix_cache,
            lambda: AsyncLLM(llm),
        ]
        for call in refused:
            with pytest.raises(ConfigError, match="this LLM belongs to an AsyncLLM"):
                call()
        llm.close()  # no effect: its owner closes it
        results = [result async for result in engine.generate("hello", GREEDY)]
        await engine.close()
        return results[-1].outputs[0].token_ids

    assert asyncio.run(main()) == expected


def test_an_llm_with_an_open_stream_is_not_handed_over(llm):
    stream = llm.stream("hello", LONG)
    next(stream)

    with pytest.raises(ConfigError, match="is answering requests: end their streams first"):
        AsyncLLM(llm)

    assert len(list(stream)) > 0


def test_a_process_that_ends_with_an_open_asyncllm_says_nothing(tiny_gguf):
    import subprocess

    script = (
        "import asyncio, sys\n"
        "from octavo import LLM, AsyncLLM, SamplingParams\n"
        "async def main():\n"
        "    engine = AsyncLLM(LLM(sys.argv[1], kv_cache_memory_bytes=8 << 20))\n"
        "    params = SamplingParams(temperature=0, max_tokens=3)\n"
        "    return [result async for result in engine.generate('hello', params)]\n"
        "assert asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tiny_gguf)], capture_output=True, text=True, timeout=60
    )

    assert (done.returncode, done.stderr) == (0, "")


# ── threads ───────────────────────────────────────────────────────────────────────────────


def test_who_comes_second_is_refused_and_who_was_first_gets_right_answers(llm):
    expected = [tokens(llm, prompt, LONG) for prompt in ("one", "two", "three")]
    refused, lost = [], []
    ended = threading.Event()

    def intrude():
        while not ended.is_set():
            try:
                llm.generate("x", GREEDY)
            except ConfigError as error:
                refused.append(str(error))
            except BaseException as error:
                lost.append(error)
            time.sleep(0.0005)

    stream = llm.stream(["one", "two", "three"], LONG)
    found = [next(stream)]
    intruders = [threading.Thread(target=intrude) for _ in range(3)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for one in intruders:
            one.start()
        found += stream
    finally:
        ended.set()
        for one in intruders:
            one.join(20)
        sys.setswitchinterval(interval)

    assert not lost
    assert all("in use by another thread" in message for message in refused)
    texts = [[t for piece in found if piece.prompt == n for t in piece.token_ids] for n in range(3)]
    assert texts == [list(one) for one in expected]
    llm.built.engine.check()


def test_a_stream_may_be_read_from_changing_threads(llm):
    expected = tokens(llm, "hello")

    async def main():
        stream = llm.stream("hello", GREEDY)
        found = []
        while (piece := await asyncio.to_thread(next, stream, None)) is not None:
            found += piece.token_ids
        return found

    assert asyncio.run(main()) == list(expected)


# ── closed, or without a stderr ───────────────────────────────────────────────────────────


def test_a_stream_of_a_closed_llm_says_that_it_is_closed(llm):
    stream = llm.stream("hello", LONG)
    next(stream)
    llm.close()

    with pytest.raises(ConfigError, match="this LLM has been closed"):
        list(stream)


def test_a_process_without_stderr_answers_all_the_same(llm, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)

    assert len(llm.generate("hello", GREEDY)[0].outputs[0].token_ids) == 8
