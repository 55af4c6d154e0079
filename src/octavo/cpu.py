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
    """Return the extension; raises `ConfigError` that says why it is missing and what to do."""
    found = _load()
    if isinstance(found, ModuleType):
        return found
    raise ConfigError(
        f"the native extension octavo._cpu does not load ({found}). It is built when octavo is "
        "installed where there is a C++20 compiler: install one and then octavo again, or install "
        "octavo[torch] for the reference backend."
    ) from found
