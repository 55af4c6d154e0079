"""The native extension `octavo._cpu`, or the reason why it is not here.

Its functions are written in `csrc/`; `_cpu.pyi` lists them. Importing this module loads nothing.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from types import ModuleType

from octavo.errors import ConfigError

ISA_VARIABLE = "OCTAVO_CPU_ISA"
"""Environment variable that names the instruction set to use: avx512, avx2 or plain. For tests."""


class NativeUnfit(ConfigError):
    """The native executor cannot do what is asked of it; another one may."""

    def __init__(
        self, reason: str, change: str = "", *, otherwise: str = "choose the reference backend"
    ) -> None:
        """change: what would help here; otherwise: how to get another executor."""
        ways = f"{change}, or {otherwise}" if change else otherwise
        super().__init__(f"{reason}: {ways}")
        self.reason = reason
        self.change = change


@cache
def _load() -> ModuleType | ImportError:
    try:
        # By name: the import linter takes an import statement for one of all that octavo offers.
        return import_module("octavo._cpu")
    except ImportError as error:
        return error


def native() -> ModuleType | None:
    """Return the extension, or None if it was not built or does not load here."""
    found = _load()
    return found if isinstance(found, ModuleType) else None


def require_native() -> ModuleType:
    """Return the extension; raises `NativeUnfit` that says why it is missing and what to do."""
    found = _load()
    if isinstance(found, ModuleType):
        return found
    raise NativeUnfit(
        f"the native extension octavo._cpu does not load ({found})",
        "install a C++20 compiler and then octavo again, which builds it",
        otherwise="install octavo[torch] and choose the reference backend",
    ) from found
