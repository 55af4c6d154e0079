"""How much room a request gets at admission: rows of one table.

`on_demand` is octavo's rule: nothing in advance. The others reserve one contiguous region per
request, as the systems did that PagedAttention was compared with (Kwon et al., SOSP 2023,
section 6.1): Orca with three degrees of knowledge about the output, and FasterTransformer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Reservation:
    """One rule."""

    name: str
    tokens: Callable[[int, int, int], int] | None
    """(prompt, expected output, longest text) to slots of the region; None: on demand."""
    together: bool = False
    """A batch is formed once and runs until all of it has ended."""


def _longest(prompt: int, output: int, longest: int) -> int:
    return longest


def _power_of_two(prompt: int, output: int, longest: int) -> int:
    return min(longest, prompt + (1 << max(0, output - 1).bit_length()))


def _exact(prompt: int, output: int, longest: int) -> int:
    return min(longest, prompt + output)


RESERVATIONS = {
    rule.name: rule
    for rule in (
        Reservation("on_demand", None),
        Reservation("max", _longest),
        Reservation("pow2", _power_of_two),
        Reservation("oracle", _exact),
        Reservation("static", _longest, together=True),
    )
}
