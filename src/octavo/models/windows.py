"""Read which layers of a model look back no further than a window, and how far that is.

From config.json or GGUF metadata; what a window does is the business of attention.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from octavo.errors import ModelError
from octavo.models.families import WindowKeys
from octavo.models.values import Values

_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True)
class Windows:
    """What a header says of windows."""

    tokens: int | None = None
    """Positions that a query sees, its own included; None: no layer has a window."""
    layers: tuple[int, ...] = ()


def windows_from_config(keys: WindowKeys | None, read: Values, num_layers: int) -> Windows:
    """Return the windows of a config.json with the defaults of its family."""
    if keys is None or (keys.switch is not None and not read.get(keys.switch)):
        return Windows()
    # Where some layers must have one, an absent window is an error.
    if keys.period is None and not read.get("sliding_window"):
        return Windows()
    tokens = read.size("sliding_window")
    kinds = read.get("layer_types")
    if kinds is not None:
        return _windows(tokens, _checked_kinds(kinds, read, num_layers))
    if keys.period is not None:
        return _windows(tokens, _by_period(read.size(keys.period), num_layers))
    first = 0 if keys.first is None else read.get(keys.first)
    if isinstance(first, bool) or not isinstance(first, int) or first < 0:
        raise ModelError(
            f"{read.where}: {keys.first} must be a whole number of layers, found {first!r}."
        )
    return _windows(tokens, [number >= first for number in range(num_layers)])


def windows_from_gguf(keys: WindowKeys | None, read: Values, num_layers: int) -> Windows:
    """Return the windows of GGUF metadata: of all layers, unless header or family say which."""
    if not read.get("attention.sliding_window"):
        return Windows()
    tokens = read.size("attention.sliding_window")
    key = "attention.sliding_window_pattern"
    pattern = read.get(key)
    if isinstance(pattern, list):
        if len(pattern) != num_layers or not all(isinstance(one, bool) for one in pattern):
            raise ModelError(
                f"{read.where}: {key} must say yes or no for each of {num_layers} layers, found "
                f"{len(pattern)} values. Convert the model again."
            )
        return _windows(tokens, pattern)
    period = None if keys is None else keys.gguf_period
    if pattern is not None:
        period = read.size(key)
    if period is None:
        return _windows(tokens, [True] * num_layers)
    return _windows(tokens, _by_period(period, num_layers))


def _windows(tokens: int, has_one: list[bool]) -> Windows:
    layers = tuple(number for number, windowed in enumerate(has_one) if windowed)
    return Windows(tokens, layers) if layers else Windows()


def _by_period(period: int, num_layers: int) -> list[bool]:
    return [(number + 1) % period != 0 for number in range(num_layers)]


def _checked_kinds(kinds: Any, read: Values, num_layers: int) -> list[bool]:  # any JSON value
    known = isinstance(kinds, list) and all(kind in (_SLIDING, _FULL) for kind in kinds)
    if not known or len(kinds) != num_layers:
        raise ModelError(
            f"{read.where}: layer_types must name {_SLIDING} or {_FULL} for each of {num_layers} "
            f"layers, found {kinds!r}. Use a model without other kinds of layers."
        )
    return [kind == _SLIDING for kind in kinds]
