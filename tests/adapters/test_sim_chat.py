"""The embedded engine's chat and completions, read with the official SDK's own models."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from forebay.adapters.sim import Embedded
from forebay.adapters.sim_engine import SimEngine, SimSettings

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
HELLO: dict[str, Any] = {"model": "sim", "messages": [{"role": "user", "content": "hello world"}]}
WITH_USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer", "minimum": 1}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "get_time"}}
ASKED = {**HELLO, "messages": [{"role": "user", "content": "the weather in Oslo, please"}]}


def say(body: Any, path: str = CHAT, *, engine: Embedded | None = None) -> Any:
    """Return the decoded answer, or the decoded events of a stream."""
    answer = asyncio.run((engine or Embedded(profile="instant")).ask(path, body))
    assert answer.error is None
    if b"event-stream" not in answer.headers[b"content-type"]:
        return msgspec.json.decode(answer.body)
    assert answer.body.endswith(b"data: [DONE]\n\n")
    events = answer.body.split(b"\n\n")[:-2]
    return [msgspec.json.decode(event.removeprefix(b"data: ")) for event in events]


def chat(**fields: Any) -> ChatCompletion:
    return ChatCompletion.model_validate(say({**HELLO, **fields}))


def joined(events: list[Any]) -> str:
    deltas = [event["choices"][0]["delta"] for event in events if event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


def test_a_chat_answer_is_one_that_the_official_sdk_reads() -> None:
    answer = chat(sim={"output_tokens": 7})

    assert (answer.model, answer.object) == ("sim", "chat.completion")
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == 5
    assert answer.usage.completion_tokens == 7
    assert answer.usage.total_tokens == 12
    assert answer.choices[0].finish_reason == "stop"


def test_a_streamed_chat_says_the_same_as_a_whole_one() -> None:
    whole = say(HELLO)
    events = say({**HELLO, **WITH_USAGE})

    chunks = [ChatCompletionChunk.model_validate(event) for event in events]
    assert joined(events) == whole["choices"][0]["message"]["content"]
    assert (chunks[0].choices[0].delta.role, chunks[0].choices[0].delta.content) == (
        "assistant",
        "",
    )
    assert [chunk.choices[0].finish_reason for chunk in chunks[:-1]] == (
        [None] * (len(chunks) - 2) + ["stop"]
    )
    assert (events[-1]["choices"], events[-1]["usage"]) == ([], whole["usage"])


def test_without_being_asked_a_stream_tells_no_usage() -> None:
    assert not [event for event in say({**HELLO, "stream": True}) if "usage" in event]


def test_usage_is_in_each_chunk_where_that_is_asked_for() -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    events = say({**HELLO, "stream": True, "stream_options": options, "max_tokens": 3})

    assert [event["usage"]["completion_tokens"] for event in events] == [0, 1, 2, 3, 3]


def test_the_same_request_has_the_same_answer_and_another_seed_another() -> None:
    text = chat().choices[0].message.content
    assert chat().choices[0].message.content == text
    assert chat(seed=7).choices[0].message.content != text
    other = say(HELLO, engine=Embedded(profile="instant", seed=7))
    assert other["choices"][0]["message"]["content"] != text


def test_an_answer_is_varied_prose() -> None:
    events = say({**HELLO, "stream": True, "sim": {"output_tokens": 200}})
    pieces = [event["choices"][0]["delta"]["content"] for event in events[1:]]

    assert len(pieces) == 200
    assert len(set(pieces)) > 50
    assert not any(first == second for first, second in pairwise(pieces))
    assert "".join(pieces).startswith("The ")


@pytest.mark.parametrize(
    ("fields", "tokens", "finish"),
    [
        ({"max_tokens": 3}, 3, "length"),
        ({"max_completion_tokens": 3}, 3, "length"),
        ({"max_tokens": 3, "sim": {"output_tokens": 9}}, 3, "length"),
        ({"max_tokens": 9, "sim": {"output_tokens": 9}}, 9, "stop"),
        ({"max_tokens": 700, "ignore_eos": True}, 700, "length"),
        ({"sim": {"output_tokens": 5000}}, 5000, "stop"),
        ({"sim": {"output_tokens": 0}}, 1, "stop"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_has_the_length_asked_for(
    fields: Any, tokens: int, finish: str, *, stream: bool
) -> None:
    answer = say({**HELLO, **fields, **(WITH_USAGE if stream else {})})
    usage = answer[-1]["usage"] if stream else answer["usage"]
    choice = (answer[-2] if stream else answer)["choices"][0]

    assert (usage["completion_tokens"], choice["finish_reason"]) == (tokens, finish)


def test_at_least_min_tokens_come() -> None:
    answer = chat(min_tokens=450)
    assert answer.usage is not None
    assert answer.usage.completion_tokens >= 450


def test_a_stop_string_ends_the_text_before_it() -> None:
    plain = chat().choices[0].message.content or ""
    stop = plain[9:14]
    answer = say({**HELLO, "stop": [stop, "never"]})
    events = say({**HELLO, "stop": stop, **WITH_USAGE})

    choice = answer["choices"][0]
    assert choice["message"]["content"] == plain[: plain.index(stop)]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", stop)
    assert joined(events) == plain[: plain.index(stop)]
    assert events[-1]["usage"]["completion_tokens"] < 8


def test_n_answers_differ_and_count_their_prompt_once() -> None:
    answer = chat(n=3, max_tokens=20)
    events = say({**HELLO, "n": 3, "max_tokens": 20, "stream": True})

    texts = [choice.message.content for choice in answer.choices]
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len(set(texts)) == 3
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (5, 60)
    told = ["", "", ""]
    for event in events:
        choice = event["choices"][0]
        told[choice["index"]] += choice["delta"]["content"]
    assert told == texts


def test_logprobs_are_there_for_each_token() -> None:
    answer = chat(logprobs=True, top_logprobs=3, max_tokens=4)
    events = say({**HELLO, "logprobs": True, "top_logprobs": 3, "max_tokens": 4, "stream": True})

    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    assert "".join(one.token for one in logprobs.content) == answer.choices[0].message.content
    assert [len(one.top_logprobs) for one in logprobs.content] == [3, 3, 3, 3]
    assert all(
        one.top_logprobs[0].logprob == one.logprob <= 0 and bytes(one.bytes or ()).decode()
        for one in logprobs.content
    )
    streamed = [event["choices"][0]["logprobs"]["content"][0] for event in events[1:]]
    assert streamed == msgspec.to_builtins([one.model_dump() for one in logprobs.content])


def test_the_model_calls_the_tool_that_is_spoken_of() -> None:
    answer = ChatCompletion.model_validate(say({**ASKED, "tools": [TIME, WEATHER]}))

    choice = answer.choices[0]
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", None)
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "get_weather"
    arguments = msgspec.json.decode(call.function.arguments)
    assert sorted(arguments) == ["city", "days"]
    assert isinstance(arguments["city"], str)
    assert arguments["days"] >= 1


def test_streamed_tool_calls_add_up_to_the_whole_ones() -> None:
    body = {**HELLO, "messages": [{"role": "user", "content": "time and weather"}]}
    body |= {"tools": [TIME, WEATHER]}
    whole = say(body)["choices"][0]["message"]["tool_calls"]
    events = say({**body, **WITH_USAGE})

    calls: list[Any] = []
    for event in events[1:-1]:
        ChatCompletionChunk.model_validate(event)
        (delta,) = event["choices"][0]["delta"]["tool_calls"]
        if "id" in delta:
            assert delta["index"] == len(calls)
            calls.append({"id": delta["id"], "type": "function", "function": delta["function"]})
        else:
            calls[delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    assert [call["function"]["name"] for call in calls] == ["get_time", "get_weather"]
    assert calls == whole


@pytest.mark.parametrize(
    ("fields", "names"),
    [
        ({"tool_choice": "none"}, []),
        ({"tool_choice": "auto"}, ["get_weather"]),
        ({"tool_choice": "required"}, ["get_weather"]),
        ({"tool_choice": {"type": "function", "function": {"name": "get_time"}}}, ["get_time"]),
        ({"messages": [{"role": "user", "content": "hi"}]}, []),
        (
            {"messages": [{"role": "user", "content": "hi"}], "tool_choice": "required"},
            ["get_time"],
        ),
        ({"messages": [{"role": "user", "content": "time, weather"}]}, ["get_time", "get_weather"]),
        (
            {
                "messages": [{"role": "user", "content": "time, weather"}],
                "parallel_tool_calls": False,
            },
            ["get_time"],
        ),
        ({"messages": [*ASKED["messages"], {"role": "tool", "content": "weather: 3 C"}]}, []),
    ],
)
def test_which_tools_are_called_follows_a_fixed_rule(fields: Any, names: list[str]) -> None:
    answer = say({**ASKED, "tools": [TIME, WEATHER], **fields})
    calls = answer["choices"][0]["message"].get("tool_calls", [])
    assert [call["function"]["name"] for call in calls] == names


def test_arguments_cut_by_the_token_limit_end_with_length() -> None:
    answer = say({**ASKED, "tools": [WEATHER], "max_tokens": 2})
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "length"
    assert len(choice["message"]["tool_calls"][0]["function"]["arguments"]) < 10


def test_a_json_schema_is_kept_to() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY}}
    text = say({**HELLO, "response_format": form})["choices"][0]["message"]["content"]
    value = msgspec.json.decode(text)

    assert sorted(value) == ["city", "days"]
    assert joined(say({**HELLO, "response_format": form, "stream": True})) == text
    assert say({**HELLO, "structured_outputs": {"json": CITY}})["choices"][0]["message"]


def test_json_object_is_an_object() -> None:
    text = chat(response_format={"type": "json_object"}).choices[0].message.content
    assert isinstance(msgspec.json.decode(text or ""), dict)


def test_a_prefix_seen_before_is_told_as_cached_unless_the_salt_differs() -> None:
    engine = Embedded(profile="instant")
    long = {**HELLO, "messages": [{"role": "user", "content": "the turbine turns " * 30}]}
    cached: list[int] = []

    async def main() -> None:
        for salt in (None, None, "a", "b", "a"):
            body = {**long, "cache_salt": salt}
            usage = msgspec.json.decode((await engine.ask(CHAT, body)).body)["usage"]
            cached.append(usage["prompt_tokens_details"]["cached_tokens"])

    asyncio.run(main())
    assert cached == [0, 80, 0, 0, 80]


def test_the_next_turn_of_a_conversation_finds_the_last_answer_cached() -> None:
    engine = Embedded(profile="instant")

    async def main() -> None:
        turns = [{"role": "user", "content": "the turbine turns " * 10}]
        body = {"messages": turns, "sim": {"output_tokens": 40}}
        first = msgspec.json.decode((await engine.ask(CHAT, body)).body)
        turns += [first["choices"][0]["message"], {"role": "user", "content": "go on"}]
        second = msgspec.json.decode((await engine.ask(CHAT, body)).body)

        known = first["usage"]["prompt_tokens"] + 40 - 1
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == known // 16 * 16

    asyncio.run(main())


def test_all_kinds_of_content_are_read() -> None:
    parts = [
        {"type": "text", "text": "hello world"},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    ]
    plain = say({**HELLO, "max_tokens": 1})["usage"]["prompt_tokens"]
    shown = say({"messages": [{"role": "user", "content": parts}], "max_tokens": 1})
    assert shown["usage"]["prompt_tokens"] > plain + 64
    nothing = {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]}
    assert say({"messages": [nothing, {"role": "user", "content": ["a"]}]})["usage"]


def test_completions_take_lists_of_prompts_and_ids() -> None:
    answer = Completion.model_validate(
        say({"prompt": ["hello", "world"], "n": 2, "max_tokens": 3}, COMPLETIONS)
    )
    ids = say({"prompt": [[1, 2, 3], [4]], "max_tokens": 3}, COMPLETIONS)
    one = say({"prompt": [1, 2, 3], "max_tokens": 3}, COMPLETIONS)

    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 12)
    assert (ids["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"]) == (4, 3)
    assert ids["choices"][0]["text"] == one["choices"][0]["text"]


def test_a_streamed_completion_says_the_same_as_a_whole_one() -> None:
    body = {"prompt": "hello", "max_tokens": 6, "logprobs": 2}
    whole = say(body, COMPLETIONS)
    *events, last = say({**body, **WITH_USAGE}, COMPLETIONS)

    choices = [event["choices"][0] for event in events]
    logprobs = [choice["logprobs"] for choice in choices]
    assert "".join(choice["text"] for choice in choices) == whole["choices"][0]["text"]
    assert [choice["finish_reason"] for choice in choices] == [None] * 5 + ["length"]
    assert (last["choices"], last["usage"]) == ([], whole["usage"])
    assert whole["choices"][0]["logprobs"] == {
        name: [one[name][0] for one in logprobs] for name in logprobs[0]
    }


def test_completions_have_sixteen_tokens_unless_told_otherwise() -> None:
    assert say({"prompt": "x", "ignore_eos": True}, COMPLETIONS)["usage"]["completion_tokens"] == 16


WRONG: list[tuple[str, Any, int]] = [
    (CHAT, b"", 400),
    (CHAT, b"{", 400),
    (CHAT, b"[]", 400),
    (CHAT, b'\xff{"messages":[]}', 400),
    (CHAT, b"[" * 100_000, 400),
    (CHAT, {**HELLO, "model": "nope"}, 404),
    (CHAT, {"model": "sim"}, 400),
    (CHAT, {"messages": 3}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"content": "x"}]}, 400),
    (CHAT, {"messages": [{"role": "user", "content": [3]}]}, 400),
    (CHAT, {**HELLO, "n": 0}, 400),
    (CHAT, {**HELLO, "n": 1000}, 400),
    (CHAT, {**HELLO, "temperature": -1}, 400),
    (CHAT, {**HELLO, "top_p": 0}, 400),
    (CHAT, {**HELLO, "max_tokens": 0}, 400),
    (CHAT, {**HELLO, "max_tokens": 10**6}, 400),
    (CHAT, {**HELLO, "sim": {"fault": "nope"}}, 400),
    (CHAT, {**HELLO, "sim": {"nope": 1}}, 400),
    (CHAT, {**HELLO, "stop": ""}, 400),
    (CHAT, {**HELLO, "cache_salt": ""}, 400),
    (CHAT, {**HELLO, "priority": 1.5}, 400),
    (CHAT, {**HELLO, "stream_options": {"include_usage": True}}, 400),
    (CHAT, {**HELLO, "tool_choice": "required"}, 400),
    (CHAT, {**HELLO, "tool_choice": "sometimes"}, 400),
    (CHAT, {**HELLO, "tool_choice": {"function": {"name": "nope"}}}, 400),
    (CHAT, {**HELLO, "response_format": {"type": "nope"}}, 400),
    (CHAT, {**HELLO, "response_format": {"type": "json_schema"}}, 400),
    (CHAT, {**HELLO, "structured_outputs": {"regex": "a"}}, 400),
    (COMPLETIONS, {"model": "sim"}, 400),
    (COMPLETIONS, {"prompt": []}, 400),
    (COMPLETIONS, {"prompt": [{}]}, 400),
    (COMPLETIONS, {"prompt": [-1]}, 400),
    (COMPLETIONS, {"prompt": [[]]}, 400),
    (COMPLETIONS, {"prompt": [True]}, 400),
    (COMPLETIONS, {"prompt": "word " * 200_000}, 400),
]


@pytest.mark.parametrize(("path", "body", "status"), WRONG)
def test_a_wrong_request_gets_an_error_in_the_engines_shape(
    path: str, body: Any, status: int
) -> None:
    answer = asyncio.run(Embedded(profile="instant").ask(path, body))

    error = msgspec.json.decode(answer.body)["error"]
    assert (answer.status, error["code"]) == (status, status)
    assert set(error) == {"message", "type", "param", "code"}
    assert answer.headers[b"content-type"] == b"application/json"


def test_what_only_pythons_own_parser_takes_is_taken() -> None:
    body = b'{"messages":[{"role":"user","content":"a \\ud800 b"}],"temperature":NaN}'
    assert say(body)["choices"]


def test_priority_needs_priority_scheduling() -> None:
    settings = SimSettings(profile="instant", priority=False)
    answer = asyncio.run(Embedded(SimEngine(settings)).ask(CHAT, {**HELLO, "priority": -3}))
    assert answer.status == 400
    assert say({**HELLO, "priority": -3})["choices"]


def test_ids_are_the_callers_request_id_or_fresh() -> None:
    async def main() -> None:
        engine = Embedded(profile="instant")
        named = await engine.ask(CHAT, HELLO, headers=[("x-request-id", "abc")])
        first, second = await engine.ask(CHAT, HELLO), await engine.ask(CHAT, HELLO)
        ids = [msgspec.json.decode(answer.body)["id"] for answer in (named, first, second)]
        assert ids[0] == "chatcmpl-abc"
        assert len(set(ids)) == 3
        assert b"x-request-id" not in named.headers

    asyncio.run(main())
