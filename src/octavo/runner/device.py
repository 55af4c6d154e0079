"""Finds the device that a setting names, and how much memory it has."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from textwrap import shorten

import torch

from octavo.errors import ConfigError

_REASON_LETTERS = 80
_NVIDIA_FILES = ("/dev/nvidiactl", "/dev/nvmap", "/dev/dxg")
"""One of these is there where a driver is loaded: also Tegra's, WSL's."""


def find_device(name: str) -> torch.device:
    """Return the device of a setting; auto: a GPU if there is one, else the CPU.

    It is asked for one number, so that what is returned works. Raises ConfigError, naming the
    devices that are there.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.zeros(1, device=name).device
    # No such word, no such device, torch built without it, or a driver that fails.
    except (RuntimeError, AssertionError, NotImplementedError, ModuleNotFoundError) as error:
        reason = shorten(str(error).partition("\n")[0], _REASON_LETTERS, placeholder=" …")
        if name.startswith("cuda") and not any(Path(file).exists() for file in _NVIDIA_FILES):
            reason = "there is no NVIDIA driver"
        raise ConfigError(
            f"device {name!r} cannot be used here ({reason}): choose one of "
            f"{', '.join(present())}, or auto"
        ) from error
    if device.type == "meta":
        raise ConfigError(
            f"device {name!r} holds no numbers: choose one of {', '.join(present())}, or auto"
        )
    return device


def present() -> list[str]:
    """Name the devices of this machine that torch can use."""
    names = ["cpu"]
    if torch.cuda.is_available():
        names += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return names


def device_memory(device: torch.device) -> tuple[int, int] | None:
    """Bytes that can be allocated on a device now, and bytes that it has.

    None: it shares the machine's memory.
    """
    if device.type != "cuda":
        return None
    free, total = torch.cuda.mem_get_info(device)
    # torch keeps memory that was given back, and returns it to the driver when that runs out.
    free += torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free, total


def on_device(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the current one of this thread: kernels are started where that is."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
