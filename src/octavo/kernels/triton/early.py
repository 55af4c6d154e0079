"""Kernels that are set up while the one before them ends: programmatic dependent launch.

A kernel that is launched so waits for the one before it (`await_kernel`), and only then lets the
next one come. Before that it may read whatever the kernel before does not write: weights, where
things lie, what is two kernels old. It must write nothing.

Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
"""

from __future__ import annotations

from functools import cache
from typing import TypedDict

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

_CAPABILITY = (9, 0)
"""Of a card that can: Hopper and later."""


@triton.jit
def await_kernel(EARLY: tl.constexpr) -> None:
    """Wait until the kernel before has ended and all that it wrote can be seen; once a program."""
    if EARLY:
        gdc_wait()
        gdc_launch_dependents()


class Launch(TypedDict, total=False):
    """Options with which such a kernel is launched."""

    EARLY: bool
    launch_pdl: bool


@cache
def early_launch(device: torch.device) -> Launch:
    """Return the options for a device."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) >= _CAPABILITY:
        return {"EARLY": True, "launch_pdl": True}
    return {"EARLY": False}
