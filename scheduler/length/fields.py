"""What is said of a request beside its prompt's text, as numbers."""

from __future__ import annotations

from math import cos, log1p, pi, sin
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .contracts import LengthFeatures

ROW = 10
"""Numbers that `row_of` returns."""


def row_of(features: LengthFeatures, base: float) -> list[float]:
    """Return `ROW` numbers, 0 where nothing is known.

    `base` is how far the mean log length of the model's answers is from that of all models.
    """
    limit, hour = features.max_tokens, features.hour
    turn = 0.0 if hour is None else hour * pi / 12
    return [
        base,
        features.temperature or 0.0,
        0.0 if limit is None else log1p(max(0, limit)) / 5,
        log1p(features.tools),
        float(features.schema),
        float(features.stop),
        log1p(features.turns - 1),
        0.0 if hour is None else sin(turn),
        0.0 if hour is None else cos(turn) - 1,
        1.0 if features.template else 0.0,
    ]
