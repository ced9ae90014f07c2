import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.adapters.base import EngineError, Verdict
from forebay.adapters.errors import ErrorBody, judge, read_body, read_error


def encode(value: object) -> bytes:
    return json.dumps(value).encode()


SHAPES = [
    pytest.param(
        400,
        {"error": {"message": "too long", "type": "BadRequestError", "param": "p", "code": 400}},
        ErrorBody("too long", "BadRequestError", None, "p", nested=True, shaped=True),
        id="nested",
    ),
    pytest.param(
        429,
        {"error": {"message": "slow down", "type": "requests", "code": "rate_limit_exceeded"}},
        ErrorBody("slow down", "requests", "rate_limit_exceeded", None, nested=True, shaped=True),
        id="nested with a word for a code",
    ),
    pytest.param(
        400,
        {"object": "error", "message": "bad", "type": "BadRequest", "param": None, "code": 40303},
        ErrorBody("bad", "BadRequest", "40303", None, nested=False, shaped=True),
        id="flat",
    ),
    pytest.param(
        429,
        {"error": "slow down"},
        ErrorBody("slow down", "rate_limit_error", None, None, nested=False, shaped=True),
        id="a string",
    ),
    pytest.param(
        404,
        {"type": "error", "error": {"type": "NotFoundError", "message": "The model is gone"}},
        ErrorBody("The model is gone", "NotFoundError", None, None, nested=True, shaped=True),
        id="anthropic",
    ),
    pytest.param(
        404, {"detail": "Not Found"}, ErrorBody("Not Found", "not_found_error"), id="detail"
    ),
    pytest.param(
        422,
        {"detail": [{"loc": ["body", 0, "n"], "msg": "must be positive"}, {"msg": "and more"}]},
        ErrorBody("body.0.n: must be positive; and more", "invalid_request_error"),
        id="a list of faults",
    ),
    pytest.param(
        500,
        {"error": {"code": 500}},
        ErrorBody(
            "the engine answered 500 without a message", "server_error", nested=False, shaped=True
        ),
        id="nested without a message",
    ),
]


@pytest.mark.parametrize(("status", "body", "expected"), SHAPES)
def test_each_shape_of_json_is_read(status: int, body: object, expected: ErrorBody):
    assert read_body(status, encode(body)) == expected


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"upstream connect error", "upstream connect error"),
        (b"<html><body>502</body></html>", "the engine answered 502 without a message"),
        (b"", "the engine answered 502 without a message"),
        (b"  \n ", "the engine answered 502 without a message"),
        (b"\x00\x01\x02", "the engine answered 502 without a message"),
        (b"[1, 2]", "the engine answered 502 without a message"),
        (b'{"cut": ', "the engine answered 502 without a message"),
        (b"[" * 100_000, "the engine answered 502 without a message"),
    ],
)
def test_what_is_no_error_of_an_engine_still_has_a_message(body: bytes, message: str):
    assert read_body(502, body) == ErrorBody(message, "server_error")


def test_a_long_message_is_cut():
    assert len(read_body(400, encode({"error": {"message": "x" * 100_000}})).message) == 4096


@pytest.mark.parametrize(
    ("status", "body", "verdict"),
    [
        (400, {"error": {"message": "no"}}, Verdict.NEUTRAL),
        (413, {"error": {"message": "no"}}, Verdict.NEUTRAL),
        (422, {"detail": "no"}, Verdict.NEUTRAL),
        (409, {"detail": "no"}, Verdict.NEUTRAL),
        (401, {"error": "Unauthorized"}, Verdict.MISCONFIGURED),
        (403, {"detail": "no"}, Verdict.MISCONFIGURED),
        (307, {}, Verdict.MISCONFIGURED),
        (404, {"detail": "Not Found"}, Verdict.MISSING_ROUTE),
        (405, {"detail": "Method Not Allowed"}, Verdict.MISSING_ROUTE),
        (501, {"error": {"message": "no embeddings"}}, Verdict.MISSING_ROUTE),
        (404, {"error": {"message": "Invalid URL (POST /v1/x)"}}, Verdict.MISSING_ROUTE),
        (404, {"error": {"message": "The model `x` does not exist."}}, Verdict.MISCONFIGURED),
        (404, {"error": {"message": "no", "code": "model_not_found"}}, Verdict.MISCONFIGURED),
        (404, {"error": {"message": "Response with id 'r' not found."}}, Verdict.NEUTRAL),
        (408, {}, Verdict.FULL),
        (429, {}, Verdict.FULL),
        (503, {"error": {"message": "Loading model"}}, Verdict.FULL),
        (529, {}, Verdict.FULL),
        (500, {"error": {"message": "no"}}, Verdict.BROKEN),
        (502, {}, Verdict.BROKEN),
        (504, {}, Verdict.BROKEN),
        (200, {}, Verdict.BROKEN),
    ],
)
def test_a_status_and_its_body_say_what_is_wrong(status: int, body: object, verdict: Verdict):
    assert judge(status, read_body(status, encode(body))) is verdict


def test_a_caller_cannot_put_an_endpoint_out_of_rotation_by_the_name_of_a_response():
    body = {"error": {"message": "Response with id 'the model x does not exist' not found."}}

    assert read_error(404, encode(body)).verdict is Verdict.NEUTRAL


@pytest.mark.parametrize("status", [401, 403])
def test_what_is_said_of_a_refused_key_is_not_repeated(status: int):
    body = {"error": {"message": "Incorrect API key: sk-canary", "code": "sk-canary", "param": "k"}}

    error = read_error(status, encode(body))

    assert "sk-canary" not in repr(error)
    assert error.message == f"the engine refuses the endpoint's key ({status})"
    assert error.verdict is Verdict.MISCONFIGURED


def test_an_error_is_what_was_said_and_what_it_means():
    body = {"error": {"message": "too long", "type": "bad", "param": "prompt", "code": "too_long"}}

    assert read_error(400, encode(body)) == EngineError(
        Verdict.NEUTRAL, "too long", "bad", "too_long", "prompt", nested=True
    )


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(
            st.sampled_from(["error", "message", "detail", "type", "code", "param", "loc", "msg"]),
            inner,
        )
    ),
    max_leaves=20,
)


@settings(deadline=None)
@given(status=st.integers(100, 599), body=st.binary() | JSON.map(encode))
def test_no_answer_makes_the_reader_raise(status: int, body: bytes):
    error = read_error(status, body)

    assert error.message
    assert len(error.message) <= 4096
    assert error.type
