"""How full the memory is, as numbers that add up."""

from __future__ import annotations

import msgspec


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Device memory at one moment, in slots.

    A shared slot counts once; cached blocks that nobody holds count as free. With several KV
    groups a slot is the largest unit of bytes that divides every group's token.
    """

    slots: int
    """Size of the pool."""
    allocated: int
    """Held by sequences, or by regions reserved for them."""
    tokens: int
    """Hold the KV of a token."""
    reserved: int = 0
    """Set aside in a region, to be used by the sequence later."""
    internal: int = 0
    """Set aside in a region and never used."""
    blocks_used: int
    """Distinct blocks that somebody holds."""
    blocks_logical: int
    """Entries of all tables: what would be used without sharing."""
    blocks_shared: int
    """Distinct blocks with two holders or more."""
    group_blocks: tuple[int, ...] = ()
    """`blocks_used`, KV group by KV group; empty for contiguous regions."""
    blocks_cached: int = 0
    """Hold a known text, and nobody holds them; those that pins hold are among them."""
    blocks_pinned: int = 0
    """Cached blocks that pins keep from eviction."""
    blocks_free: int = 0
    """Nobody holds them, and they hold no known text; nor are they quarantined."""
    evictions: int = 0
    """Texts of blocks that have been given up so far, to make room."""
    tenant_blocks: tuple[tuple[str, int], ...] = ()
    """(tenant, its blocks): in use, cached and pinned. Empty for contiguous regions."""
