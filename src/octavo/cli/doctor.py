"""`octavo doctor`: what this machine is, what octavo can use here, and how to get the rest."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import msgspec

from octavo.cli.gpus import Gpu, GpuStack, gpu_stack
from octavo.cli.options import Json
from octavo.cli.output import print_json, say
from octavo.cli.serve import EXTRA, missing_packages
from octavo.cpu import native
from octavo.errors import ConfigError, FetchError
from octavo.machine import Machine, free_memory_bytes, this_machine

_PACKAGES = ("numpy", "tokenizers", "minijinja", "msgspec", "torch")


def doctor(json: Json = False) -> int:
    """Say what is usable here, what is missing, and how to get it; exit status 1: not usable."""
    facts = _facts()
    if json:
        print_json("octavo.doctor/1", {}, facts)
    else:
        _print(this_machine(), facts)
    return 0 if all(check["usable"] for check in facts["checks"] if check["needed"]) else 1


def _facts() -> dict[str, Any]:
    stack = gpu_stack(_version)
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "free_memory_bytes": free_memory_bytes(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "gpu_stack": msgspec.to_builtins(stack),
        "checks": [
            _auto(),
            _native(),
            _torch(),
            *_gpu_checks(stack),
            _model(),
            _server(),
            _pip(),
            *_plugins(),
        ],
    }


def _check(name: str, usable: bool, detail: str, *, remedy: str, needed: bool) -> dict[str, Any]:
    return {
        "name": name,
        "usable": usable,
        "detail": detail,
        "remedy": None if usable else remedy,
        "needed": needed,
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _auto() -> dict[str, Any]:
    from octavo.executors.select import explain_auto

    try:
        backend, reason = explain_auto()
        usable, detail = True, f"{backend}: {reason}"
    except ConfigError as error:
        usable, detail = False, str(error)
    except Exception as error:  # a broken torch fails in any way, and that is what is asked here
        usable, detail = False, f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    return _check(
        "backend auto",
        usable,
        detail,
        remedy="a C++20 compiler and octavo installed again, or pip install 'octavo[torch]'",
        needed=True,
    )


def _native() -> dict[str, Any]:
    found = native()
    return _check(
        "native executor",
        found is not None,
        f"kernels for {', '.join(found.available_isas())}"
        if found
        else "octavo._cpu does not load",
        remedy="install a C++20 compiler and then octavo again, which builds it",
        needed=False,
    )


def _torch() -> dict[str, Any]:
    found = _version("torch")
    return _check(
        "torch executor",
        found is not None,
        f"torch {found}" if found else "torch is not installed",
        remedy="pip install 'octavo[torch]'",
        needed=False,
    )


def _gpu_checks(stack: GpuStack) -> list[dict[str, Any]]:
    """Check what computes on GPUs, as far as there is one to compute on."""
    checks = [_gpu(stack)]
    if not (stack.driver_present or stack.gpus):
        return checks
    flashinfer = "its kernels are compiled at first use, by nvcc"
    return [
        *checks,
        _check(
            "triton",
            stack.triton is not None,
            f"triton {stack.triton}" if stack.triton else "triton is not installed",
            remedy="pip install 'octavo[gpu]'; torch for CUDA brings it too",
            needed=False,
        ),
        _check(
            "flashinfer",
            stack.flashinfer is not None,
            f"flashinfer {stack.flashinfer}" if stack.flashinfer else "flashinfer is not installed",
            remedy="pip install 'octavo[gpu]'",
            needed=False,
        ),
        _check(
            "nvcc, for flashinfer",
            stack.nvcc is not None,
            f"{stack.nvcc}: {flashinfer}" if stack.nvcc else f"nvcc is not here: {flashinfer}",
            remedy="install the CUDA toolkit, or set CUDA_HOME to its folder",
            needed=False,
        ),
    ]


def _gpu(stack: GpuStack) -> dict[str, Any]:
    detail, remedy = _why_no_gpu(stack)
    if stack.torch.usable:
        built = f"CUDA {stack.torch.cuda}" if stack.torch.cuda else "another maker's GPUs"
        detail = f"{_count(len(stack.gpus))}, torch {stack.torch.version} for {built}"
        if stack.driver is not None:
            detail += f", driver {stack.driver}"
    return _check("NVIDIA GPU", stack.torch.usable, detail, remedy=remedy, needed=False)


def _why_no_gpu(stack: GpuStack) -> tuple[str, str]:
    """Return what stands between torch and a GPU, and the way out."""
    torch = stack.torch
    driver = "NVIDIA's driver" if stack.driver is None else f"NVIDIA driver {stack.driver}"
    for_cuda = "install a torch built for CUDA (pytorch.org says how), then 'octavo[gpu]'"
    if not stack.driver_present:
        return (
            "no NVIDIA driver is here",
            "octavo runs on the CPU without one; otherwise install a driver and a CUDA torch",
        )
    if not torch.installed:
        return f"{driver} is here, but torch is not installed", for_cuda
    if torch.version is None:
        return f"torch does not load ({torch.problem})", "install torch again"
    if torch.cuda is None:
        return f"torch {torch.version} is built without CUDA, beside {driver}", for_cuda
    reason = f" ({torch.problem})" if torch.problem else ""
    hidden = stack.visible_devices
    if hidden is not None:
        reason += f"; CUDA_VISIBLE_DEVICES is {hidden!r}"
    return (
        f"torch {torch.version} for CUDA {torch.cuda} finds no GPU beside {driver}{reason}",
        "install a driver as new as that CUDA or a torch for an older one, and let "
        "CUDA_VISIBLE_DEVICES name a card that is here",
    )


def _count(gpus: int) -> str:
    return "1 GPU" if gpus == 1 else f"{gpus} GPUs"


def _model() -> dict[str, Any]:
    from octavo.build import DEFAULT_ALIAS, find

    try:
        path = find(DEFAULT_ALIAS)
        detail = "not in the cache folder" if path is None else str(path)
    except FetchError as error:
        path, detail = None, str(error)
    return _check(
        f"embedded model {DEFAULT_ALIAS}",
        path is not None,
        detail,
        remedy=f"octavo pull {DEFAULT_ALIAS}, or name a model of yours with --model",
        needed=False,
    )


def _server() -> dict[str, Any]:
    missing = missing_packages()
    return _check(
        "octavo serve",
        not missing,
        f"not installed: {', '.join(missing)}" if missing else "what speaks HTTP is installed",
        remedy=EXTRA,
        needed=False,
    )


def _pip() -> dict[str, Any]:
    usable = importlib.util.find_spec("pip") is not None
    return _check(
        "pip, for octavo pull",
        usable,
        f"pip {_version('pip')}" if usable else "pip is not installed",
        remedy="python -m ensurepip",
        needed=False,
    )


def _plugins() -> list[dict[str, Any]]:
    """Load every plug-in, so that a broken one is found before an engine needs it."""
    from octavo.plugins import GROUPS, installed, load

    checks: list[dict[str, Any]] = []
    for group in GROUPS:
        for point in installed(group):
            try:
                load(point)
                usable, detail = True, point.value
            except ConfigError as error:
                usable, detail = False, str(error)
            checks.append(
                _check(
                    f"plug-in {point.name} ({group})",
                    usable,
                    detail,
                    remedy="reinstall or uninstall the package that brings it",
                    needed=False,
                )
            )
    return checks


def _in_words(gpu: Gpu) -> str:
    """Describe one card in a line."""
    parts = [f"{gpu.index}: {gpu.name}"]
    if gpu.total_bytes is not None:
        free = "?" if gpu.free_bytes is None else f"{gpu.free_bytes / 2**30:.1f}"
        parts.append(f"{free} of {gpu.total_bytes / 2**30:.1f} GiB free")
    if gpu.compute_capability is not None:
        parts.append(f"compute capability {gpu.compute_capability}")
    if gpu.problem is not None:
        parts.append(gpu.problem)
    return ", ".join(parts)


def _print(machine: Machine, facts: dict[str, Any]) -> None:
    free, total = facts["free_memory_bytes"] / 2**30, machine.memory_bytes / 2**30
    say(f"python    {facts['python']} on {facts['platform']}")
    say(f"cpu       {machine.cpu}, {machine.cores} cores")
    say(f"memory    {free:.1f} of {total:.1f} GiB free")
    gpus = [_in_words(msgspec.convert(one, Gpu)) for one in facts["gpu_stack"]["gpus"]]
    for line in gpus or [", ".join(machine.gpus) or "none"]:
        say(f"gpu       {line}")
    packages = (f"{name} {found or 'missing'}" for name, found in facts["packages"].items())
    say("packages  " + ", ".join(packages))
    for check in facts["checks"]:
        mark = "ok     " if check["usable"] else "missing"
        say(f"{mark}   {check['name']}: {check['detail']}")
        if check["remedy"]:
            say(f"          → {check['remedy']}")
