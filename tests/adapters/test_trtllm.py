import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from forebay.adapters.base import Call, EngineError, Load, ModelCard, Probe, Target, Verdict
from forebay.adapters.trtllm import TrtLlm
from forebay.policies.contracts import EngineRefused, InvalidRequest, Route

TRTLLM = TrtLlm()
TARGET = Target("trt-0", "http://engine")
ID = "0123456789abcdef" * 2
NO_USAGE = b'{"include_usage":false,"continuous_usage_stats":false}'
USAGE = b'{"include_usage":true,"continuous_usage_stats":false}'
MODELS = {"object": "list", "data": [{"id": "tiny", "object": "model"}]}


def call(body: bytes, route: Route = Route.CHAT, **more: Any) -> Call:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return Call(ID, route, "POST", route.value, "tiny", members, **more)


def client(answers: Mapping[str, object], seen: list[str] | None = None) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request.url.path)
        body = answers.get(request.url.path, 404)
        if isinstance(body, int):
            return httpx.Response(body)
        if isinstance(body, str):
            return httpx.Response(200, text=body)
        return httpx.Response(200, json=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def test_a_chat_that_it_knows_is_sent_as_it_came():
    translation = TRTLLM.translate(call(b'{"model":"tiny","messages":[],"top_k":2,"seed":1}'))

    assert (translation.set, translation.drop) == ({}, ())


@pytest.mark.parametrize(
    "member",
    [
        b'"store":true',
        b'"metadata":{"a":"b"}',
        b'"service_tier":"flex"',
        b'"prompt_cache_key":"k"',
        b'"parallel_tool_calls":true',
        b'"functions":null',
    ],
)
def test_a_member_that_changes_nothing_in_the_answer_is_taken_out(member: bytes):
    name = member.split(b'"')[1].decode()

    assert TRTLLM.translate(call(b'{"model":"tiny",' + member + b"}")).drop == (name,)


@pytest.mark.parametrize(
    "member", [b'"parallel_tool_calls":false', b'"regex":"a+"', b'"bad_words":["x"]']
)
def test_a_member_that_would_change_the_answer_is_refused_by_name(member: bytes):
    name = member.split(b'"')[1].decode()

    with pytest.raises(InvalidRequest) as refused:
        TRTLLM.translate(call(b'{"model":"tiny",' + member + b"}"))

    assert (refused.value.status, refused.value.param) == (400, name)
    assert repr(name) in refused.value.message


def test_a_pool_may_let_a_member_of_a_newer_release_through():
    body = b'{"model":"tiny","regex":"a+"}'

    assert TRTLLM.translate(call(body, allow=frozenset({"regex"}))).drop == ()


def test_a_members_of_routes_that_only_newer_releases_have_are_left_alone():
    body = b'{"model":"tiny","input":"hi","dimensions":3}'

    assert TRTLLM.translate(call(body, Route.EMBEDDINGS)).drop == ()


@pytest.mark.parametrize(
    "route", [Route.TOKENIZE, Route.DETOKENIZE, Route.SCORE, Route.TRANSCRIPTIONS]
)
def test_routes_that_it_never_has_are_not_found(route: Route):
    with pytest.raises(InvalidRequest, match=route.value) as refused:
        TRTLLM.translate(call(b'{"model":"tiny"}', route))

    assert refused.value.status == 404


def test_of_two_names_for_one_limit_the_newer_stays():
    body = b'{"model":"tiny","max_tokens":5,"max_completion_tokens":7}'

    assert TRTLLM.translate(call(body)).drop == ("max_tokens",)


@pytest.mark.parametrize(
    ("options", "metered", "expected"),
    [
        (None, False, NO_USAGE),
        (b"null", False, NO_USAGE),
        (b"{}", False, NO_USAGE),
        (None, True, USAGE),
        (b'{"include_usage":false}', True, USAGE),
        (b'{"include_usage":true}', False, USAGE),
        (b'{"include_usage":true,"continuous_usage_stats":true}', False, None),
        (b'"wrong"', True, None),
    ],
)
def test_a_stream_always_says_what_usage_it_wants(
    options: bytes | None, expected: bytes | None, *, metered: bool
):
    tail = b"" if options is None else b',"stream_options":' + options
    body = b'{"model":"tiny","stream":true' + tail + b"}"

    edits = TRTLLM.translate(call(body, stream=True, meter_usage=metered)).set

    assert edits == ({} if expected is None else {"stream_options": expected})


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (
            b'{"type":"json_schema","json_schema":{"name":"x","strict":true,"schema":{"a": 1}}}',
            b'{"type":"json","schema":{"a": 1}}',
        ),
        (b'{"type":"json_schema","json_schema":{"name":"x"}}', b'{"type":"json_object"}'),
        (b'{"type":"json_object"}', None),
        (b'{"type":"text"}', None),
        (b"null", None),
    ],
)
def test_a_json_schema_is_written_as_every_release_reads_it(sent: bytes, expected: bytes | None):
    edits = TRTLLM.translate(call(b'{"model":"tiny","response_format":' + sent + b"}")).set

    assert edits == ({} if expected is None else {"response_format": expected})


