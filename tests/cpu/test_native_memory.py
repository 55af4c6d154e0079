"""What the native executor takes of the machine: memory, and time while there is nothing to do."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from octavo import LLM, AsyncLLM, SamplingParams, cpu
from octavo.build import build_engine, choose_executor
from octavo.config import EngineConfig
from octavo.errors import ConfigError
from octavo.executors.native import choose_native
from octavo.models.checkpoint import open_checkpoint
from tiny_families import make_model
from tiny_model import TOKENS, write_tiny_gguf, write_tokenizer

if cpu.native() is None:
    pytest.skip("the native extension octavo._cpu was not built", allow_module_level=True)

from octavo.runner.native_model import NativeWeights

BESIDE = 150 << 20
"""Bytes for the interpreter, libraries, tokenizer and workspace."""


# ── weights ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("arithmetic", ["int8", "bf16", "float32"])
@pytest.mark.parametrize("kind", ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_what_weights_will_take_is_known_before_they_are_read(tmp_path, kind, arithmetic):
    path = write_tiny_gguf(tmp_path / "tiny.gguf", matrix_type=kind)

    assert counted(path, arithmetic) == packed(path, arithmetic)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mixtral", "gemma3"])
def test_it_is_known_of_biases_head_norms_experts_and_odd_sizes(tmp_path, name):
    make_model(name, tmp_path, vocab_size=len(TOKENS))
    write_tokenizer(tmp_path)

    assert counted(tmp_path, "int8") == packed(tmp_path, "int8")


def choice_for(path, arithmetic):
    config = EngineConfig(model=str(path), backend="cpu", cpu_arithmetic=arithmetic)
    return choose_native(config, open_checkpoint(path))


def counted(path, arithmetic):
    return choice_for(path, arithmetic).weight_bytes


def packed(path, arithmetic):
    choice = choice_for(path, arithmetic)
    pool = cpu.require_native().ThreadPool(1)
    weights = NativeWeights(choice.checkpoint, arithmetic=arithmetic, pool=pool)
    weights.model(choice.layout)
    return weights.num_bytes


# ── the whole process ─────────────────────────────────────────────────────────────────────

PEAK = """
import sys
from pathlib import Path
from octavo import LLM, SamplingParams

with LLM(sys.argv[1], report=print) as llm:
    prompt = llm.chat_prompt([{"role": "user", "content": "Tell me about the sea. " * 20}])
    llm.generate(prompt, SamplingParams(temperature=0, max_tokens=64, ignore_eos=True))
    print(llm.memory_report().blocks_used_peak * llm.built.layout.block_bytes)
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM:")))
mapped, ours = 0, False
for line in Path("/proc/self/smaps").read_text().splitlines():
    if "-" in line.split()[0]:
        ours = line.endswith(".gguf")
    elif ours and line.startswith("Rss:"):
        mapped += int(line.split()[1])
print(mapped)
"""


CLOSED = """
import sys
from pathlib import Path
from octavo import LLM, SamplingParams

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

llm = LLM(sys.argv[1], backend="cpu", kv_cache_memory_bytes=32 << 20, report=print)
llm.generate("The sea", SamplingParams(temperature=0, max_tokens=2))
before = resident()
llm.close()
print(before - resident())
"""


@pytest.mark.weights
@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_an_engine_that_is_closed_gives_its_weights_back(smollm2_path):
    command = [sys.executable, "-c", CLOSED, str(smollm2_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)

    assert int(done.stdout.split()[-1]) > 80 << 20  # of 97 MB


@pytest.mark.weights
@pytest.mark.skipif(not os.path.exists("/proc/self/smaps"), reason="this system has no /proc")
def test_a_process_takes_its_weights_the_kv_that_it_touches_and_150_mb(smollm2_path):
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(smollm2_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    touched, peak, mapped = map(int, done.stdout.split())
    weights = choose_executor(EngineConfig(model=str(smollm2_path))).weight_bytes

    assert peak << 10 <= weights + touched + BESIDE
    # Pages of the file are given back as they are packed: 7 MB are left of 98, more if the system
    # brought back neighbours of those that another thread was reading.
    assert mapped << 10 < 32 << 20


# ── nothing to do ─────────────────────────────────────────────────────────────────────────

WATCHED_S = 1.0
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def cpu_share() -> float:
    """Share of one core that this process uses for a while."""
    start, begun = time.process_time(), time.monotonic()
    time.sleep(WATCHED_S)
    return (time.process_time() - start) / (time.monotonic() - begun)


def test_an_engine_without_requests_uses_no_time(tiny_gguf):
    with LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20, threads=4) as llm:
        llm.generate("Hello", GREEDY)
        time.sleep(0.05)  # threads wait a moment for more before they park

        assert cpu_share() < 0.01


def test_a_serving_engine_without_requests_uses_no_time(tiny_gguf):
    async def serve() -> float:
        llm = LLM(str(tiny_gguf), kv_cache_memory_bytes=1 << 20, threads=4)
        async with AsyncLLM(llm) as engine:
            async for _ in engine.generate("Hello", GREEDY):
                pass
            await asyncio.sleep(0.05)
            return cpu_share()

    assert asyncio.run(serve()) < 0.01


# ── memory that is made ready ─────────────────────────────────────────────────────────────


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="this system has no /proc")
def test_kv_memory_is_made_ready_before_it_is_written_if_that_is_asked_for(tiny_gguf):
    options = {"model": str(tiny_gguf), "kv_cache_memory_bytes": 512 << 20, "threads": 1}
    lazy = build_engine(EngineConfig(**options), report=print).engine
    before = resident()
    asked = EngineConfig(**options, touch_ahead_mb=128)
    ready = build_engine(asked, report=print).engine
    deadline = time.monotonic() + 60
    while resident() < before + (128 << 20):
        assert time.monotonic() < deadline, f"{resident() - before} bytes more"
        time.sleep(0.01)
    time.sleep(0.1)

    assert resident() < before + (128 + 64 << 20)
    lazy.close()
    ready.close()


@pytest.mark.parametrize("wrong", [-1, 2**20 + 1, 1.5])
def test_an_amount_to_be_made_ready_that_is_none_is_refused(wrong):
    with pytest.raises(ConfigError, match="touch_ahead_mb"):
        EngineConfig(touch_ahead_mb=wrong)
