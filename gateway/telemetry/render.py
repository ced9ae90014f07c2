"""Turns copied counts and a snapshot into Prometheus text. Loaded by the first scrape."""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, cast

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from .catalog import SCOPES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from prometheus_client.metrics_core import Metric as Family

    from .counts import Copied
    from .histogram import HistogramCopy
    from .labels import Labels
    from .metric import Metric
    from .snapshot import Snapshot


def render_text(accept: str, copied: Copied, snapshot: Snapshot) -> tuple[str, bytes]:
    """Return content type and text in the format that `accept` asks for."""
    registry = CollectorRegistry()
    registry.register(_Copy(copied, snapshot))
    ProcessCollector(registry=registry)
    encode, content_type = choose_encoder(accept)
    # The library's types say Collector where its own code passes a registry, as we do.
    return content_type, encode(cast("Collector", registry))


class _Copy(Collector):
    """Hands the library what was copied."""

    def __init__(self, copied: Copied, snapshot: Snapshot) -> None:
        self._copied = copied
        self._snapshot = snapshot

    def describe(self) -> list[Family]:
        """Say nothing, so that registering does not collect once more."""
        return []

    def collect(self) -> Iterator[Family]:
        for metric, counts in self._copied.counters:
            yield _family(metric, counts.items())
        for metric, histograms in self._copied.histograms:
            yield _histogram(metric, histograms)
        for scope in SCOPES:
            for metric, values in scope.read(self._snapshot):
                yield _family(metric, values)


def _family(metric: Metric, values: Iterable[tuple[Labels, float]]) -> Family:
    kind = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    family = kind(metric.name, metric.help, labels=metric.labels)
    for labels, value in values:
        family.add_metric(labels, value)
    return family


def _histogram(metric: Metric, histograms: Mapping[Labels, HistogramCopy]) -> Family:
    family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
    for labels, copy in histograms.items():
        bounds = [*map(str, copy.bounds), "+Inf"]
        buckets = list(zip(bounds, map(float, accumulate(copy.counts)), strict=True))
        family.add_metric(labels, buckets, copy.total)
    return family
