import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from forebay.adapters.base import Call, EngineError, Load, ModelCard, Probe, Target, Verdict
from forebay.adapters.sglang import SGLang
from forebay.policies.contracts import EngineRefused, Route

SGLANG = SGLang()
TARGET = Target("sgl-0", "http://engine")
ID = "0123456789abcdef" * 2
RID = b'"' + ID.encode() + b'"'
MODELS = {
    "data": [
        {"id": "tiny", "parent": None, "max_model_len": 8192},
        {"id": "sql", "root": "/loras/sql", "parent": "tiny", "max_model_len": None},
    ]
}
INFO = {
    "version": "0.5.23",
    "max_running_requests": 64,
    "internal_states": [
        {"effective_max_running_requests_per_dp": 30},
        {"effective_max_running_requests_per_dp": 20},
    ],
}
LOADS = {
    "loads": [
        {"dp_rank": 0, "num_running_reqs": 2, "num_waiting_reqs": 1, "token_usage": 0.25},
        {"dp_rank": 1, "num_running_reqs": 3, "num_waiting_reqs": 0, "token_usage": 0.75},
    ]
}
METRICS = """\
sglang:num_running_reqs{engine_type="unified",model_name="tiny",tp_rank="0"} 4.0
sglang:num_queue_reqs{engine_type="unified",model_name="tiny",tp_rank="0"} 2.0
sglang:token_usage{engine_type="unified",model_name="tiny",tp_rank="0"} 0.5
"""
ANSWERS: dict[str, object] = {
    "/ready": "",
    "/v1/models": MODELS,
    "/server_info": INFO,
    "/v1/loads": LOADS,
}


def call(route: Route = Route.CHAT, body: bytes = b'{"model":"tiny"}', **more: Any) -> Call:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return Call(ID, route, "POST", route.value, "tiny", members, **more)


def client(answers: Mapping[str, object], seen: list[httpx.Request] | None = None):
    def answer(request: httpx.Request) -> httpx.Response:
        if seen is not None:
            seen.append(request)
        body = answers.get(request.url.path, 404)
        if isinstance(body, int):
            return httpx.Response(body)
        if isinstance(body, str):
            return httpx.Response(200, text=body)
        return httpx.Response(200, json=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def test_a_chat_is_sent_under_our_own_id():
    translation = SGLANG.translate(call(body=b'{"model":"tiny","rid":"a","top_k":2}'))

    assert (translation.set, translation.drop) == ({"rid": RID}, ())


def test_a_response_is_sent_under_our_own_id_in_its_own_form():
    edits = SGLANG.translate(call(Route.RESPONSES)).set

    assert edits == {"request_id": b'"resp_' + ID.encode() + b'"'}


@pytest.mark.parametrize("route", [Route.EMBEDDINGS, Route.MESSAGES, Route.RERANK])
def test_routes_that_take_no_id_get_none(route: Route):
    assert SGLANG.translate(call(route)).set == {}


def test_priority_is_sent_with_its_sign_turned():
    edits = SGLANG.translate(call(priority=-3)).set

    assert edits["priority"] == b"3"


def test_a_salt_is_sent_where_the_engine_reads_one():
    assert SGLANG.translate(call(cache_salt="t")).set["cache_salt"] == b'"t"'
    assert SGLANG.translate(call(Route.MESSAGES, cache_salt="t")).set == {}


def test_code_slots_and_other_peoples_ranks_are_taken_out():
    body = b'{"model":"tiny","custom_logit_processor":"x","routed_dp_rank":1,"bootstrap_host":"h"}'

    assert SGLANG.translate(call(body=body)).drop == (
        "custom_logit_processor",
        "routed_dp_rank",
        "bootstrap_host",
    )


def test_continuous_usage_stays_for_it_works_without_the_last_usage_too():
    body = b'{"model":"tiny","stream":true,"stream_options":{"continuous_usage_stats":true}}'

    edits = SGLANG.translate(call(body=body, stream=True, meter_usage=True)).set

    assert edits["stream_options"] == b'{"continuous_usage_stats":true,"include_usage":true}'


def test_a_detokenized_text_gets_the_name_that_callers_know():
    translation = SGLANG.translate(call(Route.DETOKENIZE, b'{"model":"tiny","tokens":[1]}'))

    assert translation.set == {"skip_special_tokens": b"false"}
    assert translation.answer is not None
    assert translation.answer(b'{"text": "d\\u00e9"}') == b'{"prompt":"d\\u00e9"}'
    assert translation.answer(b"what") == b"what"


def test_a_callers_word_on_special_tokens_stands():
    body = b'{"model":"tiny","tokens":[1],"skip_special_tokens":true}'

    assert SGLANG.translate(call(Route.DETOKENIZE, body)).set == {}


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (
            400,
            {
                "object": "error",
                "message": '1 validation error:\n  x\n\n  File "/srv/http_server.py", line 1',
                "type": "Bad Request",
                "param": None,
                "code": 400,
            },
            EngineError(Verdict.NEUTRAL, "1 validation error:\n  x", "Bad Request", nested=False),
        ),
        (
            400,
            {
                "object": "error",
                "message": "This model does not appear to be an embedding model by default.",
                "type": "BadRequestError",
                "code": 400,
            },
            EngineError(
                Verdict.MISSING_ROUTE,
                "This model does not appear to be an embedding model by default.",
                "BadRequestError",
                nested=False,
            ),
        ),
        (
            404,
            {
                "error": {
                    "message": "The model 'nope' does not exist",
                    "type": "invalid_request_error",
                    "param": "model",
                    "code": 404,
                }
            },
            EngineError(
                Verdict.MISCONFIGURED,
                "The model 'nope' does not exist",
                "invalid_request_error",
                None,
                "model",
            ),
        ),
        (
            503,
            {"object": "error", "message": "The request queue is full.", "code": 503},
            EngineError(
                Verdict.FULL, "The request queue is full.", "overloaded_error", nested=False
            ),
        ),
        (
            501,
            {"object": "error", "message": "not for this model", "type": "NotImplementedError"},
            EngineError(Verdict.NEUTRAL, "not for this model", "NotImplementedError", nested=False),
        ),
    ],
)
def test_errors_are_read_as_it_sends_them(status: int, body: object, expected: EngineError):
    assert SGLANG.read_error(status, json.dumps(body).encode()) == expected


