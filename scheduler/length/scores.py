"""How good predictions are: rank correlation, buckets, errors, coverage, and drift.

Pure numpy. Ranks are Kendall's tau-b, which counts ties in the truth against nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .edges import EDGES

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

_FEWEST = 5


def buckets_of(tokens: ArrayLike) -> NDArray[np.int64]:
    """Return the bucket, 0 to 3, of each length."""
    return np.searchsorted(np.asarray(EDGES, dtype=float), np.asarray(tokens, dtype=float))


def tau_b(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's tau-b, -1 to 1; nan where either side is all alike. O(n log n)."""
    x, y = _ranks(first), _ranks(second)
    size = len(x)
    pairs = size * (size - 1) / 2
    order = np.lexsort((y, x))
    tied_x, tied_y = _tied(x), _tied(y)
    tied_both = _tied(x * (int(y.max(initial=0)) + 1) + y)
    below = (pairs - tied_x) * (pairs - tied_y)
    if below <= 0:
        return float("nan")
    discordant = _inversions(y[order])
    concordant = pairs - tied_x - tied_y + tied_both - discordant
    return float((concordant - discordant) / np.sqrt(below))


def _ranks(values: ArrayLike) -> NDArray[np.int64]:
    return np.unique(np.asarray(values, dtype=float), return_inverse=True)[1].astype(np.int64)


def _tied(ranks: NDArray[np.int64]) -> float:
    counts = np.unique(ranks, return_counts=True)[1].astype(float)
    return float((counts * (counts - 1) / 2).sum())


def _inversions(ranks: NDArray[np.int64]) -> float:
    """Count pairs out of order, one bit of the ranks at a time, the highest first.

    Those whose higher bits agree stand together, in their order; of them, each 1 before a 0 is out
    of order.
    """
    total, group = 0.0, np.zeros(len(ranks), dtype=np.int64)
    for bit in reversed(range(int(ranks.max(initial=0)).bit_length())):
        ones = (ranks >> bit) & 1
        before = np.cumsum(ones) - ones
        first = np.searchsorted(group, group)
        total += float((before - before[first])[ones == 0].sum())
        order = np.lexsort((ones, group))
        ranks, group = ranks[order], (group * 2 + ones)[order]
    return total


def tau_by_model(
    truth: NDArray[np.float64], said: NDArray[np.float64], models: NDArray[np.int64]
) -> float:
    """Return the mean of tau over models that have a few answers; nan when none has."""
    order = np.argsort(models, kind="stable")
    cuts = np.flatnonzero(np.diff(models[order])) + 1
    taus = [
        tau_b(truth[rows], said[rows]) for rows in np.split(order, cuts) if len(rows) >= _FEWEST
    ]
    known = [tau for tau in taus if not np.isnan(tau)]
    return float(np.mean(known)) if known else float("nan")


def psi(expected: ArrayLike, found: ArrayLike, *, bins: int = 10) -> float:
    """Return the population stability index of two samples, over the first one's quantiles.

    Under .1 is stable, over .25 is another population, by the usual rule of thumb.
    """
    before, after = np.asarray(expected, dtype=float), np.asarray(found, dtype=float)
    cuts = np.unique(np.quantile(before, np.linspace(0, 1, bins + 1)[1:-1]))
    shares = [
        (np.bincount(np.searchsorted(cuts, each), minlength=len(cuts) + 1) + 0.5)
        / (len(each) + 0.5 * (len(cuts) + 1))
        for each in (before, after)
    ]
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())


def ks(expected: ArrayLike, found: ArrayLike) -> tuple[float, float]:
    """Return the Kolmogorov-Smirnov distance of two samples and its (asymptotic) p value."""
    before, after = np.sort(np.asarray(expected, float)), np.sort(np.asarray(found, float))
    both = np.concatenate((before, after))
    distance = float(
        np.abs(
            np.searchsorted(before, both, side="right") / len(before)
            - np.searchsorted(after, both, side="right") / len(after)
        ).max()
    )
    size = np.sqrt(len(before) * len(after) / (len(before) + len(after)))
    scaled = (size + 0.12 + 0.11 / size) * distance
    if scaled < 0.2:  # where the series has not yet settled, and p is 1
        return distance, 1.0
    terms = np.arange(1, 101)
    signs = np.where(terms % 2, 2.0, -2.0)
    return distance, float(np.clip((signs * np.exp(-2 * (terms * scaled) ** 2)).sum(), 0, 1))
