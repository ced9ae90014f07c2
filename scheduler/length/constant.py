"""The predictor that knows nothing: the same length for every answer, as far as it may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.policies.contracts import Route

if TYPE_CHECKING:
    from .contracts import LengthFeatures

without_output = frozenset(
    {
        Route.EMBEDDINGS,
        Route.COUNT_TOKENS,
        Route.RERANK,
        Route.SCORE,
        Route.TOKENIZE,
        Route.DETOKENIZE,
    }
)
"""Routes whose answers are no generated text."""


@dataclass(frozen=True, slots=True)
class ConstantLength:
    """Predicts `tokens` for each answer, or what the caller allows where that is less."""

    tokens: int = 256

    def estimate(self, features: LengthFeatures) -> int:
        """Return the predicted output tokens of all answers together."""
        if features.route in without_output:
            return 0
        limit = features.max_tokens
        each = self.tokens if limit is None or limit > self.tokens else max(0, limit)
        return each * features.answers
