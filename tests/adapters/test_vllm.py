import asyncio
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from forebay.adapters.base import Call, EngineError, Load, ModelCard, Probe, Target, Verdict
from forebay.adapters.vllm import Vllm
from forebay.policies.contracts import EngineRefused, EngineUnreachable, Route

VLLM = Vllm()
TARGET = Target("vllm-0", "http://engine", "the-key")
ID = "0123456789abcdef" * 2
METRICS = """\
process_start_time_seconds 1.79597943657e+09
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 2.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="1",model_name="tiny"} 0.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="tiny",reason="capacity"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.5
"""
MODELS = {
    "object": "list",
    "data": [
        {"id": "tiny", "object": "model", "parent": None, "max_model_len": 4096},
        {"id": "tiny-sql", "object": "model", "parent": "tiny", "max_model_len": 4096},
    ],
}
OPENAPI = {"paths": {"/v1/chat/completions": 1, "/v1/models": 2, "/tokenize": 3}}
ANSWERS: dict[str, object] = {
    "/health": "",
    "/version": {"version": "0.32.0"},
    "/v1/models": MODELS,
    "/metrics": METRICS,
    "/openapi.json": OPENAPI,
}


def call(route: Route = Route.CHAT, body: bytes = b"{}", **more: Any) -> Call:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return Call(ID, route, "POST", route.value, "tiny", members, **more)


def client(answers: Mapping[str, object], seen: list[httpx.Request] | None = None):
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        body = answers.get(request.url.path, 404)
        if isinstance(body, int):
            return httpx.Response(body, json={"detail": "no"})
        if isinstance(body, str):
            return httpx.Response(200, text=body)
        return httpx.Response(200, json=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def test_an_ordinary_request_is_sent_as_it_came():
    translation = VLLM.translate(call(body=b'{"model": "tiny", "messages": [], "top_k": 3}'))

    assert (translation.path, translation.set, translation.drop) == (
        "/v1/chat/completions",
        {},
        (),
    )
    assert translation.headers == (("x-request-id", ID),)


@pytest.mark.parametrize("sent", [b'{"model": "gpt-4o"}', b'{"model": null}'])
def test_another_name_of_the_model_is_replaced(sent: bytes):
    assert VLLM.translate(call(body=sent)).set == {"model": b'"tiny"'}


def test_a_body_without_a_model_gets_the_engines():
    assert VLLM.translate(call(body=b'{"messages": []}')).set == {"model": b'"tiny"'}


def test_a_request_without_a_body_is_left_alone():
    stored = Call(ID, Route.RESPONSES, "GET", "/v1/responses/resp_1", "tiny", {}, priority=3)

    translation = VLLM.translate(stored)

    assert (translation.path, translation.set, translation.drop) == ("/v1/responses/resp_1", {}, ())


def test_control_members_go_and_behaviour_stays():
    body = b'{"model":"tiny","vllm_xargs":{},"cache_salt":"x","top_k":1,"structured_outputs":{}}'

    assert VLLM.translate(call(body=body)).drop == ("vllm_xargs", "cache_salt")


def test_a_pool_may_let_a_control_member_through():
    body = b'{"model":"tiny","vllm_xargs":{},"chat_template":"x"}'

    dropped = VLLM.translate(call(body=body, allow=frozenset({"vllm_xargs"}))).drop

    assert dropped == ("chat_template",)


def test_our_priority_and_salt_replace_the_callers_even_where_allowed():
    body = b'{"model":"tiny","priority":-9,"cache_salt":"mine"}'
    allow = frozenset({"priority", "cache_salt"})

    translation = VLLM.translate(call(body=body, allow=allow, priority=2, cache_salt='t"1'))

    assert translation.set == {"priority": b"2", "cache_salt": b'"t\\"1"'}
    assert translation.drop == ()


def test_a_normal_priority_is_not_written():
    assert VLLM.translate(call(body=b'{"model":"tiny"}', priority=0)).set == {}


def test_counting_tokens_takes_no_salt_and_no_priority():
    counted = call(Route.COUNT_TOKENS, b'{"model":"tiny"}', priority=1, cache_salt="s")

    assert VLLM.translate(counted).set == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (None, b'{"include_usage":true}'),
        (b"null", b'{"include_usage":true}'),
        (b"{}", b'{"include_usage":true}'),
        (b'{"include_usage": false}', b'{"include_usage":true}'),
        (b'{"x": [1, 2], "include_usage": null}', b'{"x":[1, 2],"include_usage":true}'),
        (b'{"continuous_usage_stats": true}', b'{"include_usage":true}'),
        (b'{"include_usage": true, "continuous_usage_stats": true}', None),
        (b'"wrong"', None),
        (b"[]", None),
    ],
)
def test_usage_is_asked_for_beside_the_callers_options(
    options: bytes | None, expected: bytes | None
):
    tail = b"" if options is None else b',"stream_options":' + options
    body = b'{"model":"tiny","stream":true' + tail + b"}"

    edits = VLLM.translate(call(body=body, stream=True, meter_usage=True)).set

    assert edits == ({} if expected is None else {"stream_options": expected})


