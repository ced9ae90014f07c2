"""Forms are read for a few fields and edited in place."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway import multipart
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.policies.contracts import InvalidRequest

TYPE = b"multipart/form-data; boundary=bound"


def part(name: str, value: bytes, extra: str = "") -> bytes:
    head = f'--bound\r\ncontent-disposition: form-data; name="{name}"{extra}\r\n\r\n'
    return head.encode() + value + b"\r\n"


END = b"--bound--\r\n"
AUDIO = bytes(range(256)) * 3
FORM = part("model", b"m") + part("file", AUDIO, '; filename="a; name=x.wav"') + END


def read(raw: bytes, content_type: bytes = TYPE) -> multipart.Form:
    return multipart.read(raw, content_type, READ_OR_WRITTEN)


def test_fields_are_read_by_name():
    form = read(FORM)
    assert form.get("model") == "m"
    assert form.get("language") is None
    assert form.get("file") is None  # no text
    assert form.members == {}
    assert form.splice({}) is FORM


def test_a_field_is_replaced_in_place():
    assert read(FORM).splice({"model": b'"org/\\u00e9"'}) == FORM.replace(
        b"\r\n\r\nm\r\n", "\r\n\r\norg/é\r\n".encode()
    )


def test_fields_are_dropped_and_added():
    raw = part("priority", b"9") + FORM
    form = read(raw).splice({"stream": b"true"}, ["priority", "never"])
    added = b'--bound\r\ncontent-disposition: form-data; name="stream"\r\n\r\ntrue\r\n'
    assert form == FORM.removesuffix(END) + added + END
    assert read(form).get("stream") == "true"


@pytest.mark.parametrize(
    "content_type",
    [
        b'multipart/form-data; boundary="bound"',
        b"multipart/form-data; charset=utf-8; Boundary=bound",
        b"MULTIPART/FORM-DATA;boundary=bound; x=y",
    ],
)
def test_a_boundary_may_be_written_in_several_ways(content_type: bytes):
    assert read(FORM, content_type).get("model") == "m"


def test_preamble_and_epilogue_are_allowed():
    assert read(b"preamble\r\n" + FORM + b"epilogue").get("model") == "m"


def test_a_value_that_holds_the_boundarys_text_is_a_value():
    form = read(part("model", b"m") + part("x", b"a--bound--b") + END)
    assert (form.get("model"), form.get("x")) == ("m", "a--bound--b")


def headed(line: bytes) -> bytes:
    return b"--bound\r\n" + line + b"\r\n\r\n9\r\n" + FORM


HIDDEN = {
    "name in a filename": b'content-disposition: form-data; filename="; name=x"; name="priority"',
    "extended name": b"content-disposition: form-data; name*=utf-8''priority",
    "two names": b'content-disposition: form-data; name="x"; name="priority"',
    "escaped name": b'content-disposition: form-data; name="prio\\rity"',
    "two dispositions": b"content-disposition: form-data; name=x\r\n"
    b"content-disposition: form-data; name=priority",
    "no name": b"content-disposition: form-data",
    "no disposition": b"content-type: text/plain",
    "folded": b"content-disposition: form-data;\r\n name=priority",
    "bare line feed": b"x: y\ncontent-disposition: form-data; name=priority",
    "bare return": b"x: y\rcontent-disposition: form-data; name=priority",
    "space before colon": b"content-disposition : form-data; name=priority",
    "other parameter": b"content-disposition: form-data; x=y; name=priority",
    "attachment": b"content-disposition: attachment; name=priority",
}


@pytest.mark.parametrize("name", HIDDEN)
def test_no_field_can_hide(name: str):
    try:
        form = read(headed(HIDDEN[name]))
    except InvalidRequest:
        return
    assert form.splice({}, ["priority"]) == FORM


@pytest.mark.parametrize(
    "content_type",
    [
        b"multipart/form-data; xboundary=bound",
        b"multipart/form-data; boundary=other; boundary=bound",
        b'multipart/form-data; x="; boundary=other"; boundary=bound',
        b"multipart/form-data; boundary*=bound",
        b'multipart/form-data; boundary="bo\\und"',
        b"multipart/mixed; boundary=bound",
    ],
)
def test_a_boundary_that_could_be_another_is_refused(content_type: bytes):
    with pytest.raises(InvalidRequest):
        read(FORM, content_type)


@pytest.mark.parametrize(
    "raw",
    [
        part("x", b"a\r\n--boundless") + FORM,
        FORM.removesuffix(END) + b"--bound--\r\n" + part("priority", b"9") + END,
        b"--bound \r\n" + FORM,
    ],
    ids=["prefix", "after the end", "padding"],
)
def test_a_delimiter_that_could_be_none_is_refused(raw: bytes):
    with pytest.raises(InvalidRequest):
        read(raw)


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"nothing",
        FORM.removesuffix(END),
        b"--bound\r\nno blank line\r\n--bound--\r\n",
        part("a", b"") * 201 + END,
        b"--bound\r\n" + b"x" * 20_000 + b"\r\n\r\nv\r\n" + END,
    ],
    ids=["empty", "no boundary", "no end", "no head", "many parts", "long head"],
)
def test_malformed_forms_are_refused(raw: bytes):
    with pytest.raises(InvalidRequest) as caught:
        read(raw)
    assert caught.value.status == 400


def test_a_repeated_field_that_counts_is_refused():
    with pytest.raises(InvalidRequest, match="more than one field 'model'"):
        read(part("model", b"a") + FORM)
    assert read(part("x", b"1") + part("x", b"2") + FORM).get("x") == "1"


def test_a_form_without_a_boundary_is_refused():
    with pytest.raises(InvalidRequest, match="boundary"):
        read(FORM, b"multipart/form-data")


@given(st.binary(max_size=80), st.booleans())
def test_any_bytes_are_a_form_or_refused(noise: bytes, inside: bool):  # noqa: FBT001 - given by position
    raw = part("model", b"m") + part("file", noise) + END if inside else noise
    try:
        form = read(raw)
    except InvalidRequest:
        return
    assert form.splice({"model": b'"n"'})


@given(st.binary(max_size=60))
def test_what_is_not_edited_keeps_its_bytes(value: bytes):
    raw = part("file", value) + part("model", b"m") + END
    assert (
        read(raw).splice({"model": b'"other"'})
        == part("file", value) + part("model", b"other") + END
    )
