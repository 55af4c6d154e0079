"""The memory that a measurement runs on: its size, and a cache manager for each rule."""

from __future__ import annotations

from dataclasses import dataclass

from octavo.contract.layout import KVLayout, plain_layout
from octavo.errors import ConfigError
from octavo.memory.groups import Groups
from octavo.memory.manager import KVCacheManager
from octavo.memory.policies.lru import Lru
from octavo.memory.regions import RegionCache
from octavo.memory.reservation import RESERVATIONS, Reservation
from octavo.memory.tier import Tier
from octavo.sched.cache import Cache
from octavo.sched.limits import Limits
from octavo.sched.order import ORDERS
from octavo.sched.scheduler import Scheduler
from octavo.sizes import ask_bytes, show_bytes

_MOST = 100_000
"""Layers, heads and numbers in a head: far beyond any model."""


@dataclass(frozen=True, slots=True)
class PoolShape:
    """A KV pool and the longest text it serves. Raises ConfigError if it cannot serve one."""

    num_bytes: int
    layers: int
    kv_heads: int
    head_dim: int
    dtype: str
    max_length: int

    def __post_init__(self) -> None:
        for name in ("layers", "kv_heads", "head_dim"):
            value = getattr(self, name)
            if not 0 < value <= _MOST:
                flag = "--" + name.replace("_", "-")
                raise ConfigError(f"{flag} must be from 1 to {_MOST}, got {value}")
        if self.num_bytes < 1:
            raise ConfigError(f"--memory must be at least 1 byte, got {self.num_bytes}")
        if self.max_length < 2:
            raise ConfigError(f"--max-length must be at least 2 tokens, got {self.max_length}")
        if self.slots < self.max_length:
            need = self.max_length * self.layout(1).bytes_per_token
            raise ConfigError(
                f"{show_bytes(self.num_bytes)} hold {self.slots} tokens, but one text may have "
                f"{self.max_length}: give --memory {ask_bytes(need)}, or lower --max-length"
            )

    def layout(self, block_size: int) -> KVLayout:
        """Return the layout with blocks of `block_size` tokens."""
        return plain_layout(
            layers=self.layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            block_size=block_size,
            dtype=self.dtype,
        )

    @property
    def slots(self) -> int:
        """Tokens that the pool could hold if it were one block."""
        return self.layout(1).blocks_in(self.num_bytes)

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one token holds in all layers."""
        return self.layout(1).bytes_per_token

    def keys(self) -> dict[str, object]:
        """Return what a JSON document says of a pool."""
        return {
            "bytes": self.num_bytes,
            "slots": self.slots,
            "bytes_per_token": self.bytes_per_token,
            "max_length": self.max_length,
        }


PAPER_POOL = PoolShape(
    num_bytes=12 << 30, layers=40, kv_heads=40, head_dim=128, dtype="float16", max_length=2048
)
"""OPT-13B on an A100-40GB, as in the PagedAttention paper: 819,200 bytes a token."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """What bounds a step beside memory; the same for every rule."""

    max_num_seqs: int = 512
    max_num_batched_tokens: int = 2048


def find_rule(name: str) -> Reservation:
    """Return a reservation rule. Raises ConfigError for an unknown name."""
    if name not in RESERVATIONS:
        raise ConfigError(f"reservation {name!r} is not one of {', '.join(RESERVATIONS)}")
    return RESERVATIONS[name]


def deciding_plane(
    rule: Reservation, pool: PoolShape, block_size: int, limits: StepLimits
) -> tuple[Scheduler, Cache]:
    """Build a scheduler and its cache. Contiguous rules ignore `block_size`: their unit is a slot.

    Raises ConfigError if the pool has no room for the longest text.
    """
    size = block_size if rule.tokens is None else 1
    layout = pool.layout(size)
    blocks = layout.blocks_in(pool.num_bytes)
    if rule.tokens is None:
        cache: Cache = KVCacheManager(Groups((size,)), (Tier("device", blocks, Lru()),))
        pool_tokens = layout.capacity_tokens(blocks, limits.max_num_batched_tokens)
    else:
        regions = RegionCache(rule, blocks, block_size=1, longest=pool.max_length)
        cache, pool_tokens = regions, regions.longest
    if pool_tokens < pool.max_length:
        raise ConfigError(
            f"the pool holds texts of {pool_tokens} tokens in blocks of {size}, but one may have "
            f"{pool.max_length}: raise --memory, or lower --block-size or --max-length"
        )
    bounds = Limits(
        limits.max_num_seqs, limits.max_num_batched_tokens, pool.max_length, pool_tokens
    )
    return Scheduler(cache, ORDERS["fcfs"](), bounds), cache
