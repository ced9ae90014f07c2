"""Bodies made to break the gateway or to hold up everybody else: refused, cheaply."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.adapters.sim_text import encode, render
from forebay.gateway import intake, wire
from forebay.policies.contracts import InvalidRequest

if TYPE_CHECKING:
    from tests.journeys.conftest import Go, Kit

HUGE = b"1e999"
FIELDS = ["model", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n"]
LONG = b"[" + b"{}," * 40_000 + b"{}]"


def read(raw: bytes) -> wire.Body:
    return wire.read(raw, intake.READ_OR_WRITTEN)


@pytest.mark.parametrize("value", [HUGE, b"-1e999", b'{"a":1e999}', b"9" * 5000, b"[[1e999]]"])
@pytest.mark.parametrize("field", [*FIELDS, "previous_response_id"])
def test_a_number_too_large_to_be_one_is_the_callers_mistake(
    go: Go, kit: Kit, field: str, value: bytes
):
    body = b'{"messages":[],"stream":true,"model":"m"}'
    body = body.replace(b'"stream":true', b'"%b":%b' % (field.encode(), value))
    if field == "model":
        body = body.replace(b',"model":"m"', b"")
    path = "/v1/responses" if field == "previous_response_id" else "/v1/chat/completions"

    async def scenario() -> int:
        async with kit.running(kit.config()) as gateway:
            return (await gateway.ask(kit.post(body, path))).status

    assert go(scenario()) in (400, 404)


@pytest.mark.parametrize(
    "raw",
    [
        b"{" + b",".join(b'"k%d":1' % i for i in range(wire.MOST_MEMBERS + 1)) + b"}",
        b"{" + b'"k":1,' * wire.MOST_MEMBERS + b'"k":1}',
    ],
    ids=["different", "repeated"],
)
def test_thousands_of_members_are_refused(raw: bytes):
    with pytest.raises(InvalidRequest, match="more than 1000 members"):
        read(raw)


def test_a_long_value_in_an_unusual_style_is_not_looked_through():
    body = read(b'{ "a" : ' + LONG + b' , "b":1 }')
    assert body.splice({"b": b"2"}) == b'{ "a" : ' + LONG + b' , "b":2 }'


def test_a_long_member_may_not_be_repeated():
    with pytest.raises(InvalidRequest, match="repeats long members"):
        read(b'{"a" :' + LONG + b',"a":1}')


def test_a_value_that_only_begins_like_the_last_of_its_key_ends_where_it_ends():
    body = read(b'{"a": 12 ,"a":1,"b":"x"}')
    assert body.splice({"b": b"2"}) == b'{"a": 12 ,"a":1,"b":2}'
    assert body.splice({}, ["a"]) == b'{"b":"x"}'


@given(
    st.lists(st.one_of(st.text(max_size=4), st.lists(st.integers(0, 9), max_size=3)), max_size=5)
)
def test_prompts_are_counted_as_they_are_listed(prompts: list[object]):
    raw = msgspec.json.encode({"prompt": prompts})
    assert intake.answers(read(raw)) == max(1, len(prompts))


@pytest.mark.parametrize(
    ("prompt", "count"),
    [
        (b'"' + b"[" * 100_000 + b'"', 1),
        (b"[" + b"1," * 100_000 + b"1]", 1),
        (b"[" + b'"a",' * 100_000 + b'"a"]', 100_001),
        (b"[" + b"[1]," * 100_000 + b"[1]]", 100_001),
        (b"[ [" + b"1," * 100_000 + b"1]]", 1),
    ],
    ids=["text", "tokens", "texts", "lists of tokens", "one list"],
)
def test_long_prompts_are_counted_without_decoding_them(prompt: bytes, count: int):
    assert intake.answers(read(b'{"prompt":' + prompt + b"}")) == count


def test_an_embedded_engine_reads_no_more_of_a_prompt_than_a_context_can_hold():
    turns = [("user", "x" * 999_999), ("user", "abc"), ("user", "x" * 3_000_000)]
    assert len(render(turns)) == 2 * 3 + 1 + len(encode("x" * 999_999)) + 1 + len(
        encode("x" * 48574)
    )
    assert encode("x" * 3_000_000) == encode("x" * (1 << 20))
