"""A predictor at the other end of HTTP."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import httpx
import pytest

from forebay.adapters.predictor_http import RemoteLength
from forebay.gateway.commands.predictor_serve import answer as answer_of
from forebay.gateway.weights import load_encoder
from forebay.policies.contracts import Route
from forebay.scheduler.length import LengthFeatures, Prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

FEATURES = LengthFeatures(Route.CHAT, "big", "acme", 12, text="hello")
BAD = (
    {"temperature": "hot"},
    {"temperature": 1e300},
    {"max_tokens": 10**400},
    {"turns": -4},
    {"model": ["m"]},
    {"hour": 99},
)
ODD = (
    *(json.dumps({"features": [{**FEATURES._asdict(), **each}]}).encode() for each in BAD),
    b'{"features": [%b]}' % (b"[" * 100_000),
    b'{"features": [%b{}]}' % (b"{}," * 256),
)
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


def test_it_speaks_with_the_server_that_forebay_has():
    """`forebay predictor serve` at the other end, without a socket between."""
    encoder = load_encoder()

    def handle(request: httpx.Request) -> httpx.Response:
        status, body = answer_of(encoder, request.content)
        return httpx.Response(status, content=body)

    client = httpx.Client(transport=httpx.MockTransport(handle))
    predictor = RemoteLength("http://predictor", client=client)

    asks = [FEATURES, FEATURES._replace(text="解释量子力学", temperature=0.5, hour=3)]
    assert predictor.predict(asks) == encoder.predict(asks)
    for body in (b"", b"{}", b'{"features": [1]}', b'{"features": [{"text": "x"}]}', *ODD):
        assert answer_of(encoder, body)[0] == 400
    assert answer_of(encoder, b'{"features": []}') == (200, b'{"predictions":[]}')


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (httpx.Response(500), "500 Internal Server Error"),
        (httpx.Response(200, text="no JSON"), "JSON is malformed"),
        (httpx.Response(200, json={"predictions": [{"tokens": 1}]}), "missing required field"),
        (httpx.Response(200, json={"predictions": []}), "answered 0 of 1"),
        (httpx.ConnectError("refused"), "refused"),
        (httpx.ReadTimeout(""), "ReadTimeout"),
        (httpx.Response(200, content=b" " * (2 << 20)), "over 1 MiB"),
        (httpx.Response(200, text="[" * 100_000), "."),
        (httpx.Response(200, text='{"predictions": [{"tokens": NaN}]}'), "malformed"),
    ],
)
def test_what_is_no_good_answer_is_an_error_that_names_the_place(
    answer: httpx.Response | httpx.HTTPError, reason: str
):
    with pytest.raises(OSError, match=f"the predictor at http://predictor/v1.*{reason}"):
        remote(answer, []).predict([FEATURES])


def test_an_answer_that_never_ends_is_given_up():
    def drips() -> Iterator[bytes]:
        while True:
            yield b" "

    answer = httpx.Response(200, content=drips())
    with pytest.raises(OSError, match=r"no whole answer within 0\.25 s|over 1 MiB"):
        remote(answer, []).predict([FEATURES])


def test_what_may_be_secret_in_its_url_is_in_no_error():
    def refuse(_request: httpx.Request) -> httpx.Response:
        return httpx.Response(503)

    client = httpx.Client(transport=httpx.MockTransport(refuse))
    predictor = RemoteLength("http://user:hunter2@predictor/v1?key=hunter3", client=client)
    with pytest.raises(
        OSError, match=r"^the predictor at http://predictor/v1: 503 Service"
    ) as told:
        predictor.predict([FEATURES])
    assert "hunter" not in str(told.value)
