import asyncio
import json
from collections.abc import Mapping
from typing import Any

import httpx
import msgspec
import pytest

from forebay.adapters.base import Call, EngineError, Load, ModelCard, Probe, Target, Verdict
from forebay.adapters.llamacpp import LlamaCpp
from forebay.policies.contracts import EngineRefused, InvalidRequest, Route

LLAMACPP = LlamaCpp()
TARGET = Target("llama-0", "http://engine")
ID = "0123456789abcdef" * 2
MODELS = {"data": [{"id": "tiny", "meta": {"n_ctx_train": 8192}}]}
PROPS = {
    "default_generation_settings": {"n_ctx": 4096},
    "total_slots": 8,
    "build_info": "b11434-abc",
}
METRICS = """\
llamacpp:requests_processing 3
llamacpp:requests_deferred 2
"""
ANSWERS: dict[str, object] = {
    "/health": {"status": "ok"},
    "/v1/models": MODELS,
    "/props": PROPS,
    "/metrics": METRICS,
}


def call(body: bytes, route: Route = Route.CHAT, **more: Any) -> Call:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return Call(ID, route, "POST", route.value, "tiny", members, **more)


def client(answers: Mapping[str, object]) -> httpx.AsyncClient:
    def answer(request: httpx.Request) -> httpx.Response:
        body = answers.get(request.url.path, 404)
        if isinstance(body, int):
            return httpx.Response(body, json={"error": {"message": "no"}})
        if isinstance(body, str):
            return httpx.Response(200, text=body)
        return httpx.Response(200, json=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


def test_no_sampling_default_priority_or_salt_is_added():
    sent = call(b'{"model":"tiny","messages":[]}', priority=-1, cache_salt="t")

    assert LLAMACPP.translate(sent).set == {}


def test_slots_and_adapters_are_taken_out_and_sampling_stays():
    body = b'{"model":"tiny","id_slot":3,"lora":[],"mirostat":2,"cache_prompt":false}'

    assert LLAMACPP.translate(call(body)).drop == ("id_slot", "lora", "cache_prompt")


def test_usage_is_asked_for_where_it_does_not_come_by_itself():
    body = b'{"model":"tiny","stream":true}'

    chat = LLAMACPP.translate(call(body, stream=True, meter_usage=True))
    completion = LLAMACPP.translate(call(body, Route.COMPLETIONS, stream=True, meter_usage=True))

    assert chat.set == {"stream_options": b'{"include_usage":true}'}
    assert completion.set == {}


def test_scoring_is_not_found_and_reranking_passes():
    assert LLAMACPP.translate(call(b'{"model":"tiny"}', Route.RERANK)).path == "/v1/rerank"
    with pytest.raises(InvalidRequest, match="/v1/rerank") as refused:
        LLAMACPP.translate(call(b'{"model":"tiny"}', Route.SCORE))
    assert refused.value.status == 404


def test_tokenizing_is_asked_for_in_its_own_words():
    body = b'{"model":"tiny","prompt":"hi","add_special_tokens":false,"return_token_strs":true}'

    translation = LLAMACPP.translate(call(body, Route.TOKENIZE))

    assert translation.set == {"content": b'"hi"', "add_special": b"false", "with_pieces": b"true"}
    assert translation.drop == ("prompt", "add_special_tokens", "return_token_strs")


def test_tokenizing_adds_special_tokens_unless_told_not_to():
    translation = LLAMACPP.translate(call(b'{"prompt":"hi","content":"x"}', Route.TOKENIZE))

    assert translation.set == {"model": b'"tiny"', "content": b'"hi"', "add_special": b"true"}
    assert translation.drop == ("prompt",)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (
            {"tokens": [5, 7]},
            {"count": 2, "max_model_len": None, "tokens": [5, 7], "token_strs": None},
        ),
        (
            {"tokens": [{"id": 5, "piece": "he"}, {"id": 7, "piece": [195, 169]}]},
            {"count": 2, "max_model_len": None, "tokens": [5, 7], "token_strs": ["he", "é"]},
        ),
        (
            {"tokens": []},
            {"count": 0, "max_model_len": None, "tokens": [], "token_strs": None},
        ),
        ({"what": 1}, {"what": 1}),
    ],
)
def test_tokens_are_answered_as_callers_know_them(said: object, expected: object):
    answer = LLAMACPP.translate(call(b'{"prompt":"hi"}', Route.TOKENIZE)).answer

    assert answer is not None
    assert json.loads(answer(json.dumps(said).encode())) == expected


