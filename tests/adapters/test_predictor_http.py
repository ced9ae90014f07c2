"""A predictor at the other end of HTTP."""

from __future__ import annotations

import json

import httpx
import pytest

from forebay.adapters.predictor_http import RemoteLength
from forebay.policies.contracts import Route
from forebay.scheduler.length import LengthFeatures, Prediction

FEATURES = LengthFeatures(Route.CHAT, "big", "acme", 12, text="hello")
TOLD = {"tokens": 9.5, "quantiles": [1, 9, 30], "buckets": [0.7, 0.2, 0.1, 0], "rank": 2.3}


def remote(answer: httpx.Response | httpx.HTTPError, seen: list[object]) -> RemoteLength:
    def handle(request: httpx.Request) -> httpx.Response:
        seen.append(json.loads(request.content))
        if isinstance(answer, httpx.HTTPError):
            raise answer
        return answer

    client = httpx.Client(transport=httpx.MockTransport(handle))
    return RemoteLength("http://predictor/v1", client=client)


def test_features_go_and_predictions_come_back():
    seen: list[object] = []
    predictor = remote(httpx.Response(200, json={"predictions": [TOLD]}), seen)

    assert predictor.predict([FEATURES]) == [
        Prediction(9.5, (1.0, 9.0, 30.0), (0.7, 0.2, 0.1, 0.0), 2.3)
    ]
    assert seen == [{"features": [{**FEATURES._asdict(), "route": "/v1/chat/completions"}]}]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(500), "500 Internal Server Error"),
        (httpx.Response(200, text="no JSON"), "JSON is malformed"),
        (httpx.Response(200, json={"predictions": [{"tokens": 1}]}), "missing required field"),
        (httpx.Response(200, json={"predictions": []}), "answered 0 of 1"),
        (httpx.ConnectError("refused"), "refused"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
    ],
)
def test_what_is_no_good_answer_is_an_error_that_names_the_place(
    answer: httpx.Response | httpx.HTTPError, reason: str
):
    with pytest.raises(OSError, match=f"the predictor at http://predictor/v1.*{reason}"):
        remote(answer, []).predict([FEATURES])
