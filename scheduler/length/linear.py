# pyright: reportMissingTypeStubs=false, reportUnknownMemberType=false
# pyright: reportUnknownVariableType=false, reportUnknownArgumentType=false
"""Ridge regression on hashed n-grams: text statistics, the rival that an encoder must beat.

Fitted by scikit-learn, read by numpy alone. The target is the log of the length less the model's
mean, so the text says how a prompt differs and the model how long its answers are.

When not to use it: it knows no word that it has not seen, and a model of its own it treats like all
others, so a prompt that one model answers at length and another does not is a compromise.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from .contracts import NotFitted, Prediction
from .edges import EDGES
from .means import ModelMeans
from .text import BUCKETS, COUNTED, counted, ends, hashed_grams

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from .contracts import Example, LengthFeatures
    from .encoder import Parts

_FOLDS = 4
_MOST_WEIGHT = 16
_FEWEST_ROWS = 20
_UNIT = 1e-12
_ALIKE = 0.01
"""Spread of what is counted in prompts, below which they are all alike."""
_LEAST_SPREAD = 0.05


class Ridge:
    """Weights of columns and of counted numbers for some targets at once."""

    def __init__(self, *, alpha: float = 1.0, counted_weight: float = 0.1) -> None:
        self.alpha = alpha
        self.counted_weight = counted_weight

    def fit(
        self, texts: Sequence[str], targets: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> Self:
        """Learn `targets` [N, K] of `texts`."""
        return self.fit_matrix(*matrix_of(texts), targets, weights)

    def fit_matrix(
        self,
        grams: Any,
        counts: NDArray[np.float32],
        targets: NDArray[np.float64],
        weights: NDArray[np.float64],
    ) -> Self:
        """Learn from what `matrix_of` returned; `weights` [N, K], 0 where a target is not known."""
        from scipy import sparse  # noqa: PLC0415 - only those who train have it

        seen = np.bincount(grams.indices, minlength=BUCKETS)
        self.idf_ = (np.log((1 + grams.shape[0]) / (1 + seen)) + 1).astype(np.float32)
        self.shift_ = counts.mean(0)
        self.scale_ = scale_of(counts)
        scaled = (counts - self.shift_) / self.scale_ * self.counted_weight
        both = sparse.hstack([_normed(grams, self.idf_), scaled.astype(np.float32)]).tocsr()
        solved = [self._solve(both, *columns) for columns in zip(targets.T, weights.T, strict=True)]
        learnt = np.stack([coefficients for coefficients, _ in solved]).astype(np.float32)
        self.weights_ = np.ascontiguousarray(learnt[:, :BUCKETS].T)
        self.steps_ = np.ones(len(learnt), dtype=np.float32)
        self.counted_ = learnt[:, BUCKETS:].T * self.counted_weight / self.scale_[:, None]
        self.offset_ = np.array([offset for _, offset in solved], dtype=np.float32)
        return self

    def _solve(
        self, both: Any, target: NDArray[np.float64], weights: NDArray[np.float64]
    ) -> tuple[NDArray[np.float64], float]:
        """Return coefficients and offset for one target; nothing but its mean where few know it."""
        from sklearn.linear_model import Ridge as Solver  # noqa: PLC0415 - only those who train

        rows = np.flatnonzero(weights)
        if len(rows) < _FEWEST_ROWS:
            return np.zeros(both.shape[1]), float(target[rows].mean()) if len(rows) else 0.0
        alpha = self.alpha if len(rows) == len(weights) else self.alpha / 2
        solver = Solver(alpha=alpha, solver="sparse_cg", tol=3e-3, max_iter=150)
        solver.fit(both[rows], target[rows], sample_weight=weights[rows])
        return solver.coef_, float(solver.intercept_)

    def __call__(
        self, columns: NDArray[np.int64], values: NDArray[np.float32], counts: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        """Return the targets [K] of one text."""
        scaled = values * self.idf_.take(columns)
        norm = float(np.sqrt(scaled @ scaled)) or 1.0
        rows = self.weights_.take(columns, axis=0)  # indexing takes six times as long
        said = (scaled / norm) @ rows.astype(np.float32) * self.steps_
        return said + (counts - self.shift_) @ self.counted_ + self.offset_

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return what is learnt, as small as it may be stored."""
        steps = (np.abs(self.weights_).max(0) / 127 + _UNIT).astype(np.float32)
        return {
            "idf": self.idf_.astype(np.float16),
            "weights": np.rint(self.weights_ / steps).astype(np.int8),
            "steps": steps * self.steps_,
            "counted_shift": self.shift_,
            "counted": self.counted_,
            "offset": self.offset_,
        }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Make a fitted ridge from what `arrays` returned."""
        made = cls()
        made.idf_ = arrays["idf"].astype(np.float32)
        # Left in 8 bits: rows are read here and there, and those of floats miss every cache.
        made.weights_, made.steps_ = arrays["weights"], arrays["steps"]
        made.shift_, made.counted_ = arrays["counted_shift"], arrays["counted"]
        made.offset_ = arrays["offset"]
        return made

    def many(self, grams: Any, counts: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the targets [N, K] of what `matrix_of` returned."""
        said = _normed(grams, self.idf_) @ self.weights_.astype(np.float32) * self.steps_
        return said + (counts - self.shift_) @ self.counted_ + self.offset_


