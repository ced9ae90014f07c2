"""Bodies are read once and edited in place: only the named members change, byte for byte."""

from __future__ import annotations

import json
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.gateway import wire
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.policies.contracts import InvalidRequest

WHITE = st.text(alphabet=" \t\r\n", max_size=3)
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=12)
NAMES = ("model", "messages", "stream", "stream_options", "priority", "n", "m\\o", "", "model\x00")
KEY = st.sampled_from(NAMES) | TEXT
SCALAR = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
VALUE = st.recursive(
    SCALAR.filter(lambda value: value not in (float("inf"), float("-inf"))),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=6,
)


@st.composite
def literal(draw: st.DrawFn, text: str) -> str:
    """Write a string in one of the many ways that JSON has: any character may be escaped."""
    plain = json.dumps(text, ensure_ascii=False)
    kind = draw(st.sampled_from(["plain", "ascii", "escaped"]))
    if kind == "plain":
        return plain
    if kind == "ascii":
        return json.dumps(text)
    units = text.encode("utf-16-be")
    escapes = (f"\\u{units[i]:02x}{units[i + 1]:02X}" for i in range(0, len(units), 2))
    return '"' + "".join(escapes) + '"'


@st.composite
def value_text(draw: st.DrawFn, value: object) -> str:
    """Write a value with any white space and any escapes."""

    def white() -> str:
        return draw(WHITE)

    if isinstance(value, str):
        return draw(literal(value))
    if isinstance(value, list):
        listed = cast("list[object]", value)
        items = [white() + draw(value_text(item)) + white() for item in listed]
        return "[" + (",".join(items) or white()) + "]"
    if isinstance(value, dict):
        pairs = [
            f"{white()}{draw(literal(key))}{white()}:{white()}{draw(value_text(item))}{white()}"
            for key, item in cast("dict[str, object]", value).items()
        ]
        return "{" + (",".join(pairs) or white()) + "}"
    return json.dumps(value)


@st.composite
def members(draw: st.DrawFn) -> tuple[list[tuple[str, str, str]], bytes]:
    """Make an object: its (key, key as written, value as written), and the whole text."""
    keys = draw(st.lists(KEY, max_size=6))
    seen: set[str] = set()
    told: list[tuple[str, str, str]] = []
    for key in keys:
        if key in seen and key in READ_OR_WRITTEN:
            continue  # refused; a test of its own
        seen.add(key)
        told.append((key, draw(literal(key)), draw(value_text(draw(VALUE)))))
    style = draw(st.sampled_from(["compact", "spaced", "wild"]))
    if style == "wild":
        texts = [
            f"{draw(WHITE)}{key}{draw(WHITE)}:{draw(WHITE)}{value}{draw(WHITE)}"
            for _, key, value in told
        ]
        text = draw(WHITE) + "{" + (",".join(texts) or draw(WHITE)) + "}" + draw(WHITE)
    else:
        colon, comma = (":", ",") if style == "compact" else (": ", ", ")
        text = "{" + comma.join(key + colon + value for _, key, value in told) + "}"
    return told, text.encode()


def no_nan(name: str) -> float:
    raise AssertionError(name)


def parse(raw: bytes) -> Any:
    return json.loads(raw, parse_constant=no_nan)


EDITS = st.dictionaries(
    st.sampled_from(["model", "stream_options", "priority", "cache_salt"]),
    st.sampled_from([b'"other"', b'{"include_usage":true}', b"3", b"null"]),
    max_size=3,
)
DROPS = st.lists(st.sampled_from([name for name in NAMES if "\x00" not in name]), max_size=3)


@given(members(), EDITS, DROPS)
def test_a_spliced_body_parses_as_the_original_but_for_the_named_members(
    made: tuple[list[tuple[str, str, str]], bytes], replace: dict[str, bytes], drop: list[str]
):
    _, raw = made
    dropped = [key for key in drop if key not in replace]
    spliced = wire.read(raw, READ_OR_WRITTEN).splice(replace, dropped)
    wanted = {key: value for key, value in parse(raw).items() if key not in dropped}
    wanted.update({key: parse(value) for key, value in replace.items()})
    assert parse(spliced) == wanted


@given(members(), EDITS, DROPS)
def test_members_that_are_not_edited_keep_their_bytes_and_order(
    made: tuple[list[tuple[str, str, str]], bytes], replace: dict[str, bytes], drop: list[str]
):
    told, raw = made
    dropped = [key for key in drop if key not in replace]
    spliced = wire.read(raw, READ_OR_WRITTEN).splice(replace, dropped)
    position = 0
    for key, written, value in told:
        if key in dropped:
            continue
        position = spliced.index(written.encode(), position) + len(written.encode())
        if key not in replace:
            position = spliced.index(value.encode(), position) + len(value.encode())


