"""Chained block keys: the same text gives the same key in every process and on every machine."""

from __future__ import annotations

import sys
from array import array
from hashlib import blake2b

from octavo.contract.ids import BlockKey
from octavo.contract.request import Sequence

KEY_BYTES = 16


def chain(parent: BlockKey, tokens: bytes) -> BlockKey:
    """Return the key of a hash unit.

    parent: key of the unit before, or the namespace's root; tokens: int32, little-endian.
    """
    return blake2b(parent + tokens, digest_size=KEY_BYTES).digest()


def token_bytes(tokens: array[int]) -> bytes:
    """Return token ids as keys and blocks spell them: int32, little-endian."""
    if sys.byteorder == "big":
        tokens = array("i", tokens)
        tokens.byteswap()
    return tokens.tobytes()


def keys_of(root: BlockKey, tokens: tuple[int, ...], unit: int) -> list[BlockKey]:
    """Return the keys of all full units of a text. root: the namespace's."""
    data, parent, width = token_bytes(array("i", tokens)), root, unit * 4
    keys: list[BlockKey] = []
    for offset in range(0, len(data) - width + 1, width):
        parent = chain(parent, data[offset : offset + width])
        keys.append(parent)
    return keys


def extend_keys(seq: Sequence, unit: int, upto: int) -> None:
    """Append to `seq` the keys and token bytes of all full units within its first `upto` tokens.

    unit: tokens per hash unit. O(new units); a unit that has its key is never hashed again.
    """
    done = len(seq.keys)
    count = upto // unit
    if count <= done:
        return
    data = token_bytes(seq.tokens[done * unit : count * unit])
    parent = seq.keys[-1] if done else seq.root
    width = unit * 4
    for offset in range(0, len(data), width):
        piece = data[offset : offset + width]
        parent = chain(parent, piece)
        seq.units.append(piece)
        seq.keys.append(parent)
