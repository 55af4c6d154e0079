"""What a record says of the engine that was measured, and of what it computed with."""

from __future__ import annotations

import os
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

_LIBRARIES = {"torch": "torch", "triton": "triton", "flashinfer": "flashinfer-python"}
"""Packages that hold them, by our name."""
_START_TICKS = 19
"""Where /proc/self/stat says when the process began: a place among what follows its name."""


class EngineFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One engine."""

    backend: str
    device: str
    card: str | None
    """The name of the GPU; None: it computes on none."""
    start_s: float | None
    """From the start of the process until the engine took requests; None: nobody can tell."""
    versions: dict[str, str | None]
    """Of the libraries that compute; None: not installed."""


def engine_facts(backend: str, device: str) -> EngineFacts:
    """Describe an engine that has just been built."""
    return EngineFacts(
        backend=backend,
        device=device,
        card=_card_name(device),
        start_s=process_age_s(),
        versions={name: _version(package) for name, package in _LIBRARIES.items()},
    )


def process_age_s() -> float | None:
    """Return the seconds since this process was started, to a hundredth; None: unknown here."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start_s = int(fields[_START_TICKS]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - start_s
    except (OSError, AttributeError, ValueError, IndexError):
        return None


def _card_name(device: str) -> str | None:
    if not device.startswith("cuda"):
        return None
    import torch  # which computes there, so that it is loaded already

    return torch.cuda.get_device_name(device)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
