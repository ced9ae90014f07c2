"""Streams made to break the scanner: nothing is lost, doubled, or looked at again and again."""

from __future__ import annotations

import re
from itertools import pairwise

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.dialects import OPENAI
from forebay.gateway.sse import LOOK_LIMIT, Scanner

USAGE = b'{"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":2,"total_tokens":3}}'
TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
EVENTS = [
    TOKEN,
    b"data: %b\n\n" % USAGE,
    b"data: a\ndata: %b\n\n" % USAGE,
    b"event: x\ndata: %b\n\n" % USAGE,
    b"id: data: %b\n\n" % USAGE,
    b": data: %b\n\n" % USAGE,
    b'data: {"choices":[{"delta":{"content":"\\"choices\\":[],\\"usage\\":{}"}}]}\n\n',
    b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":1}}\n\n',
    b'data: {"choices":[],"usage":null}\n\n',
    b"data:%b\r\n\r\n" % USAGE,
    b"data: x\r\rdata: y\n\r\n",
    b": comment\n\n",
    b"data: [DONE]\n\n",
]
_ENDS = re.compile(rb".*?(?:\n\n|\n\r\n|\r\r)", re.DOTALL)


def fed(scanner: Scanner, text: bytes, cuts: list[int]) -> bytes:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    pieces = [text[a:b] for a, b in pairwise(places)]
    return b"".join([*(scanner.feed(piece) for piece in pieces), scanner.flush()])


def asked_for(event: bytes) -> bool:
    """Whether an event is only there because usage was asked for; in plain words."""
    lines = [line for line in event.splitlines() if line.startswith(b"data:")]
    try:
        data = msgspec.json.decode(b"\n".join(line[5:].removeprefix(b" ") for line in lines))
    except msgspec.DecodeError:
        return False
    return isinstance(data, dict) and data.get("choices") == [] and data.get("usage") is not None  # type: ignore[reportUnknownMemberType] - any JSON


@settings(max_examples=400, deadline=None)
@given(st.lists(st.sampled_from(EVENTS), max_size=8), st.lists(st.integers(0, 2000), max_size=6))
def test_only_whole_usage_events_are_taken_out(parts: list[bytes], cuts: list[int]):
    text = b"".join(parts)
    whole = _ENDS.findall(text)
    rest = text[len(b"".join(whole)) :]
    expected = b"".join(event for event in whole if not asked_for(event)) + rest
    assert fed(Scanner(OPENAI, strip_usage=True), text, cuts) == expected
    assert fed(Scanner(OPENAI, strip_usage=False), text, cuts) == text


def test_an_event_in_ten_thousand_pieces_is_looked_through_once():
    scanner, piece = Scanner(OPENAI, strip_usage=True), b"y" * 100
    scanner.feed(TOKEN + b"data: ")
    for _piece in range(LOOK_LIMIT // len(piece) - 1):
        assert scanner.feed(piece) == b""
    assert len(scanner.feed(b"\n\n")) > LOOK_LIMIT - 200
    assert scanner.at_boundary
