"""What NVIDIA's part of this machine is: driver, cards, and the packages that compute there.

Everything may be missing or broken: what cannot be told is None, with the reason beside it.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import warnings
from collections.abc import Callable
from pathlib import Path

import msgspec

DRIVER_FILE = "/proc/driver/nvidia/version"
DEVICE_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg")
"""One of these is there where NVIDIA's driver may be: Linux, Tegra, WSL."""

_QUERY = ("index", "name", "memory.total", "memory.free", "compute_cap", "driver_version")
_SECONDS = 20
"""How long nvidia-smi may take: it wakes sleeping cards."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """One card, as torch sees it or else as the driver lists it."""

    index: int
    name: str
    total_bytes: int | None
    free_bytes: int | None
    compute_capability: str | None
    """Such as 9.0."""
    problem: str | None = None
    """Why something is not known."""


class TorchCuda(msgspec.Struct, frozen=True, kw_only=True):
    """What torch can do with NVIDIA GPUs."""

    installed: bool
    version: str | None = None
    cuda: str | None = None
    """The CUDA version that it was built for; None: without CUDA."""
    usable: bool = False
    problem: str | None = None
    """Why it is not usable, in torch's words."""


class GpuStack(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    driver: str | None
    """Version of NVIDIA's driver; None: none was found."""
    driver_present: bool
    """The driver is there, even if its version cannot be told."""
    torch: TorchCuda
    gpus: tuple[Gpu, ...]
    triton: str | None
    flashinfer: str | None
    nvcc: str | None
    """Path of the compiler with which FlashInfer compiles its kernels."""
    visible_devices: str | None
    """CUDA_VISIBLE_DEVICES, which hides cards; None: not set."""


def gpu_stack(version: Callable[[str], str | None]) -> GpuStack:
    """Look at the machine; never raises. version: of a package, None if it is not installed."""
    listed, driver = _nvidia_smi()
    driver = driver or _driver_version()
    present = driver is not None or any(Path(file).exists() for file in DEVICE_FILES)
    torch = _torch_cuda()
    return GpuStack(
        driver=driver,
        driver_present=present,
        torch=torch,
        gpus=_torch_gpus() if torch.usable else listed,
        triton=version("triton"),
        flashinfer=version("flashinfer-python"),
        nvcc=find_nvcc(),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def find_nvcc() -> str | None:
    """Return the path of nvcc, looked for where FlashInfer does."""
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    home = next((name for name in homes if name), None)
    if home is None:
        found = shutil.which("nvcc")
        if found is not None:
            return found
    path = Path(home or "/usr/local/cuda") / "bin" / "nvcc"
    return str(path) if path.is_file() else None


def _torch_cuda() -> TorchCuda:
    if importlib.util.find_spec("torch") is None:
        return TorchCuda(installed=False)
    try:
        import torch

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            usable = torch.cuda.is_available() and torch.cuda.device_count() > 0
    except Exception as error:  # a broken installation fails in any way
        return TorchCuda(installed=True, problem=_first_line(error))
    said = [_first_line(one.message) for one in caught]
    return TorchCuda(
        installed=True,
        version=str(torch.__version__),
        cuda=torch.version.cuda,
        usable=usable,
        problem=None if usable or not said else said[0],
    )


def _torch_gpus() -> tuple[Gpu, ...]:
    import torch

    return tuple(_torch_gpu(number) for number in range(torch.cuda.device_count()))


def _torch_gpu(index: int) -> Gpu:
    import torch

    name, capability, problem = "unknown", None, None
    total = free = None
    try:
        facts = torch.cuda.get_device_properties(index)
        name, capability = facts.name, f"{facts.major}.{facts.minor}"
        total = facts.total_memory
        free, total = torch.cuda.mem_get_info(index)
    except Exception as error:  # a card may be full, taken by another process, or broken
        problem = _first_line(error)
    return Gpu(
        index=index,
        name=name,
        total_bytes=total,
        free_bytes=free,
        compute_capability=capability,
        problem=problem,
    )


def _nvidia_smi() -> tuple[tuple[Gpu, ...], str | None]:
    """Return the cards that the driver lists, and its version."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return (), None
    question = [f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [command, *question], capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except (OSError, subprocess.SubprocessError):
        return (), None
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    rows = [row for row in rows if len(row) == len(_QUERY) and row[0].isdigit()]
    return tuple(_listed_gpu(row) for row in rows), rows[0][5].strip() if rows else None


def _listed_gpu(row: list[str]) -> Gpu:
    index, name, total, free, capability, _ = row
    return Gpu(
        index=int(index),
        name=name,
        total_bytes=_mebibytes(total),
        free_bytes=_mebibytes(free),
        compute_capability=capability if re.fullmatch(r"[0-9]+\.[0-9]+", capability) else None,
    )


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.strip().isdigit() else None


def _driver_version() -> str | None:
    try:
        first = Path(DRIVER_FILE).read_text().partition("\n")[0]
    except OSError:
        return None
    found = re.search(r"\b[0-9]{3,}\.[0-9]+(?:\.[0-9]+)?\b", first)
    return found[0] if found else None


def _first_line(error: object) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__
