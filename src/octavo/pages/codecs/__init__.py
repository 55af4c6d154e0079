"""KV codecs, one file per family, and the table of those that octavo brings."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from octavo.contract.formats import ITEM_BYTES
from octavo.contract.layout import KVLayout
from octavo.pages.codec import KVCodec, KVCodecs
from octavo.pages.codecs.cast import CastCodec
from octavo.pages.codecs.int8 import Int8Codec

CODECS: dict[str, Callable[[], KVCodec]] = {
    **{name: partial(CastCodec, name) for name in ITEM_BYTES},
    "int8": Int8Codec,
}
"""Makers of codecs, by name."""


def codecs_for(layout: KVLayout) -> KVCodecs:
    """Make the codecs of a layout whose formats are octavo's own."""
    return CODECS[layout.keys.name](), CODECS[layout.values.name]()
