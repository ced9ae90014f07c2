"""The scanner changes nothing but what it must, wherever the bytes are cut."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.gateway.dialects import ANTHROPIC, OPENAI, RESPONSES, Dialect
from forebay.gateway.sse import LOOK_LIMIT, WINDOW, Scanner

TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=10)
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
DETAILS = {**USAGE, "prompt_tokens_details": {"cached_tokens": 3}}
LOGPROBS = {"content": [{"token": "é", "logprob": -0.1, "bytes": [195], "top_logprobs": []}]}


class Piece(NamedTuple):
    """A part of a transcript."""

    raw: bytes
    usage_only: bool = False


@st.composite
def written(draw: st.DrawFn, said: object) -> str:
    """Write an event's JSON in the styles that engines have."""
    separators = draw(st.sampled_from([(",", ":"), (", ", ": ")]))
    return json.dumps(said, separators=separators, ensure_ascii=draw(st.booleans()))


@st.composite
def event(draw: st.DrawFn, said: object, ending: str, name: str = "") -> bytes:
    """Frame an event: with or without its space, comments before it, over several lines."""
    space = draw(st.sampled_from(["", " "]))
    lines = draw(st.sampled_from([[], [], [": ping"], [":", "id: 1"], ["retry: 3"]])).copy()
    if name:
        lines.append(f"event: {name}")
    text = said if isinstance(said, str) else draw(written(said))
    if text.startswith("{") and draw(st.integers(0, 4)) == 0:
        lines += [f"data:{space}{{", f"data:{space}{text[1:]}"]
    else:
        lines.append(f"data:{space}{text}")
    return "".join(line + ending for line in [*lines, ""]).encode()


def chunk(delta: dict[str, Any], index: int = 0, **rest: Any) -> dict[str, Any]:
    choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": None, **rest}
    return {"id": "c", "object": "chat.completion.chunk", "choices": [choice], "usage": None}


@st.composite
def deltas(draw: st.DrawFn) -> dict[str, Any]:
    text = draw(TEXT)
    call = {"index": 0, "function": {"name": "f", "arguments": text}}
    return draw(
        st.sampled_from(
            [
                {"content": text},
                {"reasoning_content": text},
                {"reasoning": text, "content": None},
                {"role": "assistant", "content": ""},
                {"tool_calls": [call]},
            ]
        )
    )


@st.composite
def transcripts(draw: st.DrawFn) -> list[Piece]:
    """Make a chat stream: choices, tools, reasoning, comments, usage at its end or in each."""
    ending = draw(st.sampled_from(["\n", "\r\n"]))
    pieces = [
        Piece(draw(event(chunk(delta, draw(st.integers(0, 2))), ending)))
        for delta in draw(st.lists(deltas(), max_size=4))
    ]
    if draw(st.booleans()):
        pieces.insert(draw(st.integers(0, len(pieces))), Piece(f": comment{ending * 2}".encode()))
    if draw(st.booleans()):
        pieces.append(Piece(draw(event(chunk({"content": "é"}, logprobs=LOGPROBS), ending))))
    pieces.append(Piece(draw(event(chunk({}, finish_reason="stop"), ending))))
    if draw(st.booleans()):
        said: dict[str, Any] = {"id": "c", "choices": [], "usage": DETAILS}
        pieces.append(Piece(draw(event(said, ending)), usage_only=True))
    pieces.append(Piece(draw(event("[DONE]", ending))))
    return pieces


def scan(scanner: Scanner, *parts: bytes) -> bytes:
    return b"".join([scanner.feed(part) for part in parts if part]) + scanner.flush()


def learnt(scanner: Scanner) -> dict[str, Any]:
    seen = scanner.seen
    return {name: getattr(seen, name) for name in dir(seen) if name[0] != "_"}


def without_usage(pieces: list[Piece]) -> bytes:
    return b"".join(piece.raw for piece in pieces if not piece.usage_only)


