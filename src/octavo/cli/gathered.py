"""Flags that a command takes together, as one value that a function makes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeAlias, get_type_hints

Commands: TypeAlias = Callable[..., int]


def gathered(name: str, make: Callable[..., object]) -> Callable[[Commands], Commands]:
    """Give a command the flags of `make` in place of its parameter of that name."""

    def decorate(command: Commands) -> Commands:
        own, flags = (inspect.signature(one).parameters for one in (command, make))
        hints = _hints(command) | _hints(make)
        merged: list[inspect.Parameter] = []
        for key, parameter in own.items():
            merged += flags.values() if key == name else [parameter]
        merged = [
            one.replace(annotation=hints[one.name], kind=inspect.Parameter.KEYWORD_ONLY)
            for one in merged
        ]

        def run(**given: Any) -> int:  # what the flags hold
            options = {flag: given.pop(flag) for flag in flags}
            return command(**given, **{name: make(**options)})

        run.__name__, run.__doc__, run.__module__ = command.__name__, command.__doc__, __name__
        run.__annotations__ = {one.name: one.annotation for one in merged}
        run.__dict__["__signature__"] = inspect.Signature(merged)
        return run

    return decorate


def _hints(function: Callable[..., object]) -> dict[str, Any]:  # types of parameters
    return get_type_hints(function, include_extras=True)
