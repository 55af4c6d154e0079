"""What a bug could do to the memory plane's counts: one thing at a time, at random."""

# It reaches into what others own: that is what it is for.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from random import Random

from octavo.contract.ids import BlockKey
from octavo.memory.block import Block
from octavo.memory.tier import Tier

_STRANGE_KEY = BlockKey(b"nobody has this!")


def damage(tier: Tier, random: Random) -> str:
    """Do one kind of damage to a tier; returns its name."""
    kinds = sorted(DAMAGES)
    random.shuffle(kinds)
    return next(kind for kind in kinds if DAMAGES[kind](tier, random))


def _a_holder_is_forgotten(tier: Tier, random: Random) -> bool:
    block = _one(tier, random, lambda block: block.refs > 0)
    if block is not None:
        block.refs -= 1
    return block is not None


def _a_holder_is_made_up(tier: Tier, random: Random) -> bool:
    block = _one(tier, random, lambda block: True)
    if block is not None:
        block.refs += 1
    return block is not None


def _a_free_block_is_lost(tier: Tier, random: Random) -> bool:
    free = tier.pool._free
    if free:
        del free[random.randrange(len(free))]
        return True
    return False


def _a_block_is_free_twice(tier: Tier, random: Random) -> bool:
    free = tier.pool._free
    if free:
        free.append(random.choice(free))
    return bool(free)


def _a_held_block_is_free(tier: Tier, random: Random) -> bool:
    block = _one(tier, random, lambda block: block.refs > 0)
    if block is not None:
        tier.pool._free.append(block.id)
    return block is not None


def _a_block_has_another_key(tier: Tier, random: Random) -> bool:
    block = _one(tier, random, lambda block: block.key is not None)
    if block is not None:
        block.key = _STRANGE_KEY
    return block is not None


def _a_text_is_not_found(tier: Tier, random: Random) -> bool:
    parts = [part for part in tier._index if part]
    if parts:
        part = random.choice(parts)
        del part[random.choice(list(part))]
    return bool(parts)


def _a_cached_block_lies_on_no_shelf(tier: Tier, random: Random) -> bool:
    block = _one(tier, random, lambda block: block.shelf is not None)
    if block is not None:
        tier.pool.shelves.remove(block)
    return block is not None


def _held_is_wrong(tier: Tier, random: Random) -> bool:
    tier.pool.held += random.choice((-1, 1))
    return True


def _logical_is_wrong(tier: Tier, random: Random) -> bool:
    tier.pool.logical += random.choice((-1, 1))
    return True


def _filled_is_wrong(tier: Tier, random: Random) -> bool:
    tier.pool.filled += random.choice((-1, 1))
    return True


def _an_account_is_wrong(tier: Tier, random: Random) -> bool:
    account = random.choice(tier.pool.shares.accounts)
    kind = random.choice(("held", "cached", "pinned"))
    setattr(account, kind, getattr(account, kind) + 1)
    return True


def _a_holders_tenant_is_made_up(tier: Tier, random: Random) -> bool:
    block = _one(tier, random, lambda block: block.refs > 0)
    if block is not None:
        block.others = {random.choice(tier.pool.shares.accounts): 1}
    return block is not None


def _a_promise_is_made_up(tier: Tier, random: Random) -> bool:
    random.choice(tier.pool.shares.accounts).owed += 1
    return True


def _evictable_is_wrong(tier: Tier, random: Random) -> bool:
    shelves = tier.pool.shelves
    shelves._size += random.choice((-1, 1)) if shelves._size else 1
    return True


def _pins_are_wrong(tier: Tier, random: Random) -> bool:
    tier.pool.shelves.pins._texts_of[random.choice(tier.pool.shares.accounts)] += 1
    return True


DAMAGES: dict[str, Callable[[Tier, Random], bool]] = {
    damage.__name__.strip("_").replace("_", " "): damage
    for damage in (
        _a_holder_is_forgotten,
        _a_holder_is_made_up,
        _a_free_block_is_lost,
        _a_block_is_free_twice,
        _a_held_block_is_free,
        _a_block_has_another_key,
        _a_text_is_not_found,
        _a_cached_block_lies_on_no_shelf,
        _held_is_wrong,
        _logical_is_wrong,
        _filled_is_wrong,
        _an_account_is_wrong,
        _a_holders_tenant_is_made_up,
        _a_promise_is_made_up,
        _evictable_is_wrong,
        _pins_are_wrong,
    )
}
"""By name. Each returns False if there is nothing that it could be done to."""


def _one(tier: Tier, random: Random, which: Callable[[Block], bool]) -> Block | None:
    blocks = [b for b in tier.pool.blocks if b.id not in tier.pool.quarantined and which(b)]
    return random.choice(blocks) if blocks else None