@given(members())
def test_a_body_without_edits_is_the_body_as_it_came(
    made: tuple[list[tuple[str, str, str]], bytes],
):
    _, raw = made
    body = wire.read(raw, READ_OR_WRITTEN)
    assert body.splice({}) is raw
    assert body.splice({}, ["not there"]) == raw
    assert {key: parse(bytes(value)) for key, value in body.members.items()} == parse(raw)


@given(members())
def test_what_is_spliced_in_twice_is_as_spliced_in_once(
    made: tuple[list[tuple[str, str, str]], bytes],
):
    _, raw = made
    once = wire.read(raw, READ_OR_WRITTEN).splice({"model": b'"x"'}, ["n"])
    assert wire.read(once, READ_OR_WRITTEN).splice({"model": b'"x"'}, ["n"]) == once


@given(st.sampled_from(sorted(READ_OR_WRITTEN)), literal("model"), members())
def test_a_repeated_member_that_counts_is_refused(
    name: str, written: str, made: tuple[list[tuple[str, str, str]], bytes]
):
    told, _ = made
    written = written if name == "model" else json.dumps(name)
    texts = [f"{key}:{value}" for key_, key, value in told if key_ != name]
    texts = [f"{written}:1", *texts, f'"{name}":2']
    with pytest.raises(InvalidRequest, match="more than once"):
        wire.read(("{" + ",".join(texts) + "}").encode(), READ_OR_WRITTEN)


def refused(raw: bytes) -> str:
    with pytest.raises(InvalidRequest) as caught:
        wire.read(raw, READ_OR_WRITTEN)
    assert caught.value.status == 400
    return caught.value.message


def test_other_repeated_members_pass():
    raw = b'{"x":1,"x":2,"model":"a"}'
    assert wire.read(raw, READ_OR_WRITTEN).splice({"model": b'"b"'}) == (
        b'{"x":1,"x":2,"model":"b"}'
    )


def test_a_model_inside_strings_and_messages_is_left_alone():
    raw = b'{"messages":[{"model":"in"}],"s":"\\"model\\":\\"no\\"","model":"a","t":{"model":"in"}}'
    assert wire.read(raw, READ_OR_WRITTEN).splice({"model": b'"b"'}) == raw.replace(
        b'"model":"a"', b'"model":"b"'
    )


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "empty"),
        (b"[]", "JSON object"),
        (b"1", "JSON object"),
        (b"null", "JSON object"),
        (b'"CANARY"', "JSON object"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'{"a":"\xff"}', "not UTF-8 (byte 6)"),
        (b'{"CANARY":"\xc3"}', "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        (b'{"a":NaN}', "not valid JSON"),
        (b'{"a":-Infinity}', "not valid JSON"),
        (b'{"CANARY":"\\ud800"}', "not valid JSON"),
        (b'{"CANARY":1,}', "not valid JSON"),
        (b"{'a':1}", "not valid JSON"),
        (b'{"a":1}{}', "not valid JSON"),
        (b'{"a":1} x', "not valid JSON"),
        (b'{"a":01}', "not valid JSON"),
        (b'{"a":"CANARY', "not valid JSON"),
        (b'{"a":"\x01"}', "not valid JSON"),
        (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
    ],
    ids=lambda value: value if isinstance(value, str) else value[:16].decode("latin-1"),
)
def test_what_is_no_plain_json_object_is_refused_without_quoting_it(raw: bytes, words: str):
    message = refused(raw)
    assert words in message
    assert "CANARY" not in message


@given(st.binary(max_size=60) | st.text('{}[]":,\\unaNtrue01.-e \n\ud800', max_size=40))
def test_any_bytes_are_read_as_json_or_refused(raw: bytes | str):
    data = raw if isinstance(raw, bytes) else raw.encode("utf-8", "surrogatepass")
    try:
        body = wire.read(data, READ_OR_WRITTEN)
    except InvalidRequest:
        return
    assert parse(body.splice({"model": b'"m"'}))["model"] == "m"


def test_dropping_the_only_member_leaves_an_object():
    def edited(raw: bytes, replace: dict[str, bytes]) -> Any:
        return parse(wire.read(raw, READ_OR_WRITTEN).splice(replace, ["x"]))

    assert edited(b' { "x" : 1 } ', {"model": b'"b"'}) == {"model": "b"}
    assert edited(b'{"x":1}', {}) == {}
    assert edited(b"{}", {"model": b'"b"'}) == {"model": "b"}