@pytest.mark.parametrize(
    ("priority", "expected"), [(0, b"0.5"), (-1, b"0.75"), (1, b"0.25"), (3, b"0.125")]
)
def test_priority_is_a_weight_between_0_and_1(priority: int, expected: bytes):
    assert TRTLLM.translate(call(b'{"model":"tiny"}', priority=priority)).set == {
        "priority": expected
    }


def test_a_salt_is_sent_with_a_chat_alone():
    body = b'{"model":"tiny","cache_salt":"mine"}'

    chat = TRTLLM.translate(call(body, cache_salt="t"))
    completion = TRTLLM.translate(call(body, Route.COMPLETIONS, cache_salt="t"))

    assert (chat.set, chat.drop) == ({"cache_salt": b'"t"'}, ())
    assert (completion.set, completion.drop) == ({}, ("cache_salt",))


@pytest.mark.parametrize(
    ("status", "message", "verdict"),
    [
        (400, "prompt is longer than max_input_len", Verdict.NEUTRAL),
        (400, "CUDA out of memory. Tried to allocate 2 GiB", Verdict.BROKEN),
        (400, "[TensorRT-LLM][ERROR] Assertion failed: x", Verdict.BROKEN),
        (400, "1 validation error: input was 'CUDA error'", Verdict.NEUTRAL),
        (404, "The model `x` does not exist.", Verdict.MISCONFIGURED),
        (501, "beam search with streaming", Verdict.NEUTRAL),
        (500, "no", Verdict.BROKEN),
    ],
)
def test_a_400_of_the_engines_own_making_counts_against_it(
    status: int, message: str, verdict: Verdict
):
    body = {"object": "error", "message": message, "type": "BadRequestError", "code": status}

    assert TRTLLM.read_error(status, json.dumps(body).encode()) == EngineError(
        verdict, message, "BadRequestError", nested=False
    )


def test_a_probe_never_reads_what_reading_drains():
    seen: list[str] = []
    answers = {
        "/health": "",
        "/version": {"version": "1.2.1"},
        "/v1/models": MODELS,
        "/prometheus/metrics": "process_start_time_seconds 17.5\n",
    }

    probe = asyncio.run(TRTLLM.probe(client(answers, seen), TARGET))

    assert probe == Probe(
        engine="trtllm", version="1.2.1", models=(ModelCard("tiny"),), started=17.5
    )
    assert "/metrics" not in seen


def test_an_unhealthy_executor_is_refused():
    with pytest.raises(EngineRefused) as refused:
        asyncio.run(TRTLLM.probe(client({"/health": 503}), TARGET))

    assert refused.value.status == 503


def test_the_last_iteration_of_each_rank_is_the_load():
    iterations = [
        {"iter": 1, "numActiveRequests": 9, "numQueuedRequests": 9, "attentionDpRank": 0},
        {
            "iter": 2,
            "numActiveRequests": 2,
            "numQueuedRequests": 1,
            "attentionDpRank": 0,
            "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 40},
        },
        {
            "iter": 2,
            "numActiveRequests": 3,
            "numQueuedRequests": 0,
            "attentionDpRank": 1,
            "kvCacheStats": {"maxNumBlocks": 100, "usedNumBlocks": 60},
        },
    ]

    load = asyncio.run(TRTLLM.read_load(client({"/metrics": iterations}), TARGET))

    assert load == Load(running=5, waiting=1, kv_use=0.6)


@pytest.mark.parametrize("iterations", [[], [{}], 404])
def test_an_idle_engine_and_one_without_statistics_have_an_unknown_load(iterations: object):
    load = asyncio.run(TRTLLM.read_load(client({"/metrics": iterations}), TARGET))

    assert load == Load()


@pytest.mark.parametrize(
    ("answer", "told"), [([], b"[]"), ([{"event_id": 0}], b'[{"event_id":0}]'), (404, None)]
)
def test_events_are_taken_by_a_post(answer: object, told: bytes | None):
    seen: list[str] = []
    http = client({"/kv_cache_events": answer}, seen)
    assert asyncio.run(TRTLLM.take_events(http, TARGET)) == told
    assert seen == ["/kv_cache_events"]


def test_events_that_cannot_be_had_say_so():
    http = client({"/kv_cache_events": 500})
    with pytest.raises(EngineRefused, match="answered POST /kv_cache_events with 500"):
        asyncio.run(TRTLLM.take_events(http, TARGET))
