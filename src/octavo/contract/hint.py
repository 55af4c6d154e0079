"""What a caller says about the further use of a text's KV: evidence for eviction, not an order."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

Word: TypeAlias = Literal["continues", "closed", "shared"]


class CacheHint(msgspec.Struct, frozen=True):
    """What is said of a text when its sequence ends.

    It changes no answer. An eviction policy may learn from what became of such texts how much
    it means when this source says this; until then it means nothing.
    """

    says: Word | float
    """continues: a later prompt goes on from this text; closed: none does; shared: other texts
    begin like it; a number: the probability that it is used again, from 0 to 1."""
    tokens: int | None = None
    """It is said of so many leading tokens, less those of the hint before; None: of all the rest,
    the answer included."""
    source: str = ""
    """Who says it, a tenant as a rule: each is believed as far as it has been right."""
