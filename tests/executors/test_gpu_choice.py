"""Who may use the GPU executor, and what those are told who may not."""

from __future__ import annotations

import importlib.util
from dataclasses import replace

import msgspec
import pytest

pytest.importorskip("triton", reason="Triton is not installed: pip install 'octavo[gpu]'")

from octavo import LLM, ConfigError
from octavo.config import EngineConfig
from octavo.contract.model import ExpertSpec
from octavo.executors.gpu import choose_gpu
from octavo.executors.gpu_memory import fused_dtype
from octavo.models.checkpoint import open_checkpoint


@pytest.fixture
def without(monkeypatch):
    """Make a package look as if it were not installed."""
    find = importlib.util.find_spec

    def hide(name):
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda one: None if one == name else find(one)
        )

    return hide


def refusal(path, **settings):
    with pytest.raises(ConfigError) as caught:
        LLM(str(path), report=lambda message: None, **settings)
    return str(caught.value)


@pytest.mark.parametrize("backend", ["triton", "flashinfer"])
def test_without_a_gpu_there_are_two_ways_out(tiny_gguf, monkeypatch, without, backend):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if backend == "flashinfer":
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())

    message = refusal(tiny_gguf, backend=backend, device="cpu")

    assert message == (
        f"the backend {backend} computes on NVIDIA GPUs, but the device is cpu: choose the backend "
        "cpu or reference, or a CUDA device"
    )


def test_without_triton_its_extra_is_named(tiny_gguf, without):
    without("triton")

    assert "needs Triton, which is not installed: pip install 'octavo[gpu]'" in refusal(
        tiny_gguf, backend="triton"
    )


def test_without_flashinfer_the_other_backend_is_named(tiny_gguf, without):
    without("flashinfer")

    message = refusal(tiny_gguf, backend="flashinfer")

    assert "needs FlashInfer, which is not installed" in message
    assert "choose the backend triton" in message


@pytest.fixture
def with_flashinfer(monkeypatch):
    """Make FlashInfer look as if it were installed."""
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda one: object() if one == "flashinfer" else find(one)
    )


def test_auto_means_flashinfer_where_it_is_installed(tiny_gguf, with_flashinfer):
    checkpoint = open_checkpoint(tiny_gguf)
    spec = msgspec.structs.replace(checkpoint.spec, head_dim=64)
    fits = replace(checkpoint, spec=spec)
    half = EngineConfig(dtype="float16")
    notes = []

    assert choose_gpu(half, fits, report=notes.append).backend == "flashinfer"
    assert not notes
    strict = EngineConfig(dtype="float16", deterministic=True)
    assert choose_gpu(strict, fits, report=notes.append).backend == "triton"


def test_auto_says_why_it_takes_triton_though_flashinfer_is_installed(tiny_gguf, with_flashinfer):
    notes = []

    choice = choose_gpu(EngineConfig(), open_checkpoint(tiny_gguf), report=notes.append)

    assert choice.backend == "triton"
    assert len(notes) == 1
    assert notes[0].startswith("backend: triton (the backend flashinfer attends with heads of 64")


def test_kv_that_the_kernels_do_not_read_is_refused(tiny_gguf):
    message = refusal(tiny_gguf, backend="triton", kv_cache_dtype="int8")

    assert "reads KV stored as float32, float16, bfloat16, not as int8" in message


def test_experts_have_no_strict_mode_there(tiny_gguf):
    checkpoint = open_checkpoint(tiny_gguf)
    experts = ExpertSpec(number=4, per_token=2, intermediate_size=40, normalized=True)
    mixture = replace(checkpoint, spec=msgspec.structs.replace(checkpoint.spec, experts=experts))

    with pytest.raises(ConfigError, match="no deterministic mode for mixtures of experts: choose"):
        choose_gpu(EngineConfig(backend="triton", deterministic=True), mixture, report=print)


def test_low_bit_weights_are_held_in_bfloat16_unless_they_are_interpreted(tiny_gguf):
    checkpoint = open_checkpoint(tiny_gguf)

    assert fused_dtype(checkpoint.dtype) == "bfloat16"
    plain = EngineConfig(backend="triton")
    assert choose_gpu(plain, checkpoint, report=print).plain.dtype == "float32"
    named = EngineConfig(backend="triton", dtype="float16")
    assert choose_gpu(named, checkpoint, report=print).plain.dtype == "float16"


def test_bfloat16_is_not_interpreted(tiny_gguf):
    message = refusal(tiny_gguf, backend="triton", dtype="bfloat16")

    assert "interpreter does not multiply bfloat16: choose float32 or float16" in message


@pytest.mark.parametrize("setting", [{"threads": 1}, {"cpu_arithmetic": "int8"}])
def test_settings_of_the_cpu_are_refused_by_name(tiny_gguf, setting):
    message = refusal(tiny_gguf, backend="triton", **setting)

    assert "but the backend is 'triton': only the backend cpu has it" in message


def test_graphs_that_nobody_captures_cannot_be_turned_off(tiny_gguf):
    message = refusal(tiny_gguf, backend="cpu", enforce_eager=True)

    assert message == "enforce_eager is True, but on cpu no graphs are captured: leave it out"
