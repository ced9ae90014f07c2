"""What each dialect learns from answers, and how it says an error."""

from __future__ import annotations

import json
from typing import Any

import pytest

from forebay.gateway.dialects import (
    ANTHROPIC,
    OPENAI,
    RESPONSES,
    Dialect,
    Seen,
    dialect_of,
    dialect_of_path,
)
from forebay.policies.contracts import (
    DeadlineExpired,
    EngineFailed,
    ForebayError,
    InvalidRequest,
    Overloaded,
    QuotaExceeded,
    Route,
    Unauthorized,
)

DIALECTS = [OPENAI, ANTHROPIC, RESPONSES]
_DEEP = b'{"x":%b%b}' % (b"[" * 3000, b"]" * 3000)
NOT_OURS = [b"", b"no json", b"[]", b"null", b"1", b'{"usage":1}', b'{"choices":{}}', b'{"id":{}}']
NOT_OURS.append(_DEEP)  # deeper than the parser's stack


def learnt(seen: Seen) -> dict[str, Any]:
    """Return what was learnt, less what was not."""
    found = {name: getattr(seen, name) for name in dir(seen) if name[0] != "_"}
    return {name: value for name, value in found.items() if value not in (None, False, "")}


def looked(dialect: Dialect, data: object, event: str = "") -> dict[str, Any]:
    seen = Seen()
    raw = data if isinstance(data, bytes) else json.dumps(data).encode()
    dialect.look(event.encode(), raw, seen)
    return learnt(seen)


def read(dialect: Dialect, answer: object) -> dict[str, Any]:
    seen = Seen()
    dialect.read(json.dumps(answer).encode(), seen)
    return learnt(seen)


CHAT_USAGE = {
    "prompt_tokens": 9,
    "completion_tokens": 4,
    "prompt_tokens_details": {"cached_tokens": 6},
}
TOLD = {"prompt_tokens": 9, "output_tokens": 4, "cached_tokens": 6}


def test_openai_answers():
    answer = {"id": "c", "choices": [{"finish_reason": "length"}], "usage": CHAT_USAGE}
    assert read(OPENAI, answer) == {"id": "c", "finish_reason": "length", **TOLD}
    assert read(OPENAI, {"data": [], "usage": {"prompt_tokens": 3, "total_tokens": 3}}) == {
        "prompt_tokens": 3
    }


