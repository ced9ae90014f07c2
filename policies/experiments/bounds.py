"""Confidence sequences: intervals that hold at all times at once, so that anybody may look anytime.

Theory of operation. An e-process is a bet against one value of a parameter: its expectation stays
at most 1 when that value is true, whenever one stops, so by Ville's inequality it ever reaches
1/alpha with probability alpha at most. The values whose bet has not reached 1/alpha form a
confidence sequence.

- `share_bounds`: a Bernoulli rate, by the beta-binomial mixture (Robbins 1970). Exact from the
  first observation on.
- `rank_bounds`: the ranks between which a quantile lies, by the same mixture on the counts below it
  (Howard and Ramdas 2022). Exact, whatever the distribution.
- `mean_radius`: a difference of means, by the normal mixture of the sequential probability ratio
  test (Robbins and Siegmund 1970; Johari et al. 2022). Asymptotic (Waudby-Smith et al. 2024): ask
  it only with some twenty observations in each mean. How often it errs on skewed data is measured,
  see docs/experiments.md.
"""

from __future__ import annotations

from functools import lru_cache
from math import inf, lgamma, log, sqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_STEPS = 40


def _log_beta(a: float, b: float) -> float:
    return lgamma(a) + lgamma(b) - lgamma(a + b)


def _likelihood(hits: float, misses: float, share: float) -> float:
    """Return the log likelihood of a rate; -inf where it is impossible."""
    if (hits and share <= 0) or (misses and share >= 1):
        return -inf
    return (hits * log(share) if hits else 0.0) + (misses * log(1 - share) if misses else 0.0)


def share_bounds(hits: int, total: int, alpha: float) -> tuple[float, float]:
    """Return the interval of a rate after `hits` of `total`; at all times, with 1 - alpha."""
    if total <= 0:
        return 0.0, 1.0
    return _share_bounds(hits, total, alpha)


@lru_cache(maxsize=4096)
def _share_bounds(hits: int, total: int, alpha: float) -> tuple[float, float]:
    misses = total - hits
    # Jeffreys' prior: the bet that does best, within a constant, against every rate.
    least = _log_beta(hits + 0.5, misses + 0.5) - _log_beta(0.5, 0.5) + log(alpha)
    middle = hits / total
    low = 0.0 if not hits else _edge(hits, misses, least, inside=middle, outside=0.0)
    high = 1.0 if not misses else _edge(hits, misses, least, inside=middle, outside=1.0)
    return low, high


def _edge(hits: int, misses: int, least: float, *, inside: float, outside: float) -> float:
    """Return the rate between `inside` and `outside` whose likelihood is just `least`."""
    for _ in range(_STEPS):
        middle = (inside + outside) / 2
        if _likelihood(hits, misses, middle) >= least:
            inside = middle
        else:
            outside = middle
    return outside


@lru_cache(maxsize=4096)
def rank_bounds(total: int, share: float, alpha: float) -> tuple[int, int]:
    """Return how many of `total` values may lie at or below the quantile `share`.

    The quantile is then above the value of rank `low` and at most that of rank `high + 1`; ranks
    count from 1, rank 0 and `total + 1` being no bound at all.
    """
    scale = 1 / min(share, 1 - share)  # a prior that expects about one value past the quantile
    a, b = share * scale, (1 - share) * scale
    base = _log_beta(a, b) - log(alpha)
    yes, no = log(share), log(1 - share)

    def possible(below: int) -> bool:
        bet = _log_beta(below + a, total - below + b) - below * yes - (total - below) * no
        return bet < base

    middle = min(total, max(0, round(share * total)))
    return _last(possible, middle, -1), _last(possible, middle, total + 1)


def _last(possible: Callable[[int], bool], inside: int, outside: int) -> int:
    """Return the count farthest from `inside` that is possible, by bisection."""
    while abs(outside - inside) > 1:
        middle = (inside + outside) // 2
        if possible(middle):
            inside = middle
        else:
            outside = middle
    return inside


def mean_radius(variance: float, alpha: float, *, scale: float) -> float:
    """Return how far a difference of means may be from its estimate, whose variance is given.

    `scale` is the size of the effects that one hopes to find soonest, in the same unit.
    """
    if variance <= 0:
        return inf
    prior = scale * scale
    wide = variance * (variance + prior) / prior
    return sqrt(2 * wide * (log(1 / alpha) + 0.5 * log((variance + prior) / variance)))
