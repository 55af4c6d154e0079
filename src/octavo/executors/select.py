"""Which executor a setting means: the one it names, or with `auto` the quickest that fits."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from octavo.config import EngineConfig
from octavo.cpu import NativeUnfit
from octavo.errors import ConfigError
from octavo.executors import gpu
from octavo.executors.choice import Choice
from octavo.executors.native import NATIVE, choose_native, native_isa
from octavo.executors.torch import choose_torch
from octavo.machine import available_cores
from octavo.models.checkpoint import Checkpoint

AUTO = "auto"
REFERENCE = "reference"

_GPU_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg", "/dev/kfd")
"""One of these is there where torch could see a GPU: NVIDIA's (Tegra's, WSL's), AMD's."""


def select_executor(
    config: EngineConfig, checkpoint: Checkpoint, *, report: Callable[[str], None]
) -> Choice:
    """Choose the executor. Raises ConfigError if the one that is named, or any, cannot do it.

    report: told why `auto` does not take the quickest, and what a start does not wait for.
    """
    if config.backend == NATIVE:
        return _native(config, checkpoint, report)
    if config.backend in gpu.NAMES:
        return gpu.choose_gpu(config, checkpoint, report=report)
    if config.backend != AUTO:
        return choose_torch(config, checkpoint)
    native_alone = config.cpu_arithmetic is not None or config.threads is not None
    if not native_alone and _means_gpu(config.device):
        try:
            return gpu.choose_gpu(config, checkpoint, report=report)
        except gpu.GpuUnfit as unfit:
            reason = str(unfit)
    else:
        try:
            return _native(config, checkpoint, report)
        except NativeUnfit as unfit:
            if native_alone:
                raise
            _need_torch(unfit)
            reason = unfit.reason
    choice = choose_torch(replace(config, backend=REFERENCE), checkpoint)
    report(f"backend: {REFERENCE} ({reason})")
    return choice


def _means_gpu(device: str) -> bool:
    return (device == "auto" or device.startswith("cuda")) and torch_sees_gpu()


def _native(config: EngineConfig, checkpoint: Checkpoint, report: Callable[[str], None]) -> Choice:
    choice = choose_native(config, checkpoint)
    cores = available_cores()
    if config.threads is not None and config.threads > cores:
        report(
            f"threads is {config.threads}, but this process may use {cores} cores: more threads "
            "than cores are slower than as many"
        )
    return choice


def explain_auto() -> tuple[str, str]:
    """Return the backend that `auto` takes here where the model allows it, and why.

    Raises ConfigError if there is none.
    """
    if torch_sees_gpu():
        if importlib.util.find_spec("triton") is None:
            return REFERENCE, "torch sees a GPU, but Triton is not installed"
        if importlib.util.find_spec(gpu.FLASHINFER) is None:
            return gpu.TRITON, "torch sees a GPU, FlashInfer is not installed"
        return gpu.FLASHINFER, "torch sees a GPU, FlashInfer is installed"
    try:
        isa = native_isa()
    except NativeUnfit as unfit:
        _need_torch(unfit)
        return REFERENCE, unfit.reason
    return NATIVE, f"native kernels for {isa}"


def gpu_may_be_there() -> bool:
    """Tell whether there is a driver of a GPU; loads nothing."""
    return any(Path(file).exists() for file in _GPU_FILES)


def torch_sees_gpu() -> bool:
    """Tell whether torch is installed and finds a GPU; loads it only where there may be one."""
    if not gpu_may_be_there():
        return False
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return torch.cuda.is_available()


def _need_torch(unfit: NativeUnfit) -> None:
    if importlib.util.find_spec("torch") is None:
        way_out = "install torch for the reference backend (pip install 'octavo[torch]')"
        raise ConfigError(str(NativeUnfit(unfit.reason, unfit.change, otherwise=way_out))) from None