def matrix_of(texts: Sequence[str]) -> tuple[Any, NDArray[np.float32]]:
    """Return texts' n-grams as a sparse matrix, and what is counted in them."""
    from scipy import sparse  # noqa: PLC0415 - only those who train have it

    columns, values, starts = [], [], [0]
    for text in texts:
        own, said = hashed_grams(ends(text))
        columns.append(own)
        values.append(said)
        starts.append(starts[-1] + len(own))
    data = (np.concatenate(values), np.concatenate(columns), np.array(starts))
    counts = np.array([counted(text) for text in texts], dtype=np.float32).reshape(-1, COUNTED)
    return sparse.csr_matrix(data, shape=(len(texts), BUCKETS)), counts


def scale_of(counts: NDArray[Any]) -> NDArray[Any]:
    """Return what to divide each of the counts by.

    One that all prompts have alike is left as it is: divided by next to nothing it would outweigh
    all else in the first prompt that has another.
    """
    spread = counts.std(0)
    return np.where(spread < _ALIKE, 1.0, np.maximum(spread + 1e-6, _LEAST_SPREAD))


def _normed(grams: Any, idf: NDArray[np.float32]) -> Any:
    from scipy import sparse  # noqa: PLC0415 - only those who train have it

    scaled = grams @ sparse.diags(idf)
    norms = np.sqrt(np.asarray(scaled.multiply(scaled).sum(1)).ravel())
    scales = (1 / np.maximum(norms, 1e-9)).astype(np.float32)
    return (sparse.diags(scales) @ scaled).tocsr()


class Prompts(NamedTuple):
    """Examples by prompt."""

    texts: list[str]
    of: NDArray[np.int64]
    """The prompt of each example, by index."""
    counts: NDArray[np.int64]
    """Examples of each prompt."""


def by_prompt(examples: Sequence[Example]) -> Prompts:
    """Gather the examples that have one text."""
    index: dict[str, int] = {}
    of = [index.setdefault(example.features.text, len(index)) for example in examples]
    return Prompts(list(index), np.array(of), np.bincount(of, minlength=len(index)))


