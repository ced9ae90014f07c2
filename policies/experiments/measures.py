"""Effects of a candidate against the control: how large, how sure, by which measure.

An effect is a ratio (candidate over control) of times and lengths, and a difference of shares. Its
interval holds at all times at once. Three kinds:

- *mean*: the ratio of geometric means, stratified: the difference within each cell, weighed by the
  cell's share of all requests, so that an arm which got longer prompts is not thought slower;
- *quantile*: the ratio of a quantile; over all cells, of times over their cell's level (`levels`),
  and only while both arms have the same mix;
- *share*: the difference of two rates, while the mix is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log
from typing import TYPE_CHECKING, Literal

from .bounds import mean_radius, rank_bounds, share_bounds
from .levels import levelled
from .tallies import Sketch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from .tallies import Cell, Tallies, Tally

Kind = Literal["mean", "quantile", "share"]
Worse = Literal["higher", "lower", "either"]

LEAST_VALUES = 20
"""In each arm of a cell, before its mean is compared: the interval is an asymptotic one."""
HOPED = 0.15
"""Logarithm of the ratio that means are tuned to find soonest."""
SAME_MIX = 0.1
"""Of the requests, how many may lie in other cells before two mixes are no longer alike."""


@dataclass(frozen=True, slots=True)
class Measure:
    """One thing that is compared."""

    name: str
    kind: Kind
    of: str
    """The distribution in a tally, or the count."""
    worse: Worse = "higher"
    quantile: float = 0.0
    over: str = "requests"
    """What a share is a share of."""
    margin: float = 0.05
    """How much worse a guardrail lets it get: of a ratio 5 %, of a share 5 points."""
    says: str = ""


def _share(  # noqa: PLR0913 - the columns of the table below
    name: str,
    of: str,
    margin: float,
    says: str,
    *,
    over: str = "requests",
    worse: Worse = "higher",
) -> Measure:
    return Measure(name, "share", of, worse, over=over, margin=margin, says=says)


def _timed(name: str, of: str, says: str) -> list[Measure]:
    return [
        Measure(name, "mean", of, margin=0.05, says=f"{says}, mean"),
        Measure(f"{name}_p50", "quantile", of, quantile=0.5, margin=0.1, says=f"{says}, median"),
        Measure(f"{name}_p99", "quantile", of, quantile=0.99, margin=0.25, says=f"{says}, p99"),
    ]


_ALL = (
    *_timed("ttft", "ttft", "received to first token"),
    *_timed("tpot", "tpot", "time per output token"),
    *_timed("e2e", "e2e", "received to last byte"),
    *_timed("queue", "queue", "received to placed"),
    Measure("length", "mean", "length", "either", margin=0.25, says="output tokens, mean"),
    _share("errors", "errors", 0.01, "failed requests"),
    _share("refused", "refused", 0.02, "requests that the engine found wrong"),
    _share("left", "left", 0.02, "callers that left before the first byte"),
    _share("empty", "empty", 0.01, "answers without a token", over="answered"),
    _share("truncated", "truncated", 0.05, "answers cut at their length limit", over="answered"),
    _share("repeated", "repeated", 0.02, "answers of one repeated token", over="judged"),
    _share("broken_json", "broken_json", 0.02, "JSON asked for and not given", over="judged"),
    _share("goodput", "good", 0.02, "kept to the class's targets", over="promised", worse="lower"),
)
MEASURES: Mapping[str, Measure] = {measure.name: measure for measure in _ALL}


@dataclass(frozen=True, slots=True)
class Effect:
    """A candidate's measure against the control's, in one cell or all (`cell` None).

    `estimate`, `low` and `high` are ratios, or differences of a share.
    """

    measure: str
    cell: Cell | None
    candidate: float
    control: float
    estimate: float
    low: float
    high: float
    candidate_count: int
    control_count: int
    neutral: float = 1.0
    """What no effect is: 1 of a ratio, 0 of a difference."""

    def is_worse(self, measure: Measure, margin: float) -> bool:
        """Whether it is surely worse than the margin lets it be."""
        if measure.kind == "share":
            up, down = self.low > margin, self.high < -margin
        else:
            up, down = self.low > 1 + margin, self.high < 1 / (1 + margin)
        return (up and measure.worse != "lower") or (down and measure.worse != "higher")

    def is_better(self, measure: Measure) -> bool:
        """Whether it is surely better than the control."""
        if measure.worse == "lower":
            return self.low > self.neutral
        return measure.worse == "higher" and self.high < self.neutral

    def is_not_worse(self, measure: Measure, margin: float) -> bool:
        """Whether it is surely no worse than the margin lets it be."""
        bound = margin if measure.kind == "share" else log(1 + margin)
        low, high = (self.low, self.high)
        if measure.kind != "share":
            low, high = log(max(low, 1e-12)), log(max(high, 1e-12))
        if measure.worse == "lower":
            return low > -bound
        return high < bound and (measure.worse == "higher" or low > -bound)

    @property
    def detectable(self) -> float:
        """The smallest worsening that would be sure by now: of a ratio, or in points."""
        if self.neutral == 0.0:
            return (self.high - self.low) / 2
        if self.low <= 0 or self.high == inf:
            return inf
        return exp(log(self.high / self.low) / 2) - 1


@dataclass(frozen=True, slots=True)
class Pair:
    """Whom to compare, and in which cells; `whole`: these are all there are."""

    control: str
    candidate: str
    cells: tuple[Cell, ...]
    whole: bool = True


def harm(
    tallies: Tallies, pair: Pair, measure: Measure, alpha: float, margin: float
) -> Effect | None:
    """Return the effect where it is surely worse than the margin; None where it is not.

    Cheaper than `effect`: where even the estimate is within the margin, no interval is needed.
    """
    if measure.kind == "share" and not _rate_beyond(tallies, pair, measure, margin):
        return None
    found = effect(tallies, pair, measure, alpha)
    return found if found is not None and found.is_worse(measure, margin) else None


def _rate_beyond(tallies: Tallies, pair: Pair, measure: Measure, margin: float) -> bool:
    (hits, total), (other_hits, other_total) = _counts(tallies, pair, measure)
    if not total or (measure.worse == "higher" and hits <= margin * total):
        return False
    apart = hits / total - (other_hits / other_total if other_total else 0.0)
    return (apart if measure.worse == "higher" else -apart) > margin


def effect(tallies: Tallies, pair: Pair, measure: Measure, alpha: float) -> Effect | None:
    """Compare one measure; None while nothing can be said of it."""
    if measure.kind == "mean":
        return _mean(tallies, pair, measure, alpha)
    if pair.whole and not alike(tallies, pair):
        return None
    if measure.kind == "share":
        return _rate(tallies, pair, measure, alpha)
    return _quantile(tallies, pair, measure, alpha)


def alike(tallies: Tallies, pair: Pair) -> bool:
    """Whether both arms have had about the same mix of cells."""
    if len(pair.cells) < 2:
        return True
    ours, theirs = tallies.cells(pair.candidate), tallies.cells(pair.control)
    mine = [ours[c].requests if c in ours else 0 for c in pair.cells]
    others = [theirs[c].requests if c in theirs else 0 for c in pair.cells]
    if not sum(mine) or not sum(others):
        return True  # nothing to be misled by: an arm without requests has no rate either
    apart = sum(abs(a / sum(mine) - b / sum(others)) for a, b in zip(mine, others, strict=True))
    # Few requests cannot be alike: their mix is apart by chance alone, about this far.
    return apart / 2 <= max(SAME_MIX, (len(mine) / min(sum(mine), sum(others))) ** 0.5 / 2)


def _pairs(tallies: Tallies, pair: Pair) -> Iterable[tuple[Tally, Tally]]:
    ours, theirs = tallies.cells(pair.candidate), tallies.cells(pair.control)
    return [(ours[cell], theirs[cell]) for cell in pair.cells if cell in ours and cell in theirs]


def _mean(tallies: Tallies, pair: Pair, measure: Measure, alpha: float) -> Effect | None:
    weights = difference = variance = 0.0
    counts, sums = [0, 0], [0.0, 0.0]
    for ours, theirs in _pairs(tallies, pair):
        mine: Sketch = getattr(ours, measure.of)
        other: Sketch = getattr(theirs, measure.of)
        if min(mine.count, other.count) < LEAST_VALUES:
            continue
        weight = mine.count + other.count
        weights += weight
        difference += weight * (mine.log_mean - other.log_mean)
        variance += weight * weight * _variance(mine, other)
        counts = [counts[0] + mine.count, counts[1] + other.count]
        sums = [sums[0] + weight * mine.log_mean, sums[1] + weight * other.log_mean]
    if not weights:
        return None
    middle = difference / weights
    radius = mean_radius(variance / (weights * weights), alpha, scale=HOPED)
    return Effect(
        measure.name,
        _cell(pair),
        candidate=exp(sums[0] / weights),
        control=exp(sums[1] / weights),
        estimate=exp(middle),
        low=exp(middle - radius) if radius < inf else 0.0,
        high=exp(min(middle + radius, 700.0)),
        candidate_count=counts[0],
        control_count=counts[1],
    )


def _variance(mine: Sketch, other: Sketch) -> float:
    """Return the variance of a difference of means, on the safe side.

    A few values may lie close together by chance: an arm's own spread counts only where it is
    larger than that of both together.
    """
    shared = (mine.log_deviations + other.log_deviations) / (mine.count + other.count - 2)
    each = (max(shared, s.log_deviations / (s.count - 1)) / s.count for s in (mine, other))
    return sum(each)


def _cell(pair: Pair) -> Cell | None:
    return None if pair.whole else pair.cells[0]


def _counts(tallies: Tallies, pair: Pair, measure: Measure) -> list[tuple[int, int]]:
    """Return hits and totals of a share: the candidate's, then the control's."""
    counts: list[tuple[int, int]] = []
    for arm in (pair.candidate, pair.control):
        own = tallies.cells(arm)
        cells = [own[cell] for cell in pair.cells if cell in own]
        hits = sum(getattr(tally, measure.of) for tally in cells)
        counts.append((hits, sum(getattr(tally, measure.over) for tally in cells)))
    return counts


def _rate(tallies: Tallies, pair: Pair, measure: Measure, alpha: float) -> Effect | None:
    (hits, total), (other_hits, other_total) = _counts(tallies, pair, measure)
    if not total:
        return None
    low, high = share_bounds(hits, total, alpha / 2)
    other_low, other_high = share_bounds(other_hits, other_total, alpha / 2)
    mine, other = hits / total, other_hits / other_total if other_total else 0.0
    return Effect(
        measure.name,
        _cell(pair),
        candidate=mine,
        control=other,
        estimate=mine - other,
        low=low - other_high,
        high=high - other_low,
        candidate_count=total,
        control_count=other_total,
        neutral=0.0,
    )


def _quantile(tallies: Tallies, pair: Pair, measure: Measure, alpha: float) -> Effect | None:
    sketches = _levelled(tallies, pair, measure)
    if not all(sketch.count for sketch in sketches):
        return None
    (low, high), (other_low, other_high) = (
        _between(sketch, measure.quantile, alpha / 2) for sketch in sketches
    )
    mine, other = (sketch.quantile(measure.quantile) for sketch in sketches)
    return Effect(
        measure.name,
        _cell(pair),
        candidate=mine,
        control=other,
        estimate=mine / other if other else inf,
        low=low / other_high,
        high=high / other_low if other_low else inf,
        candidate_count=sketches[0].count,
        control_count=sketches[1].count,
    )


def _levelled(tallies: Tallies, pair: Pair, measure: Measure) -> tuple[Sketch, Sketch]:
    ours, theirs = tallies.cells(pair.candidate), tallies.cells(pair.control)
    found = [cell for cell in pair.cells if cell in ours or cell in theirs]
    mine = [getattr(ours[cell], measure.of) if cell in ours else Sketch() for cell in found]
    others = [getattr(theirs[cell], measure.of) if cell in theirs else Sketch() for cell in found]
    return levelled(mine, others, measure.quantile)


def _between(sketch: Sketch, share: float, alpha: float) -> tuple[float, float]:
    low, high = rank_bounds(sketch.count, share, alpha)
    return sketch.between(low, high + 1)
