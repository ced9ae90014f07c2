"""The baseline: an answer is as long as this tenant's answers of this model were of late.

Means and quantiles by tenant, model and, where it is known, template; fading, out of what was
really answered. An answer that was cut (by max_tokens, by a caller who left, by a fault) only says
that it would have been longer, so nothing is learnt from it. What was seen less than `enough` times
is thought to be like what is wider: a template like its tenant, a tenant like all of the model, a
model like all answers.

When not to use it: nothing is known of the single request, so inside one tenant all look alike; and
several answers asked for at once (`n`) are learnt as one long one.
"""

from __future__ import annotations

from itertools import accumulate
from math import log1p, log2
from typing import TYPE_CHECKING, Self

from forebay.policies.contracts import Finish

from .constant import without_output
from .contracts import NotFitted, Prediction
from .edges import EDGES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.policies.contracts import Outcome, Request

    from .contracts import Example, LengthFeatures

_BINS_PER_DOUBLING = 4
_BINS = 22 * _BINS_PER_DOUBLING
_FADE_AT = 2000.0
"""Answers after which what was seen counts half."""
_MAX_KEYS = 8192
_COMPLETED = Finish.COMPLETED


class Lengths:
    """How long answers were: a mean, and quantiles to within a fifth."""

    __slots__ = ("_counts", "_seen", "_total")

    def __init__(self) -> None:
        self._counts = [0.0] * _BINS
        self._seen = 0.0
        self._total = 0.0

    @property
    def seen(self) -> float:
        """How many, those that faded counted in part."""
        return self._seen

    @property
    def mean(self) -> float:
        """Tokens of the mean answer; 0 when none was seen."""
        return self._total / self._seen if self._seen else 0.0

    def add(self, tokens: int) -> None:
        """Take an answer in."""
        if self._seen >= _FADE_AT:
            self._counts = [count / 2 for count in self._counts]
            self._seen /= 2
            self._total /= 2
        self._counts[min(_BINS - 1, int(log2(max(1, tokens)) * _BINS_PER_DOUBLING))] += 1
        self._seen += 1
        self._total += tokens

    def quantile(self, share: float) -> float:
        """Return the length that `share` of the answers do not exceed; 0 when none was seen."""
        wanted = share * self._seen
        for index, below in enumerate(accumulate(self._counts)):
            if below >= wanted and below:
                return float(2 ** ((index + 1) / _BINS_PER_DOUBLING))
        return 0.0

    def share_under(self, tokens: int) -> float:
        """Return the share of the answers that were at most `tokens` long, to within a bin."""
        last = int(log2(max(1, tokens)) * _BINS_PER_DOUBLING)
        return sum(self._counts[: last + 1]) / self._seen if self._seen else 0.0


class MeanLength:
    """Predicts the running mean; learns from outcomes."""

    def __init__(self, *, first: int = 256, enough: int = 8) -> None:
        self._first = first
        self._enough = enough
        self._all = Lengths()
        self._known: dict[tuple[str, ...], Lengths] = {}

    def fit(self, examples: Sequence[Example]) -> Self:
        """Learn from whole answers; forgets what was learnt before."""
        self._all, self._known = Lengths(), {}
        for example in examples:
            if not example.cut:
                self.note(example.features, example.tokens)
        return self

    def predict(self, features: Sequence[LengthFeatures]) -> list[Prediction]:
        """Predict one answer's length for each. Raises NotFitted."""
        if not self._all.seen:
            raise NotFitted("this MeanLength has seen no answer; call fit, or learn")
        return [self._prediction(each) for each in features]

    def estimate(self, features: LengthFeatures) -> int:
        """Return the predicted output tokens of all answers together."""
        if features.route in without_output:
            return 0
        known = self._find(features)
        each = round(known.mean) if known is not None else self._first
        limit = features.max_tokens
        return (each if limit is None or limit > each else max(0, limit)) * features.answers

    def quantiles(self, features: LengthFeatures, *shares: float) -> list[float]:
        """Return quantiles of one answer's length, 0 to 1 each; clipped to max_tokens."""
        known = self._find(features) or self._all
        limit = float("inf") if features.max_tokens is None else float(features.max_tokens)
        return [min(limit, known.quantile(share)) for share in shares]

    def learn(self, request: Request, outcome: Outcome) -> None:
        """Take in how long an answer was; one that was cut teaches nothing."""
        tokens = outcome.output_tokens
        if not tokens or outcome.finish is not _COMPLETED or outcome.finish_reason == "length":
            return
        self._add(request.tenant, request.model, "", tokens)

    def note(self, features: LengthFeatures, tokens: int) -> None:
        """Take in the length of a whole answer, where its template is known too."""
        self._add(features.tenant, features.model, features.template, tokens)

    def _prediction(self, features: LengthFeatures) -> Prediction:
        known = self._find(features) or self._all
        quantiles = (known.quantile(0.1), known.quantile(0.5), known.quantile(0.9))
        below = [known.share_under(edge) for edge in EDGES]
        first, second, third = below
        buckets = (first, second - first, third - second, 1 - third)
        return Prediction(known.mean, quantiles, buckets, log1p(known.mean))

    def _add(self, tenant: str, model: str, template: str, tokens: int) -> None:
        self._all.add(tokens)
        known = self._known
        for key in _keys(tenant, model, template):
            lengths = known.get(key)
            if lengths is None and len(known) < _MAX_KEYS:
                lengths = known[key] = Lengths()
            if lengths is not None:
                lengths.add(tokens)

    def _find(self, features: LengthFeatures) -> Lengths | None:
        """Return the narrowest that has seen enough."""
        enough, known = self._enough, self._known
        for key in _keys(features.tenant, features.model, features.template):
            lengths = known.get(key)
            if lengths is not None and lengths.seen >= enough:
                return lengths
        return self._all if self._all.seen >= enough else None


def _keys(tenant: str, model: str, template: str) -> tuple[tuple[str, ...], ...]:
    """Return what an answer counts for, the narrowest first."""
    wide = ((model, tenant), (model,))
    return ((model, tenant, template), *wide) if template else wide
