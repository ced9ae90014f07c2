# pyright: reportPrivateUsage=false
# (a test may look inside)
"""Heads of requests: exact bytes, and no way to end a line from a value."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.adapters.connection_head import Heads


def heads(*, key: str | None = None, prefix: str = "") -> Heads:
    return Heads(host="engine:8000", prefix=prefix, key=key)


def test_a_head_holds_what_was_given_and_what_is_ours():
    written = heads(key="secret", prefix="/base").write(
        "POST", "/v1/completions?a=b", [("content-type", "application/json"), ("x-a", "é\t")], 12
    )
    assert written == (
        b"POST /base/v1/completions?a=b HTTP/1.1\r\nhost: engine:8000\r\n"
        b"authorization: Bearer secret\r\ncontent-type: application/json\r\nx-a: \xe9\t\r\n"
        b"content-length: 12\r\n\r\n"
    )


def test_a_get_without_a_body_says_no_length_and_an_empty_post_does():
    assert heads().write("GET", "/v1/models", [], 0) == (
        b"GET /v1/models HTTP/1.1\r\nhost: engine:8000\r\n\r\n"
    )
    assert heads().write("POST", "/x", [], 0) == (
        b"POST /x HTTP/1.1\r\nhost: engine:8000\r\ncontent-length: 0\r\n\r\n"
    )


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n", "\0", "\r\nx: y", "\n\r"])
@pytest.mark.parametrize("place", ["{0}value", "val{0}ue", "value{0}"])
def test_a_value_that_would_end_its_line_is_refused_without_being_told(end: str, place: str):
    with pytest.raises(ValueError, match=r"^header x-b holds a line break or NUL$"):
        heads().write("POST", "/", [("x-a", "fine"), ("x-b", place.format(end))], 0)


@pytest.mark.parametrize("name", ["", "a b", "a:", "a\r\nb", "é", "a\0", "x: y"])
def test_a_name_that_is_no_token_is_refused(name: str):
    with pytest.raises(ValueError, match="name is no HTTP token"):
        heads().write("POST", "/", [(name, "v")], 0)


@pytest.mark.parametrize(
    "name", ["Host", "content-length", "Transfer-Encoding", "connection", "authorization", "expect"]
)
def test_what_frames_a_request_is_never_taken_from_its_headers(name: str):
    with pytest.raises(ValueError, match="set by the connection alone"):
        heads().write("POST", "/", [(name, "1")], 0)


@pytest.mark.parametrize("path", ["", "v1", "/a b", "/a\r\nb", "/é", "/\x7f", "/a\0"])
def test_a_path_that_would_end_the_request_line_is_refused(path: str):
    with pytest.raises(ValueError, match="path is not visible ASCII"):
        heads().write("GET", path, [], 0)


def test_a_method_that_is_no_token_is_refused():
    with pytest.raises(ValueError, match="method is no HTTP token"):
        heads().write("GET /x", "/", [], 0)


def test_a_value_beyond_latin_1_is_refused_and_the_error_holds_no_key():
    with pytest.raises(ValueError, match="beyond latin-1") as caught:
        heads(key="canary").write("POST", "/", [("x-a", "\u20ac")], 0)
    assert caught.value.__cause__ is None
    assert "canary" not in repr(caught.value)


@pytest.mark.parametrize("key", ["", "a b", "a\r\nx: y", "é"])
def test_a_key_that_cannot_be_sent_is_refused_without_being_told(key: str):
    with pytest.raises(ValueError, match=r"^the endpoint's key must be visible ASCII"):
        heads(key=key)


def test_what_is_kept_for_paths_and_names_is_bounded():
    written = heads()
    for n in range(1000):
        written.write("GET", f"/v1/responses/{n}", [(f"x-{n}", "v")], 0)
    assert len(written._starts) <= 256
    assert len(written._names) <= 256


@given(
    st.lists(
        st.tuples(st.text(max_size=6), st.text(max_size=12)).map(lambda h: (h[0], h[1])),
        max_size=4,
    )
)
def test_any_headers_are_either_refused_or_written_as_one_line_each(headers: list[tuple[str, str]]):
    try:
        written = heads().write("POST", "/", headers, 3)
    except ValueError:
        return
    lines = written.decode("latin-1").split("\r\n")
    assert lines[2:] == [*(f"{n}: {v}" for n, v in headers), "content-length: 3", "", ""]
    assert written.count(b"\n") == written.count(b"\r") == len(lines) - 1