@pytest.mark.parametrize("route", [Route.MESSAGES, Route.RESPONSES, Route.EMBEDDINGS])
def test_usage_is_not_asked_for_where_it_comes_by_itself(route: Route):
    metered = call(route, b'{"model":"tiny","stream":true}', stream=True, meter_usage=True)

    assert VLLM.translate(metered).set == {}


def test_a_multipart_form_loses_every_control_field_and_gets_its_model():
    form = Call(ID, Route.TRANSCRIPTIONS, "POST", "/v1/audio/transcriptions", "tiny", {})

    translation = VLLM.translate(form)

    assert translation.set == {"model": b'"tiny"'}
    assert translation.drop == tuple(sorted(Vllm.control_fields))


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            404,
            (
                b'{"error":{"message":"The model `x` does not exist. Valid aliases: tiny.",'
                b'"type":"NotFoundError","param":"model","code":404}}'
            ),
            EngineError(
                Verdict.MISCONFIGURED,
                "The model `x` does not exist. Valid aliases: tiny.",
                "NotFoundError",
                None,
                "model",
            ),
        ),
        (
            404,
            (
                b'{"type":"error","error":{"type":"NotFoundError",'
                b'"message":"The model `x` does not exist. Valid aliases: tiny."}}'
            ),
            EngineError(
                Verdict.MISCONFIGURED,
                "The model `x` does not exist. Valid aliases: tiny.",
                "NotFoundError",
            ),
        ),
        (
            404,
            (
                b'{"error":{"message":"Response with id \'resp_1\' not found.",'
                b'"type":"invalid_request_error","param":"response_id","code":404}}'
            ),
            EngineError(
                Verdict.NEUTRAL,
                "Response with id 'resp_1' not found.",
                "invalid_request_error",
                None,
                "response_id",
            ),
        ),
        (
            404,
            b'{"detail":"Not Found"}',
            EngineError(Verdict.MISSING_ROUTE, "Not Found", "not_found_error", nested=False),
        ),
        (
            401,
            b'{"error":"Unauthorized"}',
            EngineError(
                Verdict.MISCONFIGURED,
                "the engine refuses the endpoint's key (401)",
                "authentication_error",
                nested=False,
            ),
        ),
        (
            501,
            b'{"error":{"message":"no beam search","type":"NotImplementedError"}}',
            EngineError(Verdict.NEUTRAL, "no beam search", "NotImplementedError"),
        ),
        (
            503,
            b'{"error":{"message":"queue is full","type":"ServiceUnavailableError"}}',
            EngineError(Verdict.FULL, "queue is full", "ServiceUnavailableError"),
        ),
    ],
)
def test_errors_are_read_as_it_sends_them(status: int, body: bytes, expected: EngineError):
    assert VLLM.read_error(status, body) == expected


