"""The predictor that stands in."""

from __future__ import annotations

import pytest

from forebay.policies.contracts import Route
from forebay.scheduler.length import ConstantLength, Estimator, LengthFeatures

PREDICTOR: Estimator = ConstantLength(tokens=200)


@pytest.mark.parametrize(
    ("max_tokens", "answers", "predicted"),
    [
        pytest.param(None, 1, 200, id="no limit"),
        pytest.param(1000, 1, 200, id="a limit above it"),
        pytest.param(16, 1, 16, id="a limit below it"),
        pytest.param(0, 1, 0, id="nothing wanted"),
        pytest.param(-1, 1, 0, id="no sensible limit"),
        pytest.param(16, 4, 64, id="several answers"),
    ],
)
def test_an_answer_is_as_long_as_always_unless_the_caller_allows_less(
    max_tokens: int | None, answers: int, predicted: int
):
    features = LengthFeatures(Route.CHAT, "big", "acme", 100, max_tokens, answers)

    assert PREDICTOR.estimate(features) == predicted


def test_routes_that_generate_nothing_have_no_output():
    silent = [
        route
        for route in Route
        if not PREDICTOR.estimate(LengthFeatures(route, "big", "acme", prompt_tokens=100))
    ]

    assert silent == [
        Route.EMBEDDINGS,
        Route.COUNT_TOKENS,
        Route.RERANK,
        Route.SCORE,
        Route.TOKENIZE,
        Route.DETOKENIZE,
    ]
