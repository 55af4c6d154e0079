"""Counts by label, the bounds of histograms, and which names are told."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from octavo.engine.histogram import Histogram, ladder
from octavo.errors import ConfigError

MOST_TENANTS = 200
"""Tenants that have a label of their own; the others are summed up as `OTHER`."""
OTHER = "_other"

_LONGEST_TEXT = 1_000_000

DEFAULT_BOUNDS: Mapping[str, tuple[float, ...]] = {
    "time_to_first_token": (
        *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
    ),
    "inter_token_latency": (
        *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    ),
    "request_latency": (
        *(0.01, 0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0),
        *(40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
    ),
    "request_params_n": (1.0, 2.0, 5.0, 10.0, 20.0),
    "request_num_preemptions": (0.0, *ladder(50.0)),
    "request_tokens": ladder(_LONGEST_TEXT),
}
"""Upper bounds by kind of histogram. Those of the first token are vLLM's; the other seconds have
vLLM's and finer ones below, for small models."""

_IN_THE_ENGINE = ("iteration_tokens", "kv_cache_residency")


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSettings:
    """What is told to whoever asks for metrics."""

    vllm_names: bool = True
    """Under vLLM's names too, so that its dashboards and scaling rules work."""
    bounds: Mapping[str, tuple[float, ...]] = field(default_factory=dict[str, tuple[float, ...]])
    """By kind of histogram, in place of those of `DEFAULT_BOUNDS`."""

    def histogram(self, kind: str) -> Histogram:
        """Return an empty histogram of a kind."""
        return Histogram.of(self.bounds.get(kind) or DEFAULT_BOUNDS[kind])


def read_bounds(text: str) -> dict[str, tuple[float, ...]]:
    """Read `{"time_to_first_token": [0.1, 1], …}`: bounds by kind of histogram.

    Raises ConfigError for anything else, an unknown kind, and bounds that do not ascend.
    """
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"--custom-histogram-buckets is no JSON: {error}") from None
    if not isinstance(value, dict):
        raise ConfigError("--custom-histogram-buckets must be an object of lists of numbers")
    return {
        _kind(name): _bounds(name, bounds)
        for name, bounds in cast("dict[str, object]", value).items()
    }


def _kind(name: str) -> str:
    if name in _IN_THE_ENGINE:
        raise ConfigError(
            f"--custom-histogram-buckets: {name} is counted in the engine's process, whose buckets "
            "are fixed: leave it out"
        )
    if name not in DEFAULT_BOUNDS:
        raise ConfigError(
            f"--custom-histogram-buckets: {name!r} is not one of {', '.join(DEFAULT_BOUNDS)}"
        )
    return name


def _bounds(name: str, value: object) -> tuple[float, ...]:
    bounds = cast("list[object]", value) if isinstance(value, list) else []
    numbers = [
        float(bound)
        for bound in bounds
        if isinstance(bound, int | float) and not isinstance(bound, bool) and math.isfinite(bound)
    ]
    ascend = all(low < high for low, high in itertools.pairwise(numbers))
    if not numbers or len(numbers) != len(bounds) or not ascend:
        raise ConfigError(
            f"--custom-histogram-buckets: {name} must be a list of ascending numbers, got {value!r}"
        )
    return tuple(numbers)


class Tally:
    """Sums by label values."""

    def __init__(self) -> None:
        self._sums: dict[tuple[str, ...], float] = {}

    def add(self, *labels: str, amount: float = 1.0) -> None:
        """Add to one sum."""
        self._sums[labels] = self._sums.get(labels, 0.0) + amount

    def __getitem__(self, labels: tuple[str, ...]) -> float:
        return self._sums.get(labels, 0.0)

    def __iter__(self) -> Iterator[tuple[tuple[str, ...], float]]:
        return iter(self._sums.items())


class TenantLabels:
    """Names of tenants as labels: the first ones that come, and one for all others.

    A series is kept for ever by whoever collects them, so they are bounded.
    """

    def __init__(self, most: int = MOST_TENANTS) -> None:
        self._most = most
        self._known: set[str] = set()

    def label(self, tenant: str) -> str:
        """Return how a tenant is called."""
        if tenant not in self._known:
            if len(self._known) >= self._most:
                return OTHER
            self._known.add(tenant)
        return tenant

    def sums(self, values: Iterable[tuple[str, float]]) -> Tally:
        """Return (tenant, value) pairs as sums by label."""
        tally = Tally()
        for tenant, value in values:
            tally.add(self.label(tenant), amount=value)
        return tally
