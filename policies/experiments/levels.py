"""Lays the cells' distributions over one another, so that what is past a quantile counts together.

Theory of operation. Long prompts take longer, so the plain 99th percentile of all requests is that
of the slowest cells: a candidate whose other cells got worse looks fine. And in one cell few values
are past it. So the values of each cell are divided by the cell's *level*, about its own quantile,
and then counted together: of every cell about the same share is past the quantile, whatever its
share of the requests, and all of those are told apart at once.

The level is exp(mean + z * deviation) of the logarithms, z being the normal quantile: what the
quantile would be if times were log-normal. It is taken of both arms together and divides both, so
it favours neither, and where times are not log-normal it is only a scale. It is estimated, so
intervals of levelled values are exact only but for its error; that error is common to the arms, and
how often they err is measured (docs/experiments.md).
"""

from __future__ import annotations

from statistics import NormalDist
from typing import TYPE_CHECKING, NamedTuple

from .tallies import Sketch, steps

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_JOINT = 20
"""Values of both arms in a cell, before its level is known: the cell is left out until then."""


def levelled(
    mine: Sequence[Sketch], others: Sequence[Sketch], quantile: float
) -> tuple[Sketch, Sketch]:
    """Add up each arm's cells, moved to the mean level; a single cell stays as it is.

    `mine` and `others` hold the same cells in the same order. Values stay in their unit.
    """
    if len(mine) == 1:
        return mine[0], others[0]
    cells = [
        _Levelled(one, two, level(one, two, quantile))
        for one, two in zip(mine, others, strict=True)
        if one.count + two.count >= LEAST_JOINT
    ]
    count = sum(cell.both for cell in cells)
    middle = sum(cell.level * cell.both for cell in cells) / max(1, count)
    first, second = Sketch(), Sketch()
    for cell in cells:
        shift = steps(middle - cell.level)
        first.merge(cell.mine, shift)
        second.merge(cell.other, shift)
    return first, second


class _Levelled(NamedTuple):
    mine: Sketch
    other: Sketch
    level: float

    @property
    def both(self) -> int:
        return self.mine.count + self.other.count


def level(one: Sketch, two: Sketch, quantile: float) -> float:
    """Return the logarithm of a cell's level, of both arms' values together."""
    count = one.count + two.count
    mean = (one.log_total + two.log_total) / count
    squares = (one.log_squares + two.log_squares) / count
    return mean + NormalDist().inv_cdf(quantile) * max(0.0, squares - mean * mean) ** 0.5
