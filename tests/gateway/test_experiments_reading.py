"""What is read of answers and requests afterwards, whatever their shape."""

from __future__ import annotations

import msgspec
import pytest

from forebay.gateway.experiments.reading import asks_json, said_in
from forebay.policies.contracts import Route
from forebay.policies.experiments.answers import Said

_DEEP = b"[" * 3000 + b"]" * 3000


@pytest.mark.parametrize(
    ("format_", "asks"),
    [
        (b'{"type":"json_object"}', True),
        (b'{"type":"json_schema","json_schema":{}}', True),
        (b'{"type":"text"}', False),
        (b'{"type":["json_object"]}', False),
        (b'{"type":{}}', False),
        (b'"json_object"', False),
        (b'{"type":%b}' % _DEEP, False),
    ],
)
def test_a_request_asks_for_json_only_by_openais_words(format_: bytes, *, asks: bool):
    assert asks_json({"response_format": msgspec.Raw(format_)}) is asks


@pytest.mark.parametrize("route", [Route.CHAT, Route.MESSAGES, Route.RESPONSES])
@pytest.mark.parametrize(
    "answer",
    [
        b"no json",
        b'{"choices":"text","content":1,"output":1}',
        b'{"choices":[{"logprobs":{"content":[{"logprob":"low"}]}}]}',
        b'{"choices":[{"logprobs":{"content":[{"logprob":%b}]}}]}' % (b"9" * 400),
        b'{"choices":%b,"content":1,"output":1}' % _DEEP,
    ],
    ids=["no json", "other shapes", "a word", "too large a number", "too deep"],
)
def test_an_answer_of_another_shape_says_nothing(route: Route, answer: bytes):
    assert said_in(route, answer, streamed=False) == Said("", "", ())
    event = b"data: " + answer + b"\n\n"
    assert said_in(route, event, streamed=True) == Said("", "", ())
