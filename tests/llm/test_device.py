"""`device`: where a model is computed, and what is said if it cannot be there."""

from __future__ import annotations

import math

import pytest

from octavo import LLM, ConfigError
from octavo.models.weights import weight_shapes


def test_the_cpu_can_be_asked_for(tiny_gguf):
    with LLM(str(tiny_gguf), device="cpu", kv_cache_memory_bytes=1 << 20) as llm:
        assert llm.built.device == "cpu"


@pytest.mark.parametrize("device", ["cuda:99", "mps:7", "gpu", "meta", "cuda:x"])
def test_a_device_that_is_not_there_is_refused_with_those_that_are(tiny_gguf, device):
    message = rf"device '{device}' .*choose one of cpu.*or auto"
    with pytest.raises(ConfigError, match=message) as error:
        LLM(str(tiny_gguf), device=device)

    assert "\n" not in str(error.value)


@pytest.mark.parametrize("device", [None, "", 0])
def test_a_device_is_a_name(tiny_gguf, device):
    with pytest.raises(ConfigError, match="device must be a name, or auto"):
        LLM(str(tiny_gguf), device=device)


def test_the_pool_of_a_gpu_is_three_quarters_of_what_the_weights_leave(tiny_gguf, monkeypatch):
    free = 2 << 20
    monkeypatch.setattr("octavo.runner.device.free_device_bytes", lambda device: free)

    with LLM(str(tiny_gguf), device="cpu", backend="reference") as llm:
        weights = 4 * sum(math.prod(shape) for shape in weight_shapes(llm.built.spec).values())
        pool = llm.built.num_blocks * llm.built.layout.block_bytes

    assert 0 <= (free - weights) * 3 // 4 - pool < llm.built.layout.block_bytes


def test_weights_that_do_not_fit_a_gpu_are_refused(tiny_gguf, monkeypatch):
    monkeypatch.setattr("octavo.runner.device.free_device_bytes", lambda device: 100_000)

    with pytest.raises(ConfigError, match=r"weights take \d+ bytes, but cpu has 100000 free"):
        LLM(str(tiny_gguf), device="cpu", backend="reference")
