"""What policies call a text: the same in the block that held it and in the next one that will."""

from __future__ import annotations

from octavo.contract.ids import BlockKey
from octavo.memory.block import Block


def text_of(block: Block) -> BlockKey:
    """Return the key of a block's text, with its KV group if that is not the first.

    Groups share keys, but their blocks are cached and evicted one by one. b"" without a text.
    """
    key = block.key or b""
    return of_group(key, block.group) if block.group else key


def texts_of(blocks: list[Block]) -> list[BlockKey]:
    """Return what `text_of` says of each block."""
    return [text_of(block) if block.group else block.key or b"" for block in blocks]


def of_group(key: BlockKey, group: int) -> BlockKey:
    """Tell the keys of several KV groups apart."""
    return key + group.to_bytes(2, "little") if group else key
