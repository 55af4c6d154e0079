"""What must be equal before KV may be shared at all."""

from __future__ import annotations

import struct
from hashlib import blake2b

import msgspec


class Namespace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Identity of the KV that a text produces, apart from the text.

    Two sequences may share blocks only if their namespaces are equal. Every tier, event and
    peer uses this value; none builds its own. The *format* of the bytes (dtype, page layout)
    is not part of it: it travels beside the bytes.
    """

    model: str = ""
    """Content identity of the weights: a name with a checksum, never a path."""
    revision: str = ""
    adapter: str = ""
    """Content identity of an adapter, empty for none."""
    salt: str = ""
    """Chosen by the tenant; sequences with different salts never share."""
    media: str = ""
    """Digest of images or sounds in the prompt."""
    lossy: str = ""
    """Name and parameters of a lossy codec or pruner; empty means exact memory."""

    def root(self) -> bytes:
        """Return the 16-byte digest that stands before the first block's key.

        Each field is framed by its length, so that no two namespaces spell the same bytes.
        """
        digest = blake2b(b"octavo.namespace/1", digest_size=16)
        for value in msgspec.structs.astuple(self):
            data = value.encode()
            digest.update(struct.pack("<q", len(data)))
            digest.update(data)
        return digest.digest()
