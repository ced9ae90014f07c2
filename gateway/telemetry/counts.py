"""What `metrics` counts in, on the event loop, and the copies of it that are read elsewhere."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .codes import OTHER
from .histogram import (
    E2E_BOUNDS,
    ERROR_BOUNDS,
    QUEUE_BOUNDS,
    TPOT_BOUNDS,
    TTFT_BOUNDS,
    Histogram,
    HistogramCopy,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .labels import Labels
    from .metric import Metric

MAX_SETS = 4096
"""Label sets of one counter; the next goes to the set of nothing but `other`."""


class Counter:
    """Counts by label set. The values must be labels already: see `LabelSpace`."""

    __slots__ = ("_other", "metric", "values")

    def __init__(self, metric: Metric) -> None:
        self.metric = metric
        self.values: dict[Labels, int] = {}
        self._other = (OTHER,) * len(metric.labels)

    def add(self, labels: Labels, by: int = 1) -> None:
        """Count `by` more."""
        values = self.values
        if labels not in values and len(values) >= MAX_SETS:
            labels = self._other
        values[labels] = values.get(labels, 0) + by


class RequestCount:
    """How many requests ended alike, and the pool that their times go to."""

    __slots__ = ("count", "labels", "pool")

    def __init__(self, labels: Labels, pool: PoolCount) -> None:
        self.count = 0
        self.labels = labels
        self.pool = pool


class TokenCount:
    """The tokens of one tenant and model."""

    __slots__ = ("cached", "labels", "output", "prompt")

    def __init__(self, labels: Labels) -> None:
        self.prompt = 0
        self.cached = 0
        self.output = 0
        self.labels = labels


class PoolCount:
    """What is summed for a whole pool."""

    __slots__ = (
        *("classes", "e2e", "itl", "prediction", "queue_wait", "received", "retries", "sent"),
        *("tpot", "ttft"),
    )

    def __init__(self) -> None:
        self.ttft = Histogram(TTFT_BOUNDS)
        self.tpot = Histogram(TPOT_BOUNDS)
        self.itl = Histogram(TPOT_BOUNDS)
        self.e2e = Histogram(E2E_BOUNDS)
        self.queue_wait = Histogram(QUEUE_BOUNDS)
        self.classes: dict[str, Histogram] = {}
        """Queue waits by SLA class."""
        self.prediction = Histogram(ERROR_BOUNDS)
        self.received = 0
        self.sent = 0
        self.retries = 0


@dataclass(frozen=True, slots=True)
class PoolTotals:
    """A pool's sums since start, for the status; rates are differences of two of them."""

    requests: int
    failed: int
    """Of `requests`: engine errors, cut answers and expired deadlines."""
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ttft: HistogramCopy
    tpot: HistogramCopy


@dataclass(frozen=True, slots=True)
class Copied:
    """All counts at one moment, as a scrape renders them."""

    counters: tuple[tuple[Metric, Mapping[Labels, int]], ...]
    histograms: tuple[tuple[Metric, Mapping[Labels, HistogramCopy]], ...]
