"""The embedded engine's responses, read with the official SDK's own models."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from forebay.adapters.sim import Embedded

RESPONSES = "/v1/responses"
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
ASKED = {"model": "sim", "input": "the weather in Oslo", "tools": [WEATHER]}
HELLO: dict[str, Any] = {"model": "sim", "input": "hello world"}
_event: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


async def say(engine: Embedded, body: Any, path: str = RESPONSES, method: str = "POST") -> Any:
    answer = await engine.ask(path, body, method=method)
    assert answer.error is None
    return msgspec.json.decode(answer.body)


def once(body: Any) -> Any:
    return asyncio.run(say(Embedded(profile="instant"), body))


def stream(body: Any) -> list[Any]:
    answer = asyncio.run(Embedded(profile="instant").ask(RESPONSES, {**body, "stream": True}))
    events: list[Any] = []
    for text in answer.body.decode().split("\n\n")[:-1]:
        name, data = text.split("\n")
        events.append(msgspec.json.decode(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
        _event.validate_python(events[-1])
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    return events


def test_a_response_is_one_that_the_official_sdk_reads() -> None:
    response = Response.model_validate(once({**HELLO, "sim": {"output_tokens": 9}}))

    assert (response.status, response.model, response.error) == ("completed", "sim", None)
    assert len(response.output_text.split()) >= 7
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.output_tokens) == (5, 9)


def test_a_streamed_response_says_the_same_as_a_whole_one() -> None:
    whole = once(HELLO)
    events = stream(HELLO)

    kinds = [event["type"].removeprefix("response.") for event in events]
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert kinds[:4] == ["created", "in_progress", "output_item.added", "content_part.added"]
    assert kinds[-4:] == [
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "completed",
    ]
    text = whole["output"][0]["content"][0]["text"]
    assert "".join(event["delta"] for event in deltas) == text
    assert events[-4]["text"] == text
    assert events[-1]["response"] == whole
    assert events[-2]["item"] == whole["output"][0]


def test_a_response_calls_functions() -> None:
    whole = once(ASKED)
    events = stream(ASKED)

    Response.model_validate(whole)
    (item,) = whole["output"]
    deltas = [
        event["delta"]
        for event in events
        if event["type"] == "response.function_call_arguments.delta"
    ]
    assert (item["type"], item["name"]) == ("function_call", "get_weather")
    assert list(msgspec.json.decode(item["arguments"])) == ["city"]
    assert "".join(deltas) == item["arguments"]
    assert events[-1]["response"] == whole


def test_a_function_may_be_asked_for_by_name() -> None:
    body = {**ASKED, "input": "hi", "tool_choice": {"type": "function", "name": "get_weather"}}
    assert once(body)["output"][0]["name"] == "get_weather"


def test_items_of_all_kinds_are_read() -> None:
    items = [
        {"role": "user", "content": [{"type": "input_text", "text": "the weather"}]},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "weather: 3 C"},
    ]
    assert once({**ASKED, "input": items})["output"][0]["type"] == "message"


def test_a_text_format_is_kept_to() -> None:
    form = {"type": "json_schema", "name": "city", "schema": CITY}
    response = once({**HELLO, "text": {"format": form}})
    assert list(msgspec.json.decode(response["output"][0]["content"][0]["text"])) == ["city"]


def test_a_response_cut_short_is_incomplete() -> None:
    whole = once({**HELLO, "max_output_tokens": 3})
    events = stream({**HELLO, "max_output_tokens": 3})

    assert whole["status"] == "incomplete"
    assert whole["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1]["type"] == "response.incomplete"
    assert events[-1]["response"] == whole


@pytest.mark.parametrize("streamed", [False, True])
def test_a_response_is_kept_and_can_be_continued_and_deleted(*, streamed: bool) -> None:
    async def main() -> None:
        engine = Embedded(profile="instant")
        answer = await engine.ask(RESPONSES, {**HELLO, "stream": streamed})
        last = answer.body.rpartition(b"data: ")[2]
        made = msgspec.json.decode(last)["response"] if streamed else msgspec.json.decode(last)
        kept = await say(engine, None, f"{RESPONSES}/{made['id']}", "GET")
        more = await say(engine, {**HELLO, "previous_response_id": made["id"]})
        deleted = await say(engine, None, f"{RESPONSES}/{made['id']}", "DELETE")
        gone = await engine.ask(f"{RESPONSES}/{made['id']}", None, method="GET")

        assert kept == made
        spent = made["usage"]["total_tokens"]
        assert more["usage"]["input_tokens"] > spent
        assert more["usage"]["input_tokens_details"]["cached_tokens"] == (spent - 1) // 16 * 16
        assert deleted == {"id": made["id"], "object": "response.deleted", "deleted": True}
        assert (gone.status, msgspec.json.decode(gone.body)["error"]["code"]) == (404, 404)

    asyncio.run(main())


def test_a_response_that_is_not_to_be_kept_is_not() -> None:
    async def main() -> None:
        engine = Embedded(profile="instant")
        made = await say(engine, {**HELLO, "store": False})
        assert (await engine.ask(f"{RESPONSES}/{made['id']}", None, method="GET")).status == 404

    asyncio.run(main())


def test_the_oldest_responses_make_room() -> None:
    async def main() -> None:
        engine = Embedded(profile="instant")
        body = {**HELLO, "sim": {"output_tokens": 1}}
        first = await say(engine, body)
        made = [await say(engine, body) for _ in range(1000)]
        assert len(engine.engine.responses) == 1000
        assert first["id"] not in engine.engine.responses
        assert made[-1]["id"] in engine.engine.responses

    asyncio.run(main())


def test_a_background_response_can_be_watched_and_cancelled() -> None:
    async def main() -> None:
        engine = Embedded(profile="demo")
        body = {**HELLO, "background": True, "sim": {"output_tokens": 1000}}
        queued = await say(engine, body)
        watched = await say(engine, None, f"{RESPONSES}/{queued['id']}", "GET")
        cancelled = await say(engine, None, f"{RESPONSES}/{queued['id']}/cancel")

        assert (queued["status"], watched["status"]) == ("queued", "queued")
        assert cancelled["status"] == "cancelled"
        assert (engine.load().running, engine.load().waiting) == (0, 0)
        Response.model_validate(cancelled)

    asyncio.run(main())


def test_a_background_response_ends_by_itself() -> None:
    async def main() -> None:
        engine = Embedded(profile="instant")
        queued = await say(engine, {**HELLO, "background": True})
        other = await say(engine, HELLO)
        kept = await say(engine, None, f"{RESPONSES}/{queued['id']}", "GET")
        refused = await engine.ask(f"{RESPONSES}/{other['id']}/cancel")

        assert kept["status"] == "completed"
        assert kept["output"][0]["content"] == other["output"][0]["content"]
        assert refused.status == 400

    asyncio.run(main())


@pytest.mark.parametrize(
    "body",
    [
        {"model": "sim"},
        {**HELLO, "input": []},
        {**HELLO, "input": ["x"]},
        {**HELLO, "background": True, "stream": True},
        {**HELLO, "background": True, "store": False},
    ],
)
def test_a_wrong_response_is_refused(body: Any) -> None:
    answer = asyncio.run(Embedded(profile="instant").ask(RESPONSES, body))
    assert (answer.status, msgspec.json.decode(answer.body)["error"]["code"]) == (400, 400)


def test_an_unknown_previous_response_is_not_found() -> None:
    body = {**HELLO, "previous_response_id": "resp_nope"}
    assert asyncio.run(Embedded(profile="instant").ask(RESPONSES, body)).status == 404
