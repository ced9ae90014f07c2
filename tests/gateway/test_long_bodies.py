"""A long body is read, measured and named as a short one is, and without copies of it."""

from __future__ import annotations

import json
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_128_hexdigest

from forebay.gateway import wire
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.gateway.media import Media, media_of
from forebay.gateway.prefix_text import prompt_text
from forebay.policies.contracts import InvalidRequest, Route

if TYPE_CHECKING:
    from collections.abc import Callable

LONG = "data:image/png;base64," + "iVBOR" * 200_000
OTHER = LONG[:-1] + "S"
SHORT = "data:image/png;base64,iVBOR"
TEXT = {"type": "text", "text": "what is this, [and] that?"}
URL, SOUND = {"url": LONG, "detail": "high"}, {"data": LONG, "format": "wav"}
BASE64 = {"type": "base64", "media_type": "image/png", "data": LONG}
PARTS: list[tuple[dict[str, Any], object]] = [
    ({"type": "image_url", "image_url": URL}, URL),
    ({"type": "input_image", "image_url": LONG}, LONG),
    ({"type": "input_audio", "input_audio": SOUND}, SOUND),
    ({"type": "image", "source": BASE64}, BASE64),
    ({"type": "tool_result", "content": [{"type": "image", "source": BASE64}]}, BASE64),
]
STYLES: dict[str, dict[str, Any]] = {
    "compact": {"separators": (",", ":")},
    "spaced": {},
    "indented": {"indent": 1},
}
each_style = pytest.mark.parametrize("style", STYLES.values(), ids=STYLES)


def read(raw: bytes) -> wire.Body:
    return wire.read(raw, READ_OR_WRITTEN)


def body(*contents: object, member: str = "messages", **more: object) -> wire.Body:
    said = [{"role": "user", "content": content} for content in contents]
    return read(json.dumps({"model": "m", member: said, **more}).encode())


def member_of(route: Route) -> str:
    return "input" if route is Route.RESPONSES else "messages"


def most_memory(work: Callable[[], object]) -> int:
    """Return how many more bytes there were at one time."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@each_style
def test_reading_makes_no_copy(style: dict[str, Any]):
    raw = json.dumps({"messages": LONG, "model": "m", "tools": [LONG]}, **style).encode()
    assert most_memory(lambda: read(raw)) < wire.LARGE / 2


def test_editing_makes_one_copy():
    said = body(LONG)
    assert most_memory(lambda: said.splice({"model": b'"n"', "n": b"2"})) < 1.1 * len(said.raw)


@pytest.mark.parametrize(("part", "medium"), PARTS)
@pytest.mark.parametrize("route", [Route.CHAT, Route.MESSAGES, Route.RESPONSES])
def test_pictures_are_counted_without_a_copy(part: dict[str, Any], medium: object, route: Route):
    said = body([TEXT, part], member=member_of(route))
    assert media_of(said, route) == Media(1, len(json.dumps(medium)))
    assert most_memory(lambda: media_of(said, route)) < wire.LARGE / 2


def test_there_are_none_in_a_long_text():
    assert media_of(body(LONG), Route.CHAT) == Media(0, 0)
    assert media_of(body(LONG, stop=["[", "["]), Route.CHAT) == Media(0, 0)
    assert media_of(body([TEXT, {"type": "text", "text": LONG}]), Route.CHAT) == Media(0, 0)


@pytest.mark.parametrize("part", [part for part, _ in PARTS])
@pytest.mark.parametrize("route", [Route.CHAT, Route.MESSAGES, Route.RESPONSES])
def test_a_prompt_is_named_without_a_copy(part: dict[str, Any], route: Route):
    said = body([TEXT, part], member=member_of(route))
    assert most_memory(lambda: prompt_text(route, said)) < wire.LARGE / 2


ANYTHING = st.recursive(
    st.none() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "image_url", "source", "content", "output", "text"]), inner
        )
    ),
)


def put(value: object, parts: list[Any], deep: int) -> list[Any]:
    """Return parts with one more, that shows a picture `deep` results down."""
    last: dict[str, Any] = {"type": "image_url", "image_url": value}
    for _ in range(deep):
        last = {"type": "tool_result", "content": [last]}
    return [*parts, last]


@given(st.lists(ANYTHING, max_size=3), ANYTHING, st.integers(0, 1))
def test_but_for_its_digest_a_long_picture_is_named_as_a_short_one(
    parts: list[Any], other: object, deep: int
):
    def text(value: str) -> bytes:
        return prompt_text(Route.CHAT, body(other, put(value, parts, deep), tools=[other]))

    def stand_in(value: str) -> bytes:
        digest = xxh3_128_hexdigest(json.dumps(value).encode())
        return (digest * 128).encode()

    assert text(LONG).replace(stand_in(LONG), stand_in(SHORT)) == text(SHORT)


def test_a_picture_that_is_a_picture_at_any_depth_is_some_text():
    for deep in range(2, 6):
        said = body(put(LONG, [TEXT], deep))
        assert prompt_text(Route.CHAT, said).count(b"tool_result") == deep


def test_long_pictures_are_told_apart_and_a_conversation_keeps_its_text_as_a_prefix():
    one, other = ([TEXT, {"type": "image_url", "image_url": {"url": u}}] for u in (LONG, OTHER))
    text = prompt_text(Route.CHAT, body(one))
    assert len(text) == len(prompt_text(Route.CHAT, body(other)))
    assert prompt_text(Route.CHAT, body(one, "and?")).startswith(text)
    assert not prompt_text(Route.CHAT, body(other, "and?")).startswith(text[: len(text) // 2])


def test_a_number_that_nobody_can_read_is_refused_in_a_long_body_too():
    raw = json.dumps({"messages": [{"content": [{"x": 0, "image_url": LONG}]}]}).encode()
    said = read(raw.replace(b'"x": 0', b'"x": 1e999'))
    with pytest.raises(InvalidRequest, match="the value of 'messages' cannot be read"):
        prompt_text(Route.CHAT, said)


@each_style
@pytest.mark.parametrize("names", [("model", "x", "y"), ("x", "model", "y"), ("x", "y", "model")])
def test_members_around_long_ones_are_edited_in_place(
    style: dict[str, Any], names: tuple[str, ...]
):
    values = {"model": "m", "x": LONG, "y": [OTHER, '"model": "m"']}
    raw = json.dumps({name: values[name] for name in names}, **style).encode()
    edited = read(raw).splice({"model": b'"n"', "n": b"2"})
    assert json.loads(edited) == {**values, "model": "n", "n": 2}
    assert edited.replace(b'"n"', b'"m"', 1).startswith(raw[:-3])
    assert json.loads(read(raw).splice({}, ["x"])) == {"model": "m", "y": values["y"]}


@pytest.mark.parametrize("last", [OTHER, LONG[:-10], "short"])
def test_a_repeated_long_member_is_not_taken_for_the_other(last: str):
    first, second = json.dumps(LONG), json.dumps(last)
    raw = f'{{"x":{first},"x":{second},"model":"m"}}'.encode()
    with pytest.raises(InvalidRequest, match="repeats long members"):
        read(raw)


def test_what_is_crumbled_is_seen_wherever_it_lies():
    crumbs = b"[" + b",".join([b"{}"] * 50_001) + b"]"
    raw = b'{"a":"%b","b":%b,"c":"%b"}' % (LONG.encode(), crumbs, LONG.encode())
    assert read(raw).crumbled
    assert not read(raw.replace(b"{}", b"0 ", 2)).crumbled