@pytest.mark.parametrize(("body", "param"), [(b'{"messages":[]}', "messages"), (b"{}", "prompt")])
def test_what_it_cannot_tokenize_is_refused(body: bytes, param: str):
    with pytest.raises(InvalidRequest) as refused:
        LLAMACPP.translate(call(body, Route.TOKENIZE))

    assert (refused.value.status, refused.value.param) == (400, param)


def test_a_detokenized_text_gets_the_name_that_callers_know():
    answer = LLAMACPP.translate(call(b'{"tokens":[1]}', Route.DETOKENIZE)).answer

    assert answer is not None
    assert answer(b'{"content":"d\\u00e9"}') == b'{"prompt":"d\\u00e9"}'
    assert answer(b"what") == b"what"


@pytest.mark.parametrize(
    ("status", "message", "kind", "verdict"),
    [
        (404, "File Not Found", "not_found_error", Verdict.MISSING_ROUTE),
        (501, "This server does not support embeddings.", "not_supported", Verdict.MISSING_ROUTE),
        (400, "request (9 tokens) exceeds", "exceed_context_size_error", Verdict.NEUTRAL),
        (400, "model 'x' not found", "invalid_request_error", Verdict.MISCONFIGURED),
        (503, "Loading model", "unavailable_error", Verdict.FULL),
        (500, "image input is not supported - hint", "server_error", Verdict.NEUTRAL),
        (500, "'messages' is required", "server_error", Verdict.NEUTRAL),
        (500, "Cannot use both json_schema and grammar", "server_error", Verdict.NEUTRAL),
        (500, "Compute error.", "server_error", Verdict.BROKEN),
        (500, "got exception: vector", "server_error", Verdict.BROKEN),
        (500, "Context size has been exceeded.", "server_error", Verdict.FULL),
    ],
)
def test_errors_are_read_as_it_sends_them(status: int, message: str, kind: str, verdict: Verdict):
    body = {"error": {"code": status, "message": message, "type": kind}}

    assert LLAMACPP.read_error(status, json.dumps(body).encode()) == EngineError(
        verdict, message, kind
    )


def test_a_500_without_a_reason_counts_against_it():
    assert LLAMACPP.read_error(500, b"Internal Server Error").verdict is Verdict.BROKEN


def test_a_probe_says_what_the_server_is():
    assert asyncio.run(LLAMACPP.probe(client(ANSWERS), TARGET)) == Probe(
        engine="llamacpp",
        version="b11434-abc",
        models=(ModelCard("tiny", 4096),),
        limit=8,
        any_model=True,
    )


def test_a_router_obeys_the_name_of_the_model():
    models = {"data": [{"id": "tiny", "status": {"value": "loaded"}}]}
    answers = {"/health": "", "/v1/models": models, "/props": {}}

    probe = asyncio.run(LLAMACPP.probe(client(answers), TARGET))

    assert probe == Probe(engine="llamacpp", models=(ModelCard("tiny"),))


def test_a_server_that_still_loads_is_refused():
    with pytest.raises(EngineRefused) as refused:
        asyncio.run(LLAMACPP.probe(client({"/health": 503}), TARGET))

    assert refused.value.status == 503


def test_the_load_is_read_from_the_metrics():
    load = asyncio.run(LLAMACPP.read_load(client(ANSWERS), TARGET))

    assert load == Load(running=3, waiting=2)


@pytest.mark.parametrize("metrics", [501, 400, 404])
def test_without_metrics_busy_slots_are_counted(metrics: int):
    slots = [{"id": 0, "is_processing": True}, {"id": 1, "is_processing": False}]

    load = asyncio.run(LLAMACPP.read_load(client({"/metrics": metrics, "/slots": slots}), TARGET))

    assert load == Load(running=1)


def test_without_metrics_and_slots_the_load_is_unknown():
    assert asyncio.run(LLAMACPP.read_load(client({"/metrics": 501}), TARGET)) == Load()
