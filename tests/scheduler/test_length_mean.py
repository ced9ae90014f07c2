"""The running mean that stands for a prediction."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.policies.contracts import Finish, Outcome, Request, Route
from forebay.scheduler.length import LengthFeatures, MeanLength


def teach(predictor: MeanLength, tokens: int, times: int = 8, **fields: Any) -> None:
    tenant = str(fields.pop("tenant", "acme"))
    request = Request(
        id="r1",
        pool="llama",
        route=Route.CHAT,
        model=str(fields.pop("model", "big")),
        tenant=tenant,
        sequence=1,
        arrived=0.0,
        deadline=60.0,
        prompt_tokens_estimate=1,
        output_tokens_estimate=1,
        uncached_tokens=1,
    )
    plain: dict[str, Any] = {"output_tokens": tokens, "finish_reason": "stop"}
    outcome = Outcome("r1", "llama", Route.CHAT, tenant, **{**plain, **fields})
    for _ in range(times):
        predictor.learn(request, outcome)


def asked(
    tenant: str = "acme", max_tokens: int | None = None, answers: int = 1, model: str = "big"
) -> LengthFeatures:
    return LengthFeatures(Route.CHAT, model, tenant, 100, max_tokens, answers)


def test_it_predicts_what_the_tenant_had_of_the_model():
    predictor = MeanLength()
    teach(predictor, 100)
    teach(predictor, 900, tenant="other")
    teach(predictor, 20, model="small")

    told = [predictor.estimate(asked(*who)) for who in (("acme",), ("other",))]
    assert told == [100, 900]
    assert predictor.estimate(asked(model="small")) == 20


def test_who_is_new_is_taken_to_be_like_the_others_of_the_model():
    predictor = MeanLength(first=256)
    assert predictor.estimate(asked("new")) == 256

    teach(predictor, 100, times=7, tenant="other")
    assert predictor.estimate(asked("new")) == 256
    teach(predictor, 100, times=1, tenant="other")
    assert predictor.estimate(asked("new")) == 100
    assert predictor.estimate(asked("new", model="unheard of")) == 100


def test_max_tokens_clips_and_several_answers_add_up():
    predictor = MeanLength()
    teach(predictor, 100)

    assert [predictor.estimate(asked(max_tokens=m)) for m in (16, 1000, 0, -1)] == [16, 100, 0, 0]
    assert predictor.estimate(asked(answers=3, max_tokens=50)) == 150
    assert predictor.estimate(asked()._replace(route=Route.EMBEDDINGS)) == 0


@pytest.mark.parametrize(
    "cut",
    [
        pytest.param({"finish_reason": "length"}, id="by max_tokens"),
        pytest.param({"finish": Finish.LEFT}, id="by a caller who left"),
        pytest.param({"finish": Finish.TRUNCATED}, id="by the engine"),
        pytest.param({"output_tokens": None}, id="nothing told"),
    ],
)
def test_an_answer_that_was_cut_teaches_nothing(cut: dict[str, Any]):
    predictor = MeanLength()
    teach(predictor, 100)
    teach(predictor, 5000, times=100, **cut)

    assert predictor.estimate(asked()) == 100


def test_quantiles_are_near_and_clipped():
    predictor = MeanLength()
    for tokens in range(1, 1001):
        teach(predictor, tokens, times=1)

    low, middle, high = predictor.quantiles(asked(), 0.1, 0.5, 0.9)
    assert (low, middle, high) == (
        pytest.approx(100, rel=0.2),
        pytest.approx(500, rel=0.2),
        pytest.approx(900, rel=0.2),
    )
    assert predictor.quantiles(asked(max_tokens=300), 0.5) == [300.0]
    assert MeanLength().quantiles(asked(), 0.5) == [0.0]


def test_what_was_long_ago_fades():
    predictor = MeanLength()
    teach(predictor, 1000, times=2000)
    teach(predictor, 10, times=10_000)

    assert predictor.estimate(asked()) < 50
