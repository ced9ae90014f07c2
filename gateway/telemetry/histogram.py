"""A histogram of plain numbers: what the hot path writes and a scrape copies."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

# The usual targets (TTFT 0.5, 0.8, 1.5 s; TPOT 30, 50, 80, 150 ms) are bounds, so that the share of
# requests that met one is read off exactly, not interpolated.
TTFT_BOUNDS = (
    *(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 3.0, 5.0),
    *(10.0, 20.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
TPOT_BOUNDS = (
    *(0.001, 0.002, 0.005, 0.008, 0.01, 0.015, 0.02, 0.03, 0.05, 0.08, 0.1, 0.15, 0.25, 0.5, 1.0),
    *(2.0, 5.0, 10.0, 30.0, 60.0, 600.0),
)
E2E_BOUNDS = (
    *(0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0),
    *(120.0, 300.0, 600.0, 1800.0),
)
QUEUE_BOUNDS = (
    *(0.0001, 0.001, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0),
    *(60.0, 120.0, 300.0, 600.0),
)
ERROR_BOUNDS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 20.0, 50.0)
PAUSE_BOUNDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


@dataclass(frozen=True, slots=True)
class HistogramCopy:
    """What a histogram held at one moment: `counts` has one more than `bounds`, for the rest."""

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    total: float

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.counts)


class Histogram:
    """Counts values into buckets. One thread writes; any thread may copy."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float, events: int = 1) -> None:
        """Count one value (>= 0), and `events - 1` zeros that came in the same chunk."""
        counts = self.counts
        counts[bisect_left(self.bounds, value)] += 1
        self.total += value
        if events > 1:
            counts[0] += events - 1

    def copy(self) -> HistogramCopy:
        """Return what it holds now; count and sum may differ by a value being written."""
        return HistogramCopy(self.bounds, tuple(self.counts), self.total)
