"""What is no text in a request counts for what engines say of it, not for its bytes."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.asking import a_request

from forebay.gateway import multipart, wire
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.gateway.media import FIRST_GUESS, NONE, Media, MediaTokens, media_of
from forebay.gateway.prefix_text import prompt_text
from forebay.policies.contracts import Outcome, Request, Route

PICTURE = "data:image/png;base64," + "iVBOR" * 2000
LINK = "https://example.com/a.png"
TEXT = {"type": "text", "text": "what is this?"}


def body(content: object, member: str = "messages") -> wire.Body:
    said = {member: [{"role": "user", "content": content}]}
    return wire.read(json.dumps(said).encode(), READ_OR_WRITTEN)


def length(value: object) -> int:
    return len(json.dumps(value))


URL = {"url": PICTURE, "detail": "high"}
SOUND = {"data": PICTURE, "format": "wav"}
BASE64 = {"type": "base64", "media_type": "image/png", "data": PICTURE}


@pytest.mark.parametrize(
    ("part", "medium"),
    [
        ({"type": "image_url", "image_url": URL}, URL),
        ({"type": "image_url", "image_url": {"url": LINK}}, {"url": LINK}),
        ({"type": "input_image", "image_url": PICTURE}, PICTURE),
        ({"type": "input_audio", "input_audio": SOUND}, SOUND),
        ({"type": "video_url", "video_url": URL}, URL),
        ({"type": "file", "file": {"file_data": PICTURE}}, {"file_data": PICTURE}),
        ({"type": "input_file", "file_data": PICTURE}, PICTURE),
        ({"type": "image", "source": BASE64}, BASE64),
        ({"type": "tool_result", "content": [{"type": "image", "source": BASE64}]}, BASE64),
        ({"type": "image_embeds", "image_embeds": PICTURE}, PICTURE),
        ({"type": "image_url", "image_url": URL, "file": None, "source": None}, URL),
    ],
)
@pytest.mark.parametrize("route", [Route.CHAT, Route.MESSAGES, Route.RESPONSES])
def test_each_api_says_it_otherwise(part: dict[str, Any], medium: object, route: Route):
    member = "input" if route is Route.RESPONSES else "messages"
    read = media_of(body([TEXT, part, part], member), route)
    assert read == Media(2, 2 * length(medium))


@pytest.mark.parametrize(
    "content",
    [
        "a [picture](data:image/png;base64,AAAA) in text",
        [TEXT],
        ["[", TEXT],
        [{**TEXT, "image_url": None, "input_audio": None, "file": None}],
        [{"type": "search_result", "source": LINK, "content": [TEXT]}],
        [{"type": "text", "text": '{"image_url": "x"}'}],
        [{"type": "document", "source": {"type": "text", "data": "words " * 500}}],
        [{"type": "document", "source": {"type": "content", "content": [TEXT]}}],
        [7, None],
        {"image_url": "x"},
        7,
        None,
    ],
)
def test_text_is_text_and_nonsense_is_the_engines_to_refuse(content: object):
    assert media_of(body(content), Route.CHAT) == NONE


@pytest.mark.parametrize(
    "shown",
    [
        [{"type": "input_image", "image_url": PICTURE}],
        {"type": "computer_screenshot", "image_url": PICTURE},
    ],
)
def test_what_a_call_has_put_out_may_be_a_picture(shown: object):
    item = {"type": "function_call_output", "call_id": "c", "output": shown}
    said = wire.read(json.dumps({"input": [item]}).encode(), READ_OR_WRITTEN)
    assert media_of(said, Route.RESPONSES) == Media(1, length(PICTURE))
    assert len(prompt_text(Route.RESPONSES, said)) < 4500


@pytest.mark.parametrize("output", ["text", 7, None, [7], {}])
def test_what_a_call_has_put_out_may_be_anything(output: object):
    said = wire.read(json.dumps({"input": [{"output": output}]}).encode(), READ_OR_WRITTEN)
    assert media_of(said, Route.RESPONSES) == NONE


def test_a_part_with_nulls_is_as_it_was_in_a_text():
    nulls = [{**TEXT, "image_url": None, "source": "s"}]
    text = prompt_text(Route.CHAT, body(nulls))
    assert text == b"user\x1f" + msgspec.json.encode(nulls, order="deterministic") + b"\x1e"


def test_other_routes_bring_none():
    parts = [{"type": "image_url", "image_url": URL}]
    assert media_of(body(parts), Route.EMBEDDINGS) == NONE
    assert media_of(wire.read(b'{"prompt": ["a"]}', READ_OR_WRITTEN), Route.COMPLETIONS) == NONE


def test_an_upload_is_one():
    head = b'--b\r\ncontent-disposition: form-data; name="%b"\r\n\r\n%b\r\n'
    raw = head % (b"model", b"m") + head % (b"file", bytes(5000)) + b"--b--\r\n"
    form = multipart.read(raw, b"multipart/form-data; boundary=b", READ_OR_WRITTEN)
    assert media_of(form, Route.TRANSCRIPTIONS) == Media(1, 5000)


CRUMBS = {
    "parts": b'[{"content": [%s]}]' % b",".join([b'{"image_url": ""}'] * 60_000),
    "strings": b'[{"content": [{"image_url": "x"}%s]}]' % (b',""' * 1_100_000),
    "messages": b'[{"content": [{"image_url": "x"}]}%s]' % (b',{"content": []}' * 60_000),
    "a source": b'[{"content": [{"source": {"data": [0%s]}}]}]' % (b",0" * 1_100_000),
}


def test_crumbs_in_a_body_of_ordinary_length_are_not_looked_at_either():
    crumbs = b",".join([b"{}"] * 20_000 + [b'{"file":1}'] * 31_000)
    said = wire.read(b'{"messages": [{"content": [%b]}]}' % crumbs, READ_OR_WRITTEN)
    assert len(said.raw) < wire.LARGE
    assert media_of(said, Route.CHAT) is NONE


@pytest.mark.parametrize("crumbs", CRUMBS.values(), ids=CRUMBS)
def test_more_values_than_anybody_means_are_not_looked_at(crumbs: bytes):
    said = wire.read(b'{"messages": %s}' % crumbs, READ_OR_WRITTEN)
    assert media_of(said, Route.CHAT) == NONE
    assert prompt_text(Route.CHAT, said) == b""


def test_many_pictures_are_no_longer_in_a_text_than_in_the_body():
    parts: list[Any] = [{"type": "image_url", "image_url": LINK}] * 20_000
    said = body(parts)
    assert media_of(said, Route.CHAT).number == 20_000
    text = prompt_text(Route.CHAT, said)
    assert len(text) < 256 * 4096 + 2 * len(said.raw)
    assert prompt_text(Route.CHAT, body(parts[:19_000])).removesuffix(b"]\x1e") in text


def test_what_is_nested_without_end_is_not_followed():
    part: dict[str, Any] = {"type": "image_url", "image_url": "x"}
    for _ in range(200):
        part = {"type": "tool_result", "content": [part]}
    assert media_of(body([part]), Route.CHAT) == NONE
    assert prompt_text(Route.CHAT, body([part])).count(b"tool_result") == 200


PARTS = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "image_url", "source", "content", "file", "text"]), inner
        )
    ),
)


@given(PARTS)
def test_any_content_is_read_and_no_more_is_left_out_than_there_is(content: object):
    said = body(content)
    found = media_of(said, Route.CHAT)
    assert 0 <= found.size <= len(said.raw)
    assert (found.number == 0) == (found.size == 0)
    prompt_text(Route.CHAT, said)


def test_in_a_prompts_text_a_picture_is_as_long_as_its_tokens():
    def text(picture: str) -> bytes:
        return prompt_text(Route.CHAT, body([TEXT, {"type": "image_url", "image_url": picture}]))

    assert 4 * FIRST_GUESS < len(text(PICTURE)) == len(text(LINK)) < 4 * FIRST_GUESS + 200
    assert text(PICTURE) == text(PICTURE) != text(LINK)


def asked(media: int, media_tokens: int, text: int = 10) -> Request:
    estimate = text + media_tokens
    return a_request(prompt_tokens_estimate=estimate, media=media, media_tokens=media_tokens)


def told(prompt_tokens: int | None) -> Outcome:
    return Outcome("r", "p", Route.CHAT, "acme", prompt_tokens=prompt_tokens)


def test_what_one_counts_for_is_learnt():
    media = MediaTokens()
    for _ in range(60):
        each = round(media.tokens)
        media.learn(asked(3, 3 * each), told(10 + 3 * 576))
    assert round(media.tokens, -1) == 580


def test_nothing_is_learnt_of_text_or_of_what_was_not_counted():
    media = MediaTokens()
    media.learn(asked(0, 0), told(90_000))
    media.learn(asked(2, 2048), told(None))
    for nonsense in (0, -5):
        media.learn(asked(2, 2048), told(nonsense))
    assert media.tokens == FIRST_GUESS


@pytest.mark.parametrize("true", [0.3, 4.0])
def test_how_many_tokens_text_has_is_not_taken_for_pictures(true: float):
    media = MediaTokens()
    for text in (50, 250, 1000, 20_000) * 50:
        for number in (1, 5):
            each = round(media.tokens)
            said = told(number * 576 + round(true * text))
            media.learn(asked(number, number * each, text), said)
    assert 576 - 256 < media.tokens < 576 + 3 * 256


def test_no_answer_makes_one_count_for_nothing_or_for_everything():
    media = MediaTokens()
    for tokens in (0, 1 << 60) * 200:
        media.learn(asked(1, 1024), told(tokens))
        assert 1.0 <= media.tokens <= 32_768