def prompt_targets(
    prompts: Prompts, residuals: NDArray[np.float64], tokens: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Return what the ridge learns of each prompt [N, 2].

    Mean residual, share of answers over 1,000 tokens.
    """
    rows = (residuals, tokens > EDGES[-1])
    return np.stack([_means(prompts.of, row.astype(float), prompts.counts) for row in rows], axis=1)


def kin_targets(
    prompts: Prompts, residuals: NDArray[np.float64], kin: NDArray[np.int64], count: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return each kin's mean residual of each prompt [N, K], and how much it counts.

    `kin` is that of each answer, -1 where it has none.
    """
    size = len(prompts.texts)
    targets, weights = np.zeros((size, count)), np.zeros((size, count))
    for number in range(count):
        own = kin == number
        some = np.bincount(prompts.of[own], minlength=size)
        targets[:, number] = _means(prompts.of[own], residuals[own], np.maximum(some, 1))
        weights[:, number] = _certain(some)
    return targets, weights


def _means(
    of: NDArray[np.int64], values: NDArray[np.float64], counts: NDArray[np.int64]
) -> NDArray[np.float64]:
    return np.bincount(of, values, minlength=len(counts)) / counts


def prompt_weights(prompts: Prompts, targets: int = 2) -> NDArray[np.float64]:
    """Return how much each prompt counts for each target [N, targets]."""
    return np.repeat(_certain(prompts.counts)[:, None], targets, axis=1)


def _certain(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return what so many answers weigh: more answers, more certain."""
    return np.sqrt(np.minimum(counts, _MOST_WEIGHT))


def out_of_fold(
    ridge: Ridge, matrix: tuple[Any, Any], targets: Any, weights: Any, seed: int
) -> NDArray[np.float32]:
    """Return for each prompt what a ridge that has not seen it says [N, K]."""
    grams, counts = matrix
    folds = np.random.default_rng(seed).integers(0, _FOLDS, len(targets))
    said = np.zeros(targets.shape, dtype=np.float32)
    for fold in range(_FOLDS):
        rest, own = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        if not len(own) or not len(rest):
            continue
        one = Ridge(alpha=ridge.alpha, counted_weight=ridge.counted_weight)
        one.fit_matrix(grams[rest], counts[rest], targets[rest], weights[rest])
        said[own] = one.many(grams[own], counts[own])
    return said


def error_quantiles(errors: NDArray[np.float64]) -> NDArray[np.float32]:
    """Return a hundred quantiles of errors made on prompts that were not seen."""
    return np.quantile(errors, np.linspace(0.005, 0.995, 100)).astype(np.float32)


class LinearText:
    """Predicts from a ridge's residual and the model's mean; see the module."""

    def __init__(self, *, alpha: float = 1.0, random_state: int = 0) -> None:
        self.alpha = alpha
        self.random_state = random_state

    def fit(self, examples: Sequence[Example]) -> Self:
        """Learn; errors are judged on prompts that the ridge has not seen."""
        if not examples:
            raise ValueError("no examples to learn from")
        prompts = by_prompt(examples)
        tokens = np.array([example.tokens for example in examples])
        self.means_ = ModelMeans().fit([e.features.model for e in examples], tokens)
        base = self.means_.of_all([e.features.model for e in examples])
        residuals = np.log1p(tokens) - base
        targets, weights = prompt_targets(prompts, residuals, tokens), prompt_weights(prompts)
        matrix, ridge = matrix_of(prompts.texts), Ridge(alpha=self.alpha)
        unseen = out_of_fold(ridge, matrix, targets, weights, self.random_state)
        self.errors_ = error_quantiles(residuals - unseen[prompts.of, 0])
        self.ridge_ = ridge.fit_matrix(*matrix, targets, weights)
        return self

    @classmethod
    def of(cls, parts: Parts) -> Self:
        """Make a fitted one of an encoder's parts: what reads n-grams beside its network."""
        made = cls()
        made.means_, made.ridge_, made.errors_ = parts.means, parts.ridge, parts.errors
        return made

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        """Predict one answer's length for each. Raises NotFitted."""
        if not hasattr(self, "ridge_"):
            raise NotFitted("this LinearText has learnt nothing; call fit")
        return [self._one(each) for each in features]

    def _one(self, features: LengthFeatures) -> Prediction:
        counts = np.array(counted(features.text), dtype=np.float32)
        said = self.ridge_(*hashed_grams(ends(features.text)), counts)
        return spread(self.means_.of(features.model) + float(said[0]), self.errors_)


def spread(middle: float, errors: NDArray[np.float32]) -> Prediction:
    """Return a prediction from a log length and the errors that it comes with, sorted."""
    lengths = np.expm1(middle + errors)
    below = np.searchsorted(lengths, EDGES, side="right") / len(lengths)
    shares = np.diff(below, prepend=0.0, append=1.0)
    low, half, high = np.maximum(0.0, np.quantile(lengths, (0.1, 0.5, 0.9)))
    tokens = max(0.0, float(np.expm1(middle)))
    first, second, third, fourth = map(float, shares)
    quantiles = (float(low), float(half), float(high))
    return Prediction(tokens, quantiles, (first, second, third, fourth), middle)