@settings(max_examples=25)
@given(transcripts())
def test_every_split_gives_the_same_bytes_and_knowledge(pieces: list[Piece]):
    whole = b"".join(piece.raw for piece in pieces)
    told = any(piece.usage_only for piece in pieces)
    for strip in (False, True):
        wanted = without_usage(pieces) if strip else whole
        reference = Scanner(OPENAI, strip_usage=strip)
        assert scan(reference, whole) == wanted
        knowledge = learnt(reference)
        assert knowledge["done"]
        assert not knowledge["error"]
        assert knowledge["finish_reason"] == "stop"
        assert knowledge["prompt_tokens"] == (7 if told else None)
        for cut in range(1, len(whole)):
            scanner = Scanner(OPENAI, strip_usage=strip)
            assert scan(scanner, whole[:cut], whole[cut:]) == wanted
            assert learnt(scanner) == knowledge


@given(transcripts(), st.randoms(use_true_random=False))
def test_many_splits_give_the_same_bytes(pieces: list[Piece], random: Any):
    whole = b"".join(piece.raw for piece in pieces)
    cuts = sorted(random.randrange(len(whole) + 1) for _ in range(random.randrange(20)))
    parts = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    singles = [whole[i : i + 1] for i in range(len(whole))]
    for split in (parts, singles):
        for strip in (False, True):
            scanner = Scanner(OPENAI, strip_usage=strip)
            assert scan(scanner, *split) == (without_usage(pieces) if strip else whole)
            assert scanner.seen.done


@settings(max_examples=40)
@given(transcripts())
def test_nothing_is_delayed_but_the_event_in_progress_while_stripping(pieces: list[Piece]):
    whole = b"".join(piece.raw for piece in pieces)
    for cut in range(1, len(whole)):
        scanner = Scanner(OPENAI, strip_usage=False)
        assert scanner.feed(whole[:cut]) == whole[:cut]
    scanner, given_back, ends = Scanner(OPENAI, strip_usage=True), b"", b""
    for piece in pieces:
        given_back += scanner.feed(piece.raw)
        ends += b"" if piece.usage_only else piece.raw
        assert given_back == ends


@given(st.lists(st.binary(max_size=30) | st.sampled_from([b"\n\n", b"data: {", b"\r\n\r\n"])))
def test_any_bytes_pass_as_they_are(parts: list[bytes]):
    scanner = Scanner(OPENAI, strip_usage=False)
    assert scan(scanner, *parts) == b"".join(parts)
    stripping = Scanner(OPENAI, strip_usage=True)
    assert scan(stripping, *parts) == b"".join(parts)


def usage_event(**rest: Any) -> bytes:
    return b"data: %b\n\n" % json.dumps({"choices": [], "usage": USAGE, **rest}).encode()


def delta(text: str) -> bytes:
    return b"data: %b\n\n" % json.dumps(chunk({"content": text})).encode()


DONE = b"data: [DONE]\n\n"


def test_only_the_event_that_exists_for_its_usage_is_taken_out():
    whole = b"".join(
        [
            delta("a"),
            b'data: {"choices":[{"index":0,"delta":{}}],"usage":{"prompt_tokens":1}}\n\n',
            b'data: {"choices":[],"usage":null}\n\n',
            b'data: {"choices":[],"prompt_filter_results":[]}\n\n',
            delta('{"choices":[],"usage":{"prompt_tokens":1}}'),
            usage_event(),
            DONE,
        ]
    )
    scanner = Scanner(OPENAI, strip_usage=True)
    assert scan(scanner, whole) == whole.replace(usage_event(), b"")


def test_a_large_read_is_stripped_and_understood_at_its_end():
    body = b"".join(delta("word " * 20) for _ in range(200))
    assert len(body) > 4 * WINDOW
    scanner = Scanner(OPENAI, strip_usage=True)
    assert scanner.feed(delta("first")) == delta("first")
    assert scanner.feed(body + usage_event() + DONE) == body + DONE
    assert (scanner.seen.done, scanner.seen.output_tokens) == (True, 5)
    assert scanner.events == 202 + 1


