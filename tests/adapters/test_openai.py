import asyncio
from typing import Any

import httpx
import msgspec
import pytest

from forebay.adapters.base import Call, Load, ModelCard, Probe, Target, Verdict
from forebay.adapters.openai import OpenAI
from forebay.policies.contracts import EngineRefused, Route

OPENAI = OpenAI()
TARGET = Target("provider", "https://provider", "the-key")
ID = "0123456789abcdef" * 2


def call(body: bytes, **more: Any) -> Call:
    members = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    return Call(ID, Route.CHAT, "POST", Route.CHAT.value, "gpt-4o-mini", members, **more)


def client(status: int, body: object) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        transport=httpx.MockTransport(lambda _: httpx.Response(status, json=body))
    )


def test_the_model_is_renamed_and_nothing_of_ours_is_added():
    translation = OPENAI.translate(
        call(b'{"model":"mini","messages":[]}', priority=4, cache_salt="tenant")
    )

    assert translation.set == {"model": b'"gpt-4o-mini"'}


def test_a_caller_cannot_choose_a_dearer_tier_or_another_model_or_address():
    body = b'{"model":"gpt-4o-mini","service_tier":"priority","models":["gpt-5"],"api_base":"http"}'

    assert OPENAI.translate(call(body)).drop == ("service_tier", "models", "api_base")


def test_usage_is_asked_for_where_the_gateway_meters():
    metered = call(b'{"model":"gpt-4o-mini","stream":true}', stream=True, meter_usage=True)

    assert OPENAI.translate(metered).set == {"stream_options": b'{"include_usage":true}'}


def test_a_model_that_the_provider_does_not_have_is_a_wrong_configuration():
    body = (
        b'{"error":{"message":"no access","type":"invalid_request_error","code":"model_not_found"}}'
    )

    assert OPENAI.read_error(404, body).verdict is Verdict.MISCONFIGURED


def test_the_list_of_models_is_to_show_not_to_filter_by():
    http = client(200, {"data": [{"id": "gpt-4o"}, {"id": "gpt-4o-mini"}, {"no": "name"}]})

    assert asyncio.run(OPENAI.probe(http, TARGET)) == Probe(
        engine="openai", models=(ModelCard("gpt-4o"), ModelCard("gpt-4o-mini")), any_model=True
    )


def test_a_server_without_a_list_of_models_is_there_all_the_same():
    http = client(404, {"detail": "Not Found"})

    assert asyncio.run(OPENAI.probe(http, TARGET)) == Probe(engine="openai", any_model=True)


def test_a_wrong_key_is_told_with_its_status_and_without_the_key():
    with pytest.raises(EngineRefused) as refused:
        asyncio.run(OPENAI.probe(client(401, {"error": {"message": "bad key"}}), TARGET))

    assert refused.value.status == 401
    assert refused.value.message == (
        "endpoint provider answered GET /v1/models with 401:"
        " the engine refuses the endpoint's key (401)"
    )


def test_its_load_is_unknown_never_idle():
    assert asyncio.run(OPENAI.read_load(client(200, {}), TARGET)) == Load()
