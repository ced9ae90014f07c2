"""Hot prefixes are sent to cold endpoints, in the gaps that callers leave."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.asking import a_request

from forebay.adapters.registry import ADAPTERS
from forebay.gateway import wire
from forebay.gateway.config.prefix import Warm
from forebay.gateway.intake import READ_OR_WRITTEN
from forebay.gateway.prefix_text import beginning, prompt_text
from forebay.gateway.warming import Beginning, Warmer, cut_text, cut_tokens, has_room
from forebay.policies.contracts import EndpointView, EngineFailed, Request, Route
from forebay.prefixcache.blocks import token_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from forebay.adapters.base import Sink
    from forebay.gateway.endpoint import Endpoint
    from forebay.prefixcache.blocks import BlockHash

SYSTEM = "be brief and exact " * 40
LONGEST_UNCUT = 20
"""Bytes that are not cut: who speaks, and what is no text."""


def body(said: object) -> wire.Body:
    return wire.read(json.dumps(said).encode(), READ_OR_WRITTEN)


def chat(*said: tuple[str, Any], **rest: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": r, "content": c} for r, c in said], **rest}


# -- the beginning of a prompt ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "whole",
    [
        chat(("system", SYSTEM), ("user", "what is it? " * 30)),
        chat(("user", [{"type": "text", "text": SYSTEM}]), ("assistant", "yes"), ("user", "no")),
        chat(("system", SYSTEM), ("user", "hi"), tools=[{"type": "function", "name": "x" * 300}]),
        chat(("user", "Größe 漢字 🙂 " * 50), system="be brief " * 20),
    ],
)
def test_a_beginning_is_a_prefix_of_the_prompt_up_to_the_cut(whole: dict[str, Any]):
    text = prompt_text(Route.CHAT, body(whole))
    for size in range(1, len(text), 37):
        cut = beginning(Route.CHAT, body(whole), size)
        assert cut is not None
        written = prompt_text(Route.CHAT, body(cut))
        least = size - LONGEST_UNCUT
        assert written[: max(0, least)] == text[: max(0, least)]
        assert cut["messages"][-1]["role"] == "user"


def test_the_cut_is_inside_the_message_where_prompts_part():
    whole = chat(("system", SYSTEM), ("user", "question and secret"))
    size = len(prompt_text(Route.CHAT, body(chat(("system", SYSTEM))))) + len("user question")
    kept = chat(("system", SYSTEM), ("user", "question"))["messages"]
    assert beginning(Route.CHAT, body(whole), size) == {"messages": kept}


def test_what_comes_after_the_cut_is_not_kept():
    whole = chat(("system", SYSTEM), ("user", "my password is hunter2"))
    size = len(SYSTEM)
    assert "hunter2" not in json.dumps(beginning(Route.CHAT, body(whole), size))
    shared = beginning(Route.CHAT, body(whole), size)
    assert shared is not None
    assert shared["messages"][-1] == {"role": "user", "content": "."}


def test_completions_are_cut_as_text_or_as_tokens():
    assert beginning(Route.COMPLETIONS, body({"prompt": "hello world"}), 5) == {"prompt": "hello"}
    cut = beginning(Route.COMPLETIONS, body({"prompt": [101, 102, 103]}), 9)
    assert cut == {"prompt": [101, 102]}


def test_responses_are_cut_as_messages_whether_they_are_or_a_text():
    said: dict[str, Any] = {
        "instructions": SYSTEM,
        "input": "what is it? " * 9,
        "reasoning": {"effort": "low"},
    }
    text = prompt_text(Route.RESPONSES, body(said))
    cut = beginning(Route.RESPONSES, body(said), len(SYSTEM) + 1 + len("what is it?"))
    assert cut == {**said, "input": [{"role": "user", "content": "what is it?"}]}
    parts = [{"type": "input_text", "text": "what is it? " * 9}]
    said["input"] = [{"role": "user", "content": parts}]
    whole = prompt_text(Route.RESPONSES, body(said))
    assert len(whole) > len(text)
    cut = beginning(Route.RESPONSES, body(said), len(whole) - len(text) // 20)
    assert cut is not None
    assert cut["input"][0]["content"].startswith("what is it? what")


def test_a_response_is_asked_for_one_token_and_not_stored():
    inbound = body({"model": "m", "input": "hello", "instructions": "be brief"})
    asked = replace(request((1, 2)), route=Route.RESPONSES)
    made = cut_text(asked, inbound, 11, None)
    assert made is not None
    assert json.loads(made.body) == {
        "model": "m",
        "instructions": "be brief",
        "input": [{"role": "user", "content": "he"}],
        "max_output_tokens": 1,
        "store": False,
        "temperature": 0,
    }


def test_where_nothing_can_be_cut_nothing_is_kept():
    assert beginning(Route.EMBEDDINGS, body({"input": "hello"}), 5) is None
    assert beginning(Route.RESPONSES, body({"input": 7}), 5) is None
    assert beginning(Route.CHAT, body({"messages": "odd"}), 5) is None
    assert beginning(Route.COMPLETIONS, body({"prompt": {"a": 1}}), 5) is None


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.sampled_from(["role", "content", "text", "x"]), inner, max_size=3)
        ),
        max_leaves=12,
    ),
    st.integers(0, 60),
)
def test_whatever_is_sent_is_cut_or_left(odd: object, size: int):
    said = {"messages": odd, "prompt": odd, "system": odd, "tools": odd, "input": odd}
    for route in (Route.CHAT, Route.COMPLETIONS, Route.MESSAGES, Route.RESPONSES):
        cut = beginning(route, body(said), size)
        assert cut is None or json.dumps(cut)


def test_a_prompt_of_tokens_is_sent_as_those_tokens():
    made = cut_tokens(request((1, 2)), token_bytes([7, 8, 9]), "salt")
    assert (made.route, json.loads(made.body)["prompt"], made.salt) == (
        Route.COMPLETIONS,
        [7, 8, 9],
        "salt",
    )
    assert "salt" not in repr(made)
    assert "7" not in repr(made)


# -- sending ---------------------------------------------------------------------------------------


def request(blocks: Sequence[int], number: int = 1) -> Request:
    return a_request(
        number,
        route=Route.COMPLETIONS,
        output_tokens_estimate=1,
        blocks=cast("tuple[BlockHash, ...]", tuple(blocks)),
    )


class Stream:
    """An answer that the test gives."""

    sent = True

    def __init__(self, path: str, body: bytes, sink: Sink) -> None:
        self.path, self.body, self.sink = path, json.loads(body), sink
        self.closed = False

    def close(self) -> None:
        self.closed = True

    def answer(self, status: int = 200, prompt: int = 100, cached: int = 10) -> None:
        usage = {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}}
        self.sink.on_head(status, [])
        self.sink.on_data(json.dumps({"choices": [], "usage": usage}).encode())
        self.sink.on_end()


class Cold:
    """An endpoint with an empty cache, as much of it as is looked at."""

    class _Health:
        usable = True

    def __init__(self, name: str = "e0", engine: str = "vllm") -> None:
        self.name = name
        self.adapter = ADAPTERS[engine]
        self.view = EndpointView(name=name, engine=engine, limit=8)
        self.health = self._Health()
        self.opener = self
        self.streams: list[Stream] = []

    def open(self, method: str, path: str, headers: object, body: bytes, sink: Sink) -> Stream:
        assert method == "POST"
        assert ("content-type", "application/json") in cast("tuple[Any, ...]", headers)
        self.streams.append(Stream(path, body, sink))
        return self.streams[-1]

    @property
    def prompts(self) -> list[str]:
        return [stream.body["prompt"] for stream in self.streams]


class Warmth:
    """A warmer with some hot prefixes, and what it says of endpoints."""

    def __init__(self, *texts: str, **settings: Any) -> None:
        self.held: set[tuple[str, tuple[int, ...]]] = set()
        self.warmer = Warmer(
            "p",
            Warm.model_validate({"rate": 1.0, **settings}),
            holds=lambda endpoint, chain: (endpoint, tuple(chain)) in self.held,
            warmed=lambda endpoint, chain: self.held.add((endpoint, tuple(chain))),
        )
        for number, text in enumerate(texts):
            raw = json.dumps({"model": "m", "prompt": text, "max_tokens": 1}).encode()
            kept = Beginning(Route.COMPLETIONS, "m", "00ff", raw)
            blocks = (number * 10 + 1, number * 10 + 2)
            for again in range(9 - number):
                self.warmer.met(request((*blocks, again)), 2, 0.0, lambda kept=kept: kept)

    def tick(self, now: float, *, waiting: bool = False) -> None:
        self.warmer.tick(now, waiting=waiting)


def begin(warmth: Warmth, endpoint: Cold, now: float = 0.0) -> int:
    return warmth.warmer.begin(cast("Endpoint", endpoint), now)


def test_hot_prefixes_are_sent_one_after_the_other_and_for_one_token():
    warmth, cold = Warmth("a", "b"), Cold()
    assert begin(warmth, cold) == 2
    warmth.tick(0.0)
    warmth.tick(5.0)
    assert cold.prompts == ["a"]
    assert cold.streams[0].path == "/v1/completions"
    assert cold.streams[0].body["max_tokens"] == 1
    assert cold.streams[0].body["cache_salt"] == "00ff"
    cold.streams[0].answer()
    warmth.tick(5.25)
    assert cold.prompts == ["a", "b"]
    cold.streams[1].answer(cached=0)
    assert warmth.warmer.tick(5.5, waiting=False) == (cold,)
    assert warmth.warmer.results == {"warmed": 2, "failed": 0, "gave_way": 0, "held": 0}
    assert (warmth.warmer.tokens, warmth.warmer.left) == (190, {})


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
@pytest.mark.parametrize(
    ("route", "said"),
    [
        (Route.CHAT, {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        (Route.RESPONSES, {"input": "a", "max_output_tokens": 1, "store": False}),
    ],
)
def test_each_engine_is_sent_the_route_with_its_salt(
    engine: str, route: Route, said: dict[str, Any]
):
    warmth, cold = Warmth(), Cold(engine=engine)
    kept = Beginning(route, "m", "00ff", json.dumps({"model": "m", **said}).encode())
    for again in range(9):
        warmth.warmer.met(request((1, 2, again)), 2, 0.0, lambda: kept)
    assert begin(warmth, cold) == 1
    warmth.tick(0.0)
    (sent,) = cold.streams
    assert sent.path == route
    assert sent.body.items() >= {"model": "m", "cache_salt": "00ff", **said}.items()
    sent.answer()
    assert warmth.warmer.results["warmed"] == 1


def test_no_more_are_sent_than_the_rate_allows():
    warmth, cold = Warmth("a", "b", "c", rate=0.5), Cold()
    begin(warmth, cold)
    for tenth in range(50):
        warmth.tick(tenth / 10)
        for stream in cold.streams:
            if not stream.closed:
                stream.closed = True
                stream.answer()
    assert len(cold.streams) == 3


def test_a_prompt_that_waits_stops_it_and_it_goes_on_after():
    warmth, cold = Warmth("a"), Cold()
    begin(warmth, cold)
    warmth.tick(0.0)
    warmth.tick(0.25, waiting=True)
    assert cold.streams[0].closed
    assert warmth.warmer.left == {"e0": 1}
    warmth.tick(1.25)
    assert cold.prompts == ["a", "a"]
    assert warmth.warmer.results["gave_way"] == 1


def test_an_endpoint_with_half_its_places_taken_is_left_alone():
    warmth, cold = Warmth("a"), Cold()
    cold.view.in_flight = 4
    begin(warmth, cold)
    warmth.tick(0.0)
    assert cold.streams == []
    cold.view.in_flight = 3
    warmth.tick(0.25)
    assert cold.prompts == ["a"]
    assert has_room(EndpointView(name="x", engine="vllm", limit=1))
    assert not has_room(EndpointView(name="x", engine="vllm", limit=1, in_flight=1))


def test_what_an_endpoint_holds_already_is_not_sent():
    warmth, cold = Warmth("a", "b"), Cold()
    warmth.held.add(("e0", (1, 2)))
    assert begin(warmth, cold) == 1
    warmth.tick(0.0)
    assert cold.prompts == ["b"]
    warmth.held.add(("e0", (11, 12)))
    assert begin(warmth, cold) == 0


def test_what_callers_brought_there_meanwhile_is_not_sent():
    warmth, cold = Warmth("a"), Cold()
    begin(warmth, cold)
    warmth.held.add(("e0", (1, 2)))
    warmth.tick(0.0)
    assert (cold.streams, warmth.warmer.results["held"]) == ([], 1)


@pytest.mark.parametrize("end", ["refused", "broken"])
def test_a_prompt_that_fails_is_counted_and_passed_over(end: str):
    warmth, cold = Warmth("a", "b"), Cold()
    begin(warmth, cold)
    warmth.tick(0.0)
    if end == "refused":
        cold.streams[0].answer(status=400)
    else:
        cold.streams[0].sink.on_failure(EngineFailed("gone"))
    warmth.tick(1.0)
    assert cold.prompts == ["a", "b"]
    assert warmth.warmer.results["failed"] == 1
    assert ("e0", (1, 2)) not in warmth.held


def test_it_ends_with_the_time_it_has_and_with_the_endpoint():
    warmth, cold, other = Warmth("a", limit=10.0), Cold(), Cold("e1")
    begin(warmth, cold)
    begin(warmth, other)
    warmth.tick(0.0)
    other.health.usable = False
    warmth.tick(0.25)
    assert warmth.warmer.left == {"e0": 1}
    warmth.tick(10.0)
    assert warmth.warmer.left == {}
    assert cold.streams[0].closed


def test_an_endpoint_is_kept_out_until_somebody_waits_or_time_is_up():
    warmth, cold = Warmth("a", hold=5.0), Cold()
    assert not warmth.warmer.keeps_out("e0", 0.0)
    begin(warmth, cold)
    assert warmth.warmer.keeps_out("e0", 4.9)
    assert not warmth.warmer.keeps_out("e0", 5.0)
    assert warmth.warmer.make_way() == (cold,)
    assert not warmth.warmer.keeps_out("e0", 0.1)


def test_prompts_never_reach_the_log(caplog: pytest.LogCaptureFixture):
    warmth, cold = Warmth("secret words"), Cold()
    with caplog.at_level(logging.DEBUG):
        begin(warmth, cold)
        warmth.tick(0.0)
        cold.streams[0].sink.on_failure(EngineFailed("secret words"))
        warmth.tick(1.0)
    assert [record.message for record in caplog.records] == [
        "warming endpoint",
        "endpoint is warmed",
    ]
    assert "secret" not in str([vars(record) for record in caplog.records])
