"""Flags for what a request says of its KV: whose it is, how it is kept, what comes next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, cast

from octavo.cli.flags import Option
from octavo.cli.gathered import gathered
from octavo.contract.hint import Word
from octavo.contract.retention import NORMAL_PRIORITY, Retention

Tenant = Annotated[
    str | None, Option(metavar="NAME", help="On whose account: default, or one of --tenants.")
]
Pin = Annotated[
    str | None,
    Option(metavar="NAME", help="Never evict the prompts while this pin holds; see --pin-limit."),
]
KeepPriority = Annotated[
    int | None, Option(help="Of the prompts' KV, 0 to 100: the lowest is evicted first; usual: 35.")
]
KeepTtl = Annotated[
    float | None,
    Option(
        metavar="SECONDS", help="So long after its last use the prompts' KV, or the pin, is kept."
    ),
]
CacheHint = Annotated[
    str | None,
    Option(
        metavar="WORD|NUMBER",
        help="How the KV will be used: continues, closed, shared, or the probability that it is.",
    ),
]


@dataclass(frozen=True, slots=True)
class Wishes:
    """What all prompts of a command say; None: nothing."""

    tenant: str | None
    retention: Retention | None
    cache_hint: Word | float | None


def _wishes(
    tenant: Tenant = None,
    pin: Pin = None,
    retention_priority: KeepPriority = None,
    retention_ttl: KeepTtl = None,
    cache_hint: CacheHint = None,
) -> Wishes:
    kept = None
    if (pin, retention_priority, retention_ttl) != (None, None, None):
        priority = NORMAL_PRIORITY if retention_priority is None else retention_priority
        kept = Retention(priority=priority, ttl_s=retention_ttl, pin=pin)
    return Wishes(tenant, kept, None if cache_hint is None else _hint(cache_hint))


def _hint(text: str) -> Word | float:
    try:
        return float(text)
    except ValueError:
        return cast("Word", text)  # checked where it is used


with_wishes = gathered("wishes", _wishes)
"""Gives a command the flags of `_wishes` in place of its parameter `wishes`."""
