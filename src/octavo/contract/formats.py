"""How the vectors of keys and values are stored, as far as their bytes go."""

from __future__ import annotations

import msgspec

from octavo.errors import ConfigError

ITEM_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
"""Bytes of one number of each dtype that weights may have."""

ALIGNMENT = 16
"""Bytes: the keys, and the values, of every page begin at a multiple of it."""


class KVFormat(msgspec.Struct, frozen=True):
    """How one vector of `head_dim` numbers is stored: the bytes of a codec, without its torch."""

    name: str
    """Under which the codec stands in its table."""
    bits: int
    """Of one number."""
    extra_bytes: int = 0
    """Beside the numbers of a vector, such as a scale."""

    def vector_bytes(self, head_dim: int) -> int:
        """Bytes of one stored vector."""
        return -(-head_dim * self.bits // 8) + self.extra_bytes

    def plane_bytes(self, vectors: int, head_dim: int) -> int:
        """Bytes of so many vectors of one page, up to the next multiple of `ALIGNMENT`."""
        return -(-vectors * self.vector_bytes(head_dim) // ALIGNMENT) * ALIGNMENT


FORMATS = {
    **{name: KVFormat(name, 8 * item_bytes) for name, item_bytes in ITEM_BYTES.items()},
    "int8": KVFormat("int8", 8, extra_bytes=4),
}
"""The formats of the codecs that octavo brings, for those who count bytes without torch."""


def format_names(text: str) -> tuple[str, str]:
    """Split a KV dtype, one name for both or KEYS/VALUES, into two names."""
    keys, _, values = text.partition("/")
    return keys, values if "/" in text else keys


def find_formats(text: str, *, name: str = "KV dtype") -> tuple[KVFormat, KVFormat]:
    """Return the formats of keys and of values of a KV dtype. Raises ConfigError, naming `name`."""
    keys, values = format_names(text)
    if keys not in FORMATS or values not in FORMATS:
        raise ConfigError(
            f"{name} {text!r} is not one of {', '.join(FORMATS)}, or two of them as KEYS/VALUES"
        )
    return FORMATS[keys], FORMATS[values]