def test_a_probe_says_what_the_engine_is_and_names_adapters_as_they_are_asked_for():
    assert asyncio.run(SGLANG.probe(client(ANSWERS), TARGET)) == Probe(
        engine="sglang",
        version="0.5.23",
        models=(ModelCard("tiny", 8192), ModelCard("tiny:sql", None, "tiny")),
        limit=50,
    )


def test_an_older_release_is_asked_by_its_older_paths():
    answers = {"/health": "", "/v1/models": MODELS, "/get_server_info": {"version": "0.4"}}

    probe = asyncio.run(SGLANG.probe(client(answers), TARGET))

    assert (probe.version, probe.limit) == ("0.4", None)


def test_the_operators_limit_counts_where_the_ranks_say_nothing():
    answers = {
        **ANSWERS,
        "/server_info": {"max_running_requests": 64, "internal_states": [{"x": 1}]},
    }

    assert asyncio.run(SGLANG.probe(client(answers), TARGET)).limit == 64


def test_an_engine_that_is_starting_is_refused():
    with pytest.raises(EngineRefused) as refused:
        asyncio.run(SGLANG.probe(client({**ANSWERS, "/ready": 503}), TARGET))

    assert refused.value.status == 503


def test_the_load_is_summed_over_ranks_and_kv_use_is_the_fullests():
    load = asyncio.run(SGLANG.read_load(client(ANSWERS), TARGET))

    assert load == Load(running=5, waiting=1, kv_use=0.75)


def test_a_rank_that_does_not_say_makes_the_sum_unknown():
    loads = {"loads": [{"num_running_reqs": 2, "num_waiting_reqs": 0}, {"num_waiting_reqs": 1}]}

    load = asyncio.run(SGLANG.read_load(client({"/v1/loads": loads}), TARGET))

    assert load == Load(running=None, waiting=1, kv_use=None)


def test_a_release_without_load_snapshots_is_read_by_its_metrics():
    load = asyncio.run(SGLANG.read_load(client({"/metrics": METRICS}), TARGET))

    assert load == Load(running=4, waiting=2, kv_use=0.5)


def test_a_release_with_neither_has_an_unknown_load():
    assert asyncio.run(SGLANG.read_load(client({}), TARGET)) == Load()


def test_an_abort_names_our_id_in_both_forms():
    seen: list[httpx.Request] = []

    asyncio.run(SGLANG.abort(client({}, seen), TARGET, ID))

    assert [(request.url.path, json.loads(request.content)) for request in seen] == [
        ("/abort_request", {"rid": ID}),
        ("/abort_request", {"rid": f"resp_{ID}"}),
    ]


@pytest.mark.parametrize("request_id", ["", "0", ID[:-1], ID + "0", ID[:-1] + "/"])
def test_an_id_that_could_be_the_beginning_of_anothers_is_never_sent(request_id: str):
    seen: list[httpx.Request] = []

    asyncio.run(SGLANG.abort(client({}, seen), TARGET, request_id))

    assert seen == []
