"""The embedded engine's Anthropic messages, read with the official SDK's own models."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from forebay.adapters.sim import Embedded

MESSAGES = "/v1/messages"
HELLO: dict[str, Any] = {
    "model": "sim",
    "max_tokens": 500,
    "messages": [{"role": "user", "content": "hello world"}],
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"name": "get_weather", "input_schema": CITY}
ASKED = {
    **HELLO,
    "messages": [{"role": "user", "content": [{"type": "text", "text": "weather in Oslo"}]}],
    "tools": [WEATHER, {"name": "get_time", "input_schema": {"type": "object"}}],
}
_event: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)


def say(body: Any, *, engine: Embedded | None = None, path: str = MESSAGES) -> Any:
    answer = asyncio.run((engine or Embedded(profile="instant")).ask(path, body))
    assert answer.error is None
    return msgspec.json.decode(answer.body)


def stream(body: Any) -> list[Any]:
    """Return the events, each named as its data says."""
    answer = asyncio.run(Embedded(profile="instant").ask(MESSAGES, {**body, "stream": True}))
    events: list[Any] = []
    for text in answer.body.decode().split("\n\n")[:-1]:
        name, data = text.split("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        if events[-1]["type"] != "ping":
            _event.validate_python(events[-1])
    return events


def test_a_message_is_one_that_the_official_sdk_reads() -> None:
    message = Message.model_validate(say({**HELLO, "sim": {"output_tokens": 9}}))

    assert (message.role, message.model, message.stop_reason) == ("assistant", "sim", "end_turn")
    assert [block.type for block in message.content] == ["text"]
    assert (message.usage.input_tokens, message.usage.output_tokens) == (5, 9)
    assert message.usage.cache_read_input_tokens == 0


def test_a_streamed_message_says_the_same_as_a_whole_one() -> None:
    whole = say(HELLO)
    events = stream(HELLO)

    kinds = [event["type"] for event in events]
    deltas = [event["delta"]["text"] for event in events if event["type"] == "content_block_delta"]
    assert kinds[:3] == ["message_start", "ping", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert "".join(deltas) == whole["content"][0]["text"]
    assert len(deltas) == whole["usage"]["output_tokens"]
    assert events[0]["message"]["usage"] == {**whole["usage"], "output_tokens": 0}
    assert events[-2]["usage"] == whole["usage"]
    assert events[-2]["delta"] == {"stop_reason": "end_turn", "stop_sequence": None}


def test_tools_are_used_in_blocks() -> None:
    message = Message.model_validate(say(ASKED))
    events = stream(ASKED)

    (block,) = message.content
    assert block.type == "tool_use"
    assert (block.name, list(block.input), message.stop_reason) == (
        "get_weather",
        ["city"],
        "tool_use",
    )
    started = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    parts = [
        event["delta"]["partial_json"] for event in events if event["type"] == "content_block_delta"
    ]
    assert started == [{"type": "tool_use", "id": block.id, "name": "get_weather", "input": {}}]
    assert msgspec.json.decode("".join(parts)) == block.input


def test_several_tools_are_several_blocks() -> None:
    body = {**ASKED, "messages": [{"role": "user", "content": "time and weather"}]}
    whole = say(body)
    indexes = [
        (event["type"], event["index"])
        for event in stream(body)
        if event["type"] in ("content_block_start", "content_block_stop")
    ]

    assert [block["name"] for block in whole["content"]] == ["get_weather", "get_time"]
    assert indexes == [
        ("content_block_start", 0),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_stop", 1),
    ]


@pytest.mark.parametrize(
    ("choice", "names"),
    [
        ({"type": "auto"}, ["get_weather"]),
        ({"type": "none"}, []),
        ({"type": "any"}, ["get_weather"]),
        ({"type": "tool", "name": "get_time"}, ["get_time"]),
    ],
)
def test_a_tool_choice_is_followed(choice: Any, names: list[str]) -> None:
    content = say({**ASKED, "tool_choice": choice})["content"]
    assert [block["name"] for block in content if block["type"] == "tool_use"] == names


def test_after_a_tools_result_the_model_speaks() -> None:
    result = {"type": "tool_result", "tool_use_id": "x", "content": "weather: 3 C"}
    turns = [*ASKED["messages"], {"role": "user", "content": [result]}]
    assert say({**ASKED, "messages": turns})["stop_reason"] == "end_turn"


def test_a_tools_result_shows_pictures_and_may_be_nested_without_end() -> None:
    def counted(part: dict[str, Any]) -> int:
        turns = [{"role": "user", "content": [part]}]
        return say({**HELLO, "messages": turns}, path=f"{MESSAGES}/count_tokens")["input_tokens"]

    shown: dict[str, Any] = {"type": "image", "source": {"data": "iVBOR" * 10_000}}
    assert counted({"type": "tool_result", "content": [shown]}) < 200
    for _ in range(50):
        shown = {"type": "tool_result", "content": [shown, {"type": "text", "text": '"'}]}
    assert counted(shown) < 60_000


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"max_tokens": 3}, ("max_tokens", None)),
        ({"stop_sequences": [" the"]}, ("stop_sequence", " the")),
    ],
)
def test_a_message_says_why_it_stopped(fields: Any, reason: tuple[str, str | None]) -> None:
    message = say({**HELLO, **fields})
    assert (message["stop_reason"], message["stop_sequence"]) == reason


def test_cached_tokens_are_not_among_the_input_tokens() -> None:
    engine = Embedded(profile="instant")
    body = {**HELLO, "system": "the turbine turns " * 20}

    async def main() -> list[Any]:
        answers = [await engine.ask(MESSAGES, body) for _ in range(2)]
        return [msgspec.json.decode(answer.body)["usage"] for answer in answers]

    first, second = asyncio.run(main())
    assert first["cache_read_input_tokens"] == 0
    assert second["cache_read_input_tokens"] == 64
    assert second["input_tokens"] + 64 == first["input_tokens"]


def test_tokens_are_counted_as_a_message_counts_them() -> None:
    body = {**ASKED, "system": [{"type": "text", "text": "be brief"}]}
    counted = say(
        {name: value for name, value in body.items() if name != "max_tokens"},
        path="/v1/messages/count_tokens",
    )
    assert counted == {"input_tokens": say(body)["usage"]["input_tokens"]}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({**HELLO, "model": "nope"}, 404, "not_found_error"),
        ({"model": "sim", "messages": []}, 400, "invalid_request_error"),
        ({**HELLO, "messages": []}, 400, "invalid_request_error"),
        (b"{", 400, "invalid_request_error"),
    ],
)
def test_errors_have_anthropics_shape(body: Any, status: int, kind: str) -> None:
    answer = asyncio.run(Embedded(profile="instant").ask(MESSAGES, body))
    error = msgspec.json.decode(answer.body)
    assert (answer.status, error["type"], error["error"]["type"]) == (status, "error", kind)
    assert error["error"]["message"]