@pytest.mark.parametrize(
    ("delta", "token"),
    [
        ({"content": "a"}, True),
        ({"content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"reasoning": "a"}, True),
        ({"reasoning_content": "a"}, True),
        ({"refusal": "no"}, True),
        ({"tool_calls": [{"index": 0}]}, True),
        ({"tool_calls": []}, False),
    ],
)
def test_what_is_a_first_token(delta: dict[str, Any], *, token: bool):
    found = looked(OPENAI, {"choices": [{"index": 0, "delta": delta}]})
    assert found == ({"token": True} if token else {})


def test_openai_events():
    assert looked(OPENAI, b"[DONE]") == {"done": True}
    assert looked(OPENAI, {"choices": [{"text": "a"}]}) == {"token": True}
    assert looked(OPENAI, {"choices": [], "usage": CHAT_USAGE}) == TOLD
    assert looked(OPENAI, {"error": {"message": "x"}}) == {"error": True}
    assert looked(OPENAI, b"broken", "error") == {"error": True}
    assert looked(OPENAI, {"type": "transcript.text.delta", "delta": "a"}) == {"token": True}
    assert looked(OPENAI, {"type": "transcript.text.done"}) == {"done": True}


def test_anthropic_answers_and_events():
    usage = {"input_tokens": 2, "cache_read_input_tokens": 6, "cache_creation_input_tokens": 1}
    message = {"id": "m", "stop_reason": "end_turn", "usage": {**usage, "output_tokens": 4}}
    assert read(ANTHROPIC, message) == {"finish_reason": "end_turn", **TOLD}
    start = {"type": "message_start", "message": {"usage": usage}}
    assert looked(ANTHROPIC, start) == {"prompt_tokens": 9, "cached_tokens": 6}
    delta = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    assert looked(ANTHROPIC, delta) == {"token": True}
    end = {"type": "message_delta", "delta": {"stop_reason": "x"}, "usage": {"output_tokens": 4}}
    assert looked(ANTHROPIC, end) == {"finish_reason": "x", "output_tokens": 4}
    assert looked(ANTHROPIC, {"type": "message_stop"}) == {"done": True}
    assert looked(ANTHROPIC, {}, "message_stop") == {"done": True}
    assert looked(ANTHROPIC, {"type": "error", "error": {}}) == {"error": True}


def test_responses_answers_and_events():
    usage = {
        "input_tokens": 9,
        "output_tokens": 4,
        "input_tokens_details": {"cached_tokens": 6},
    }
    response = {"id": "resp_1", "status": "completed", "usage": usage}
    known = {"id": "resp_1", "finish_reason": "completed", **TOLD}
    assert read(RESPONSES, response) == known
    for end in ("completed", "failed", "incomplete"):
        found = looked(RESPONSES, {"type": f"response.{end}", "response": response})
        assert found == {**known, "finish_reason": end, "done": True}
    assert looked(RESPONSES, {"type": "response.created", "response": {"id": "r"}}) == {"id": "r"}
    assert looked(RESPONSES, {"type": "response.output_text.delta"}) == {"token": True}
    assert looked(RESPONSES, {"type": "error"}) == {"error": True}
    assert looked(RESPONSES, b"[DONE]") == {}


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("raw", NOT_OURS)
def test_what_cannot_be_read_tells_nothing(dialect: Dialect, raw: bytes):
    seen = Seen()
    dialect.look(b"", raw, seen)
    dialect.read(raw, seen)
    assert learnt(seen) == {}


ERRORS: list[ForebayError] = [
    InvalidRequest("bad", param="n"),
    InvalidRequest("where", status=404),
    InvalidRequest("long", status=413),
    Unauthorized("who"),
    Unauthorized("no", status=403),
    QuotaExceeded("slow down"),
    Overloaded("full"),
    Overloaded("none", status=503),
    DeadlineExpired("late"),
    EngineFailed("broke"),
]
ANTHROPIC_TYPES = [
    "invalid_request_error",
    "not_found_error",
    "request_too_large",
    "authentication_error",
    "permission_error",
    "rate_limit_error",
    "rate_limit_error",
    "overloaded_error",
    "timeout_error",
    "api_error",
]


@pytest.mark.parametrize(("error", "kind"), list(zip(ERRORS, ANTHROPIC_TYPES, strict=True)))
def test_an_error_is_said_in_each_dialect(error: ForebayError, kind: str):
    openai = {
        "message": error.message,
        "type": error.type,
        "param": error.param,
        "code": error.code,
    }
    assert json.loads(OPENAI.body(error)) == {"error": openai}
    assert json.loads(RESPONSES.body(error)) == {"error": openai}
    assert json.loads(ANTHROPIC.body(error)) == {
        "type": "error",
        "error": {"type": kind, "message": error.message},
    }
    assert OPENAI.event(error) == b"data: %b\n\n" % OPENAI.body(error)
    assert ANTHROPIC.event(error) == b"event: error\ndata: %b\n\n" % ANTHROPIC.body(error)
    said = json.loads(RESPONSES.event(error).removeprefix(b"event: error\ndata: "))
    assert (said["type"], said["message"], said["code"]) == ("error", error.message, error.code)


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda each: type(each).__name__)
def test_its_own_errors_have_its_shape_and_are_seen_as_errors(dialect: Dialect):
    error = EngineFailed("broke")
    assert dialect.shaped(dialect.body(error))
    event, _, data = dialect.event(error).removesuffix(b"\n\n").rpartition(b"data: ")
    seen = Seen()
    dialect.look(event.removeprefix(b"event: ").strip(), data, seen)
    assert seen.error
    assert not seen.done


@pytest.mark.parametrize(
    ("raw", "shaped"),
    [
        (b'{"error":{"message":"x"}}', (True, False, True)),
        (b'{"type":"error","error":{"type":"a","message":"x"}}', (True, True, True)),
        (b'{"object":"error","message":"x"}', (False, False, False)),
        (b'{"error":"x"}', (False, False, False)),
        (b'{"detail":"x"}', (False, False, False)),
        (b"<html>", (False, False, False)),
    ],
)
def test_whose_shape_an_error_has(raw: bytes, shaped: tuple[bool, ...]):
    assert tuple(dialect.shaped(raw) for dialect in DIALECTS) == shaped


def test_routes_and_paths_have_their_dialects():
    own = {Route.MESSAGES: ANTHROPIC, Route.COUNT_TOKENS: ANTHROPIC, Route.RESPONSES: RESPONSES}
    for route in Route:
        assert dialect_of(route) is own.get(route, OPENAI)
        assert dialect_of_path(route.value) is own.get(route, OPENAI)
    assert dialect_of_path("/v1/responses/resp_1/cancel") is RESPONSES
    assert dialect_of_path("/nothing") is OPENAI
