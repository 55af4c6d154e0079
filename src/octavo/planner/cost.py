"""What tokens cost, and how many machines carry a load, with and without paging."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import msgspec

from octavo.errors import ConfigError

SHARE_WITHOUT_PAGING = 0.31
"""Load that a machine sustains without paging, as a share of what it sustains with it.

Measured by `octavo bench curve` at the setting of the PagedAttention paper: the rule `max`,
which reserves the longest text for every request, against `on_demand`.
"""

_SECONDS_PER_HOUR = 3600
_MILLION = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """Money and speed of one machine. Raises ConfigError for what cannot be."""

    per_hour: float | None = None
    """Of one machine, in any currency."""
    tokens_per_s: float | None = None
    """Output tokens that one machine gives."""
    load_tokens_per_s: float | None = None
    """Output tokens that all machines together must give."""
    share_without_paging: float = SHARE_WITHOUT_PAGING

    def __post_init__(self) -> None:
        for flag, value in (
            ("--price-per-hour", self.per_hour),
            ("--throughput", self.tokens_per_s),
            ("--load", self.load_tokens_per_s),
        ):
            if value is not None and not 0 < value < 1e15:
                raise ConfigError(f"{flag} must be a positive number, got {value}")
        if not 0 < self.share_without_paging <= 1:
            raise ConfigError(
                "--share-without-paging must be above 0 and at most 1, got "
                f"{self.share_without_paging}"
            )

    def per_million(self, *, paged: bool = True) -> float | None:
        """Cost of a million output tokens; None without price or throughput."""
        if self.per_hour is None or self.tokens_per_s is None:
            return None
        speed = self.tokens_per_s if paged else self.tokens_per_s * self.share_without_paging
        return self.per_hour / (speed * _SECONDS_PER_HOUR) * _MILLION


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Machines for a load."""

    load_tokens_per_s: float
    machines: int
    machines_without_paging: int
    share_without_paging: float
    """Assumed: see `SHARE_WITHOUT_PAGING`."""
    price_per_hour: float | None
    """Of all machines, with paging."""
    price_per_hour_without_paging: float | None


def plan_fleet(price: Price) -> Fleet | None:
    """Count machines; None without a load or a throughput."""
    if price.load_tokens_per_s is None or price.tokens_per_s is None:
        return None
    need = price.load_tokens_per_s / price.tokens_per_s
    paged, plain = math.ceil(need), math.ceil(need / price.share_without_paging)
    return Fleet(
        load_tokens_per_s=price.load_tokens_per_s,
        machines=paged,
        machines_without_paging=plain,
        share_without_paging=price.share_without_paging,
        price_per_hour=None if price.per_hour is None else paged * price.per_hour,
        price_per_hour_without_paging=None if price.per_hour is None else plain * price.per_hour,
    )


def read_throughput(text: str) -> float:
    """Read output tokens a second: a number, or a record that `octavo bench throughput` wrote.

    Of several works in a record the slowest counts, of those that answer. Raises ConfigError.
    """
    try:
        return float(text)
    except ValueError:
        pass
    try:
        rows = json.loads(Path(text).read_bytes())["rows"]
        answering = [row["tokens_per_s"] for row in rows if row["counts"] == "output tokens"]
        return float(min(answering))
    except OSError as error:
        reason = f"cannot be read ({error.strerror or error})"
    except (ValueError, KeyError, TypeError, RecursionError):
        reason = "is no record of `octavo bench throughput --json`"
    raise ConfigError(
        f"--throughput takes output tokens a second or the path of a record; {text!r} {reason}"
    )