def test_usage_is_stripped_wherever_it_is_in_a_large_read():
    body = b"".join(delta("word " * 20) for _ in range(200))
    for before, after in ((b"", body), (body, body), (body, b": " + b"x" * 3 * WINDOW + b"\n\n")):
        scanner = Scanner(OPENAI, strip_usage=True)
        scanner.feed(delta("first"))
        assert scanner.feed(before + usage_event() + after + DONE) == before + after + DONE
        assert (scanner.seen.done, scanner.seen.output_tokens) == (True, 5)


@pytest.mark.parametrize("strip", [False, True])
@pytest.mark.parametrize("size", [50_000, 300_000, LOOK_LIMIT + 100_000])
def test_an_event_past_the_limit_is_only_relayed(size: int, *, strip: bool):
    before, huge = delta("a"), b"data: " + b"x" * (LOOK_LIMIT * 3)
    whole = before + huge + b"\n\n" + usage_event() + DONE
    scanner = Scanner(OPENAI, strip_usage=strip)
    parts = [whole[i : i + size] for i in range(0, len(whole), size)]
    assert scan(scanner, *parts) == whole
    assert scanner.blind
    assert not scanner.at_boundary


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"], ids=["lf", "crlf", "cr"])
@pytest.mark.parametrize("step", [1, 1000])
def test_every_line_ending_is_understood(ending: bytes, step: int):
    whole = (delta("a") + usage_event() + DONE).replace(b"\n", ending)
    parts = [whole[i : i + step] for i in range(0, len(whole), step)]
    scanner = Scanner(OPENAI, strip_usage=True)
    assert scan(scanner, *parts) == (delta("a") + DONE).replace(b"\n", ending)
    assert (scanner.seen.done, scanner.seen.token, scanner.seen.output_tokens) == (True, True, 5)


def test_where_an_error_may_be_said():
    scanner = Scanner(OPENAI, strip_usage=False)
    boundary: list[bool] = []
    for part in (b"data: 1\n", b"\n", b": c", b"\r\n\r\n", b"data: 2"):
        scanner.feed(part)
        boundary.append(scanner.at_boundary)
    assert boundary == [False, True, False, True, False]
    scanner.flush()
    assert not scanner.at_boundary
    stripping = Scanner(OPENAI, strip_usage=True)
    stripping.feed(b"data: 1")
    assert stripping.at_boundary


MESSAGES: list[tuple[str, dict[str, Any]]] = [
    ("message_start", {"message": {"id": "m", "usage": {"input_tokens": 4, "output_tokens": 1}}}),
    ("ping", {}),
    ("content_block_start", {"index": 0, "content_block": {"type": "text", "text": ""}}),
    ("content_block_delta", {"index": 0, "delta": {"type": "text_delta", "text": "é"}}),
    ("content_block_stop", {"index": 0}),
    ("message_delta", {"delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}}),
    ("message_stop", {}),
]
RESPONSE = {"id": "resp_1", "status": "completed", "usage": {"input_tokens": 4, "output_tokens": 9}}
RESPONSES_EVENTS: list[tuple[str, dict[str, Any]]] = [
    ("response.created", {"response": {"id": "resp_1", "status": "in_progress"}}),
    ("response.output_text.delta", {"delta": "é"}),
    ("response.completed", {"response": RESPONSE}),
]


@pytest.mark.parametrize(
    ("dialect", "told", "finish"),
    [(ANTHROPIC, MESSAGES, "end_turn"), (RESPONSES, RESPONSES_EVENTS, "completed")],
    ids=["messages", "responses"],
)
@settings(max_examples=20)
@given(data=st.data())
def test_named_events_are_understood_wherever_they_are_cut(
    dialect: Dialect, told: list[tuple[str, dict[str, Any]]], finish: str, data: st.DataObject
):
    ending = data.draw(st.sampled_from(["\n", "\r\n"]))
    whole = b"".join(data.draw(event({"type": name, **said}, ending, name)) for name, said in told)
    for cut in range(1, len(whole)):
        scanner = Scanner(dialect, strip_usage=False)
        assert scan(scanner, whole[:cut], whole[cut:]) == whole
        seen = scanner.seen
        assert (seen.done, seen.error, seen.token, seen.finish_reason) == (
            True,
            False,
            True,
            finish,
        )
        assert (seen.prompt_tokens, seen.output_tokens) == (4, 9)