def test_a_probe_says_what_the_engine_is():
    seen: list[httpx.Request] = []

    probe = asyncio.run(VLLM.probe(client(ANSWERS, seen), TARGET))

    assert probe == Probe(
        engine="vllm",
        version="0.32.0",
        models=(ModelCard("tiny", 4096), ModelCard("tiny-sql", 4096, "tiny")),
        routes=frozenset({Route.CHAT, Route.TOKENIZE}),
        started=1795979436.57,
    )
    assert {request.headers["authorization"] for request in seen} == {"Bearer the-key"}


@pytest.mark.parametrize(
    ("samples", "adapters", "running"),
    [
        ("", None, ()),
        ('{max_lora="2",waiting_lora_adapters="",running_lora_adapters=""} 1.7e9', 2, ()),
        (
            (
                '{max_lora="2",waiting_lora_adapters="c",running_lora_adapters="a,b"} 1.5e9\n'
                'vllm:lora_requests_info{max_lora="2",waiting_lora_adapters="",'
                'running_lora_adapters="b, c"} 1.6e9\n'
                'vllm:lora_requests_info{max_lora="2",waiting_lora_adapters="a",'
                'running_lora_adapters=""} 1.4e9'
            ),
            2,
            ("b", "c"),
        ),
        ('{max_lora="many",running_lora_adapters="a"} 1.7e9', None, ("a",)),
    ],
)
def test_a_probe_says_which_adapters_are_running_by_the_newest_sample(
    samples: str, adapters: int | None, running: tuple[str, ...]
):
    metrics = f"{METRICS}vllm:lora_requests_info{samples}\n" if samples else METRICS
    probe = asyncio.run(VLLM.probe(client({**ANSWERS, "/metrics": metrics}), TARGET))
    assert (probe.adapters, probe.running_adapters) == (adapters, running)


@pytest.mark.parametrize("status", [404, 500])
def test_what_an_engine_lacks_or_fails_at_is_unknown(status: int):
    lacking = dict.fromkeys(("/version", "/metrics", "/openapi.json"), status)
    answers = {**ANSWERS, **lacking}

    probe = asyncio.run(VLLM.probe(client(answers), TARGET))

    assert (probe.version, probe.limit, probe.routes, probe.started) == (None, None, None, None)


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        ({**ANSWERS, "/health": 503}, 503),
        ({**ANSWERS, "/v1/models": 401}, 401),
        ({**ANSWERS, "/v1/models": 404}, 404),
        ({**ANSWERS, "/v1/models": "<html>"}, 502),
    ],
)
def test_an_engine_that_is_not_in_order_is_refused(answers: dict[str, object], status: int):
    with pytest.raises(EngineRefused) as refused:
        asyncio.run(VLLM.probe(client(answers), TARGET))

    assert refused.value.status == status


def test_an_engine_that_does_not_answer_is_unreachable():
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no", request=request)

    http = httpx.AsyncClient(transport=httpx.MockTransport(refuse))

    with pytest.raises(EngineUnreachable, match="vllm-0 did not answer GET /health: ConnectError"):
        asyncio.run(VLLM.probe(http, TARGET))


def test_the_load_is_summed_over_ranks_and_kv_use_is_the_fullests():
    load = asyncio.run(VLLM.read_load(client(ANSWERS), TARGET))

    assert load == Load(running=5, waiting=1, kv_use=0.5)


def test_without_metrics_the_load_is_unknown():
    assert asyncio.run(VLLM.read_load(client({}), TARGET)) == Load()


def test_there_is_nothing_to_abort():
    seen: list[httpx.Request] = []

    asyncio.run(VLLM.abort(client(ANSWERS, seen), TARGET, ID))

    assert seen == []
