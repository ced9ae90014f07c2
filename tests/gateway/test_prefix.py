"""A prompt's text, its blocks, and what is expected of endpoints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.asking import a_request

from forebay.gateway import wire
from forebay.gateway.config.prefix import Prefix
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.gateway.prefix import PoolPrefix
from forebay.gateway.prefix_names import tenant_salt
from forebay.gateway.prefix_text import prompt_text
from forebay.policies.contracts import Outcome, Placement, Request, Route


def body(said: object, **style: Any) -> wire.Body:
    return wire.read(json.dumps(said, **style).encode(), READ_OR_WRITTEN)


def text(said: object, route: Route = Route.CHAT, **style: Any) -> bytes:
    return prompt_text(route, body(said, **style))


HELLO = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def test_key_order_and_white_space_make_no_difference():
    other = {"messages": [{"content": "hello", "role": "user"}], "model": "m"}
    assert text(HELLO) == text(other, indent=2) == text(HELLO, separators=(",", ":"))


def test_text_in_a_list_of_one_part_is_that_text():
    parts = [{"type": "text", "text": "hello"}]
    assert text({"messages": [{"role": "user", "content": parts}]}) == text(HELLO)


@pytest.mark.parametrize(
    "other",
    [
        {"messages": [{"role": "system", "content": "hello"}]},
        {"messages": [{"role": "user", "content": "hello", "name": "x"}]},
        {"messages": [{"role": "user", "content": "hel"}, {"role": "user", "content": "lo"}]},
        {"messages": HELLO["messages"], "tools": [{"type": "function"}]},
        {"messages": HELLO["messages"], "system": "be brief"},
    ],
)
def test_what_the_model_would_see_otherwise_is_another_text(other: dict[str, Any]):
    assert text(other) != text(HELLO)


def test_images_are_told_apart_by_all_of_their_url():
    def image(url: str) -> bytes:
        part = {"type": "image_url", "image_url": {"url": url}}
        return text({"messages": [{"role": "user", "content": [part]}]})

    head = "data:image/png;base64," + "A" * 5000
    assert image(head + "B") != image(head + "C")


def test_a_conversation_that_goes_on_keeps_its_text_as_a_prefix():
    turns = [{"role": "user", "content": "one"}, {"role": "assistant", "content": "two"}]
    longer = [*turns, {"role": "user", "content": "three"}]
    assert text({"messages": longer}).startswith(text({"messages": turns}))


def test_each_route_has_its_prompt():
    assert text({"prompt": "hello"}, Route.COMPLETIONS) == b"hello"
    assert text({"prompt": ["hello", "other"]}, Route.COMPLETIONS) == b"hello"
    assert text({"input": "hello"}, Route.RESPONSES) == b"hello"
    assert text({"input": "hello"}, Route.EMBEDDINGS) == b""


@pytest.mark.parametrize("odd", [3, None, [], [3, None], [[1]], {"a": 1}, "x"])
def test_any_json_is_some_text(odd: object):
    for route in (Route.CHAT, Route.COMPLETIONS, Route.RESPONSES, Route.MESSAGES):
        said = {"messages": odd, "prompt": odd, "input": odd, "system": odd, "tools": odd}
        assert isinstance(text(said, route), bytes)


def test_a_tenants_salt_needs_the_secret_to_be_guessed():
    assert tenant_salt("acme", b"s") == tenant_salt("acme", b"s")
    salts = {tenant_salt("acme", b"s"), tenant_salt("acme", b"t"), tenant_salt("other", b"s")}
    assert len(salts) == 3


def request(prefix: PoolPrefix, words: int, number: int = 1) -> Request:
    said = {"messages": [{"role": "user", "content": "word " * words}]}
    blocks = prefix.blocks(Route.CHAT, body(said), model="m", salt=b"")
    prompt = words * 5 // 4
    return a_request(number, prompt_tokens_estimate=prompt, output_tokens_estimate=1, blocks=blocks)


def outcome(cached: int | None) -> Outcome:
    return Outcome(
        request_id="r",
        pool="p",
        route="x",
        tenant="t",
        status=200,
        first_byte=1.0,
        cached_tokens=cached,
    )


def test_a_second_request_of_one_prefix_is_predicted_to_hit_where_the_first_went():
    prefix = PoolPrefix(Prefix())
    first, second = request(prefix, 400), request(prefix, 400, 2)
    assert prefix.uncached(first) == first.prompt_tokens_estimate
    prefix.placed(Placement(first, "a", 1, 0.0))
    assert prefix.expected("r1") == 0
    assert prefix.uncached(second) == 0
    prefix.placed(Placement(second, "a", 1, 0.0))
    assert prefix.expected("r2") == second.prompt_tokens_estimate
    assert prefix.placements.predicted_tokens == second.prompt_tokens_estimate


def test_what_engines_report_is_compared_with_what_was_predicted():
    prefix = PoolPrefix(Prefix())
    for number, cached in enumerate((None, 0, 400, None), start=1):
        placement = Placement(request(prefix, 400, number), "a", 1, 0.0)
        prefix.placed(placement)
        prefix.released(placement, outcome(cached), 0.0)
    assert (prefix.learned.ghosts, prefix.learned.confirmed) == (1, 1)
    assert prefix.expected("r3") is None


def test_a_request_that_is_tried_again_teaches_nothing():
    prefix = PoolPrefix(Prefix())
    for number in (1, 2):
        placement = Placement(request(prefix, 400, number), "a", 1, 0.0)
        prefix.placed(placement)
        prefix.released(placement, None, 0.0)
    assert (prefix.learned.ghosts, prefix.learned.confirmed) == (0, 0)
