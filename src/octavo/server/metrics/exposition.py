"""One answer to a scrape, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import accumulate

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from octavo.engine.histogram import Histogram

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4

Labelled = Iterable[tuple[tuple[str, ...], float]]
"""Values by the values of their labels."""


class Page:
    """Collects families of metrics, all with the same labels in front of their own."""

    def __init__(self, labels: Mapping[str, str]) -> None:
        self._names = list(labels)
        self._values = list(labels.values())
        self._families: list[Metric] = []

    def gauge(self, name: str, help: str, value: float) -> None:
        """Tell a number as it is now."""
        self.gauges(name, help, (), [((), value)])

    def gauges(self, name: str, help: str, labels: tuple[str, ...], values: Labelled) -> None:
        """Tell numbers as they are now, by labels."""
        family = GaugeMetricFamily(name, help, labels=[*self._names, *labels])
        for own, value in values:
            family.add_metric([*self._values, *own], value)
        self._families.append(family)

    def counter(self, name: str, help: str, value: float) -> None:
        """Tell what has been counted since the start. name: without _total."""
        self.counters(name, help, (), [((), value)])

    def counters(self, name: str, help: str, labels: tuple[str, ...], values: Labelled) -> None:
        """Tell what has been counted since the start, by labels. name: without _total."""
        family = CounterMetricFamily(name, help, labels=[*self._names, *labels])
        for own, value in values:
            family.add_metric([*self._values, *own], value)
        self._families.append(family)

    def histogram(self, name: str, help: str, histogram: Histogram) -> None:
        """Tell how often a quantity was how large."""
        self.histograms(name, help, (), [((), histogram)])

    def histograms(
        self,
        name: str,
        help: str,
        labels: tuple[str, ...],
        histograms: Iterable[tuple[tuple[str, ...], Histogram]],
    ) -> None:
        """Tell how often a quantity was how large, by labels."""
        family = HistogramMetricFamily(name, help, labels=[*self._names, *labels])
        for own, one in histograms:
            buckets = list(zip(_ends(one), map(float, accumulate(one.counts)), strict=True))
            family.add_metric([*self._values, *own], buckets, one.total)
        self._families.append(family)

    def collect(self) -> Iterable[Metric]:
        """Return all families; what the registry calls."""
        return self._families

    def write(self) -> bytes:
        """Return the text."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry)


def _ends(histogram: Histogram) -> list[str]:
    return [*(repr(float(bound)) for bound in histogram.bounds), "+Inf"]
