"""The native executor beside asyncio, and in a process that was forked."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys

import pytest

from octavo import LLM, AsyncLLM, SamplingParams, cpu

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
ENDLESS = SamplingParams(temperature=0, max_tokens=200, ignore_eos=True)
PROMPTS = [{"prompt_token_ids": [7, i, *range(3, 40)]} for i in range(8)]


def engine(path):
    options = {"backend": "cpu", "threads": 2, "kv_cache_memory_bytes": 4 << 20}
    return LLM(str(path), report=lambda _: None, **options)


def test_answers_that_are_awaited_are_those_of_the_offline_engine(tiny_gguf):
    with engine(tiny_gguf) as llm:
        expected = [result.outputs[0].token_ids for result in llm.generate(PROMPTS, GREEDY)]

    async def ask(llm, prompt, delay):
        await asyncio.sleep(delay)
        async for result in llm.generate(prompt, GREEDY):
            last = result
        return last.outputs[0].token_ids

    async def main():
        async with AsyncLLM(engine(tiny_gguf)) as llm:
            tasks = [ask(llm, prompt, 0.01 * i) for i, prompt in enumerate(PROMPTS)]
            return await asyncio.gather(*tasks)

    assert asyncio.run(main()) == expected


def test_a_request_that_is_left_frees_its_memory_while_the_others_go_on(tiny_gguf):
    offline = engine(tiny_gguf)

    async def main():
        async with AsyncLLM(offline) as llm:
            async with contextlib.aclosing(llm.generate(PROMPTS[0], ENDLESS)) as left:
                await anext(left)
            async for result in llm.generate(PROMPTS[1], GREEDY):
                last = result
            # What was computed first is over when the last request has its answer.
            return last.outputs[0].token_ids, offline.built.engine.usage().blocks_used

    answer, blocks_used = asyncio.run(main())
    assert len(answer) == 24
    assert blocks_used == 0


FORKED = """
import os, sys
from octavo import LLM, SamplingParams
greedy = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
prompts = [{"prompt_token_ids": [7, i, *range(3, 40)]} for i in range(8)]

def answers():
    return repr([one.outputs[0].token_ids for one in llm.generate(prompts, greedy)])

with LLM(sys.argv[1], backend="cpu", threads=3, kv_cache_memory_bytes=4 << 20) as llm:
    before = answers()
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, answers().encode())
        os._exit(0)
    os.close(write)
    beside = answers()
    with os.fdopen(read) as said:
        in_child = said.read()
    assert os.waitpid(child, 0)[1] == 0
assert before == beside == in_child, (before, beside, in_child)
"""

FORKED_WITH_FORMS = """
import os, sys
from octavo import LLM, SamplingParams, StructuredOutputs

def answer(pattern):
    form = StructuredOutputs(regex=pattern)
    (result,) = llm.generate("The sea", SamplingParams(seed=1, structured_outputs=form))
    return result.outputs[0].text

with LLM(sys.argv[1], backend="cpu", threads=2, kv_cache_memory_bytes=4 << 20) as llm:
    before = answer("[0-9]{4}")
    child = os.fork()
    again, other = answer("[0-9]{4}"), answer("[a-z]{3}")
    right = again == before and other.isalpha() and len(other) == 3
    if child == 0:
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert right
"""

FORKED_AT_ONCE = """
import os, sys
from octavo import LLM, SamplingParams
greedy = SamplingParams(temperature=0, max_tokens=4)

with LLM(sys.argv[1], backend="cpu", threads=2, kv_cache_memory_bytes=32 << 20) as llm:
    child = os.fork()  # most of the weights are not packed yet
    answer = llm.generate("The sea", greedy)[0].outputs[0].token_ids
    if child == 0:
        os._exit(len(answer))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == len(answer) == 4
"""

ASYNC_FORKED = """
import asyncio, os, sys
from octavo import LLM, AsyncLLM, ConfigError
llm = AsyncLLM(LLM(sys.argv[1], backend="cpu", threads=2, kv_cache_memory_bytes=4 << 20))

async def ask():
    async for result in llm.generate("Hello"):
        pass
    return result.finished

assert asyncio.run(ask())
child = os.fork()
if child == 0:
    try:
        asyncio.run(ask())
    except ConfigError as error:
        asyncio.run(llm.close())
        os._exit(0 if "was forked" in str(error) and "build" in str(error) else 1)
    os._exit(2)
assert os.waitpid(child, 0)[1] == 0
assert asyncio.run(ask())
asyncio.run(llm.close())
"""


@pytest.mark.parametrize(
    "code",
    [FORKED, ASYNC_FORKED, FORKED_WITH_FORMS],
    ids=["an engine goes on", "an engine's thread does not", "forms are compiled anew"],
)
def test_a_forked_process_answers_or_says_why_not(tiny_gguf, code):
    run(code, tiny_gguf)


@pytest.mark.weights
def test_a_process_may_fork_while_weights_are_packed(smollm2_path):
    run(FORKED_AT_ONCE, smollm2_path)


def run(code, path):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", code, str(path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stderr
