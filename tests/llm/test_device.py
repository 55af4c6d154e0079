"""`device`: where a model is computed, and what is said if it cannot be there."""

from __future__ import annotations

import math

import numpy as np
import pytest

from octavo import LLM, ConfigError
from octavo.config import EngineConfig
from octavo.models.weights import weight_shapes

GIB = 1 << 30


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


@pytest.fixture
def card(monkeypatch):
    """Tell the engine that its device has memory of its own: free and total bytes."""

    def give(free, total):
        monkeypatch.setattr("octavo.runner.device.device_memory", lambda device: (free, total))

    return give


def reference(path, **settings):
    return LLM(str(path), device="cpu", backend="reference", **settings)


def test_the_pool_of_a_gpu_is_what_its_share_leaves_beside_all_else(tiny_gguf, card):
    card(GIB, GIB)
    notes = []

    with reference(tiny_gguf, gpu_memory_utilization=0.5, report=notes.append) as llm:
        spec, blocks = llm.built.spec, llm.built.num_blocks
        pool = blocks * llm.built.layout.block_bytes

    weights = 4 * sum(math.prod(shape) for shape in weight_shapes(spec).values())
    assert pool < GIB // 2 - weights
    assert any("- weights in float32" in note for note in notes)
    assert any("= KV in float32" in note for note in notes)


def test_weights_that_do_not_fit_a_gpu_are_refused_with_another_way(tiny_gguf, card):
    card(100_000, 110_000)

    with pytest.raises(ConfigError, match=r"cpu has too little memory: 0\.9 of its") as caught:
        reference(tiny_gguf)

    assert "it would fit with --backend cpu --device cpu" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_size_of_the_pool_may_be_given_where_the_share_is_too_small(tiny_gguf, card):
    card(GIB, GIB)

    with reference(tiny_gguf, gpu_memory_utilization=0.01, kv_cache_memory_bytes=1 << 20) as llm:
        assert llm.built.num_blocks == (1 << 20) // llm.built.layout.block_bytes


def test_a_pool_larger_than_the_gpu_is_refused_with_one_that_fits(tiny_gguf, card):
    card(GIB, GIB)

    with pytest.raises(ConfigError, match=r"too much; it would fit with --kv-cache-memory-bytes"):
        reference(tiny_gguf, kv_cache_memory_bytes=1 << 50)


def test_a_share_of_a_gpu_means_nothing_on_a_cpu(tiny_gguf):
    message = "gpu_memory_utilization is 0.9, but on cpu the pool lies in the machine's memory"
    with pytest.raises(ConfigError, match=message):
        LLM(str(tiny_gguf), device="cpu", gpu_memory_utilization=0.9)


@pytest.mark.parametrize("share", [0, -0.1, 1.01, True, "0.9", float("nan")])
def test_a_share_is_above_0_and_at_most_1(share):
    with pytest.raises(ConfigError, match="gpu_memory_utilization must be above 0 and at most 1"):
        EngineConfig(gpu_memory_utilization=share)


def test_a_share_may_be_any_kind_of_number():
    assert EngineConfig(gpu_memory_utilization=1).gpu_memory_utilization == 1.0
    assert EngineConfig(gpu_memory_utilization=np.float32(0.5)).gpu_memory_utilization == 0.5
