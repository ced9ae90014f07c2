"""How long each model's answers are, in logs, and what to think of a model never seen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

_PRIOR = 5.0
"""A model counts as having given so many answers of the mean length before its own."""


class ModelMeans:
    """The mean log length of each model, drawn towards that of all where answers are few."""

    def fit(self, models: Sequence[str], tokens: ArrayLike) -> Self:
        """Learn from answers, each model's name beside."""
        logs = np.log1p(np.asarray(tokens, dtype=float))
        names, index = np.unique(np.asarray(models, dtype=object), return_inverse=True)
        counts, sums = np.bincount(index), np.bincount(index, logs)
        own = sums / counts
        self.mean_ = float(own.mean())
        shrunk = (sums + _PRIOR * self.mean_) / (counts + _PRIOR)
        self.models_ = dict(zip(map(str, names), map(float, shrunk), strict=True))
        return self

    def of(self, model: str) -> float:
        """Return a model's mean of log(1 + tokens); that of all models where it is unknown."""
        return self.models_.get(model, self.mean_)

    def of_all(self, models: Sequence[str]) -> NDArray[np.float64]:
        """Return `of` for each."""
        return np.array([self.of(model) for model in models])
