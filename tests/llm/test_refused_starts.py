"""Starts that cannot work: one line with the number, the limit and the way out."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from octavo import LLM, ConfigError, cpu


def test_weights_that_are_larger_than_memory_are_named():
    with pytest.raises(ConfigError) as caught:
        LLM(
            shape="llama-3.1-70b",
            load_format="dummy",
            backend="reference",
            device="cpu",
            dtype="float32",
        )

    message = str(caught.value)
    assert message.startswith("the weights take 262.8")
    assert message.endswith("choose a smaller model, shape or dtype")


@pytest.mark.skipif(cpu.native() is None, reason="the native extension is not built")
def test_threads_that_cannot_be_started_are_one_line(tiny_gguf):
    command = [sys.executable, "-m", "octavo", "generate", "hello", "--raw"]
    command += ["--model", str(tiny_gguf), "--max-tokens", "2", "--threads", "1024"]

    def little():
        resource.setrlimit(resource.RLIMIT_AS, (1_500_000_000, 1_500_000_000))

    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=little)

    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert "1024 threads cannot be started" in last
    assert last.endswith("lower threads")


@pytest.mark.parametrize("flag", [["--logprobs", "3"], ["--prompt-logprobs", "2"]])
def test_what_only_json_shows_is_not_asked_for_in_vain(tiny_gguf, flag):
    command = [sys.executable, "-m", "octavo", "generate", "hello", "--raw"]
    command += ["--model", str(tiny_gguf), *flag]

    done = subprocess.run(command, capture_output=True, text=True, timeout=60)

    assert done.returncode == 2
    assert "is only shown with --json: add that, or leave it" in done.stderr


@pytest.mark.parametrize("device", ["cuda", "cuda:3"])
def test_a_machine_without_a_driver_is_not_blamed_on_torch(tiny_gguf, device):
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")

    with pytest.raises(ConfigError, match="there is no NVIDIA driver"):
        LLM(str(tiny_gguf), backend="reference", device=device)
