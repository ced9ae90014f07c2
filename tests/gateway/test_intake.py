"""What is read of a request before it costs anybody anything."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, cast

import pytest

from forebay.gateway import intake, multipart, wire
from forebay.gateway.messages import Message
from forebay.policies.contracts import InvalidRequest, Route

if TYPE_CHECKING:
    from collections.abc import Callable


def body(**members: Any) -> wire.Body:
    return wire.read(json.dumps(members).encode(), intake.READ_OR_WRITTEN)


def form(**fields: str) -> multipart.Form:
    parts = (
        f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
        for name, value in fields.items()
    )
    raw = ("".join(parts) + "--b--\r\n").encode()
    return multipart.read(raw, b"multipart/form-data; boundary=b", intake.READ_OR_WRITTEN)


def test_the_model_is_a_non_empty_string_or_absent():
    assert intake.model_of(body(model="m")) == "m"
    assert intake.model_of(body()) is None
    assert intake.model_of(body(model=None)) is None
    assert intake.model_of(form(model="m")) == "m"
    for wrong in ("", 1, ["m"], {"m": 1}, True):
        with pytest.raises(InvalidRequest) as caught:
            intake.model_of(body(model=wrong))
        assert (caught.value.status, caught.value.param) == (400, "model")


@pytest.mark.parametrize(
    ("read", "streamed"),
    [
        (body(stream=True), True),
        (body(stream=False), False),
        (body(stream=None), False),
        (body(), False),
        (form(stream="true"), True),
        (form(stream="false"), False),
        (form(), False),
    ],
)
def test_whether_a_stream_is_asked_for(read: intake.AnyBody, *, streamed: bool):
    assert intake.read_stream_flag(read) is streamed


@pytest.mark.parametrize("wrong", ["true", 1, 0, [], {}])
def test_a_stream_flag_that_is_no_boolean_is_refused(wrong: object):
    with pytest.raises(InvalidRequest) as caught:
        intake.read_stream_flag(body(stream=wrong))
    assert (caught.value.status, caught.value.param) == (400, "stream")


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"include_usage": True}, True),
        ({"include_usage": False}, False),
        ({"include_usage": 1}, False),
        ({}, False),
        (None, False),
        ("include_usage", False),
        ([True], False),
    ],
)
def test_whether_the_caller_asked_for_usage(options: object, *, asked: bool):
    assert intake.asks_usage(body(stream_options=options)) is asked
    assert intake.asks_usage(body()) is False


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({"max_tokens": 5}, 5),
        ({"max_completion_tokens": 6, "max_tokens": 5}, 6),
        ({"max_output_tokens": 7}, 7),
        ({"max_tokens": 0}, 0),
        ({"max_tokens": -1}, None),
        ({"max_tokens": True}, None),
        ({"max_tokens": "5"}, None),
        ({"max_tokens": None, "max_output_tokens": 3}, 3),
        ({}, None),
    ],
)
def test_the_longest_answer_asked_for(members: dict[str, Any], limit: int | None):
    assert intake.output_limit(body(**members)) == limit


@pytest.mark.parametrize(
    ("members", "count"),
    [
        ({}, 1),
        ({"n": 3}, 3),
        ({"n": 0}, 1),
        ({"n": -1}, 1),
        ({"n": True}, 1),
        ({"n": "3"}, 1),
        ({"n": 10**9}, 1024),
        ({"prompt": "a"}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": []}, 1),
        ({"best_of": 5}, 5),
        ({"best_of": 5, "n": 2}, 5),
        ({"best_of": 1, "n": 3, "prompt": ["a", "b"]}, 6),
    ],
)
def test_how_many_answers_are_asked_for(members: dict[str, Any], count: int):
    assert intake.answers(body(**members)) == count


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain-1", "plain-1"),
        ("é\n'", "\\xe9\\n'"),
        ("x" * 100, "x" * 64),
        ("🎉", "\\U0001f389"),
        ("\x1b[31m", "\\x1b[31m"),
    ],
)
def test_a_callers_word_is_cut_and_escaped(text: str, shown: str):
    assert intake.shown(text) == shown


def message(content_type: bytes | None, raw: bytes = b"{}") -> Message:
    made = Message(0.0)
    made.body = raw
    if content_type is not None:
        made.headers[b"content-type"] = content_type
    return made


@pytest.mark.parametrize(
    ("route", "content_type", "status"),
    [
        (Route.CHAT, b"multipart/form-data; boundary=b", 415),
        (Route.TRANSCRIPTIONS, b"application/json", 415),
        (Route.TRANSCRIPTIONS, None, 415),
        (Route.TRANSCRIPTIONS, b"multipart/form-data", 400),
    ],
)
def test_a_body_of_the_wrong_kind_is_refused(route: Route, content_type: bytes | None, status: int):
    with pytest.raises(InvalidRequest) as caught:
        intake.read_body(message(content_type), route)
    assert caught.value.status == status


@pytest.mark.parametrize("content_type", [None, b"application/json", b"text/plain", b"x"])
def test_json_is_read_whatever_it_is_called(content_type: bytes | None):
    read = cast("Callable[[Message, Route], wire.Body]", intake.read_body)
    assert read(message(content_type, b'{"model":"m"}'), Route.CHAT).get("model") == "m"
