"""How the states of a prompt's tokens become one vector: what is asked, not computed, here."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import msgspec

from octavo.contract.numbers import is_whole, shown
from octavo.errors import RequestError

HowPooled: TypeAlias = Literal["mean", "last"]
"""The mean of all tokens' last states, or the last token's."""


class Pooling(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What becomes of a prompt that is to be embedded. An impossible value is a RequestError.

    Of the mean every state is needed, so that nothing of the prompt is taken from memory; of the
    last token's, all but its own.
    """

    how: HowPooled
    normalize: bool = True
    """The vector is divided by its length."""
    dimensions: int | None = None
    """Keep so many numbers, the first, before it is normalized; None: all."""

    def __post_init__(self) -> None:
        if self.how not in get_args(HowPooled):
            raise RequestError(
                f"pooling {shown(self.how)} is not one of {', '.join(get_args(HowPooled))}"
            )
        if not isinstance(self.normalize, bool):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise RequestError(f"normalize must be true or false, got {shown(self.normalize)}")
        if self.dimensions is not None and not (is_whole(self.dimensions) and self.dimensions > 0):
            raise RequestError(
                f"dimensions must be a whole number of at least 1, got {shown(self.dimensions)}"
            )
