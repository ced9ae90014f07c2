"""What every adapter must hold, whatever its engine."""

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.adapters.base import Adapter, Call, EngineError, Load, Probe, Target, Translation
from forebay.adapters.registry import ADAPTERS
from forebay.policies.contracts import (
    EngineFailed,
    EngineUnreachable,
    InvalidRequest,
    Route,
)

ID = "0123456789abcdef" * 2
SECRET = "sk-canary"
TARGET = Target("e-0", "http://engine", SECRET)
OURS = {
    *("model", "stream_options", "priority", "cache_salt", "rid", "request_id"),
    *("response_format", "skip_special_tokens", "content", "add_special", "with_pieces"),
}
"""All that any adapter may put into a body."""
JSON_ROUTES = [route for route in Route if route is not Route.TRANSCRIPTIONS]

adapters = pytest.mark.parametrize("adapter", ADAPTERS.values(), ids=ADAPTERS.keys())
each_field = pytest.mark.parametrize(
    ("adapter", "name"),
    [
        pytest.param(adapter, name, id=f"{engine}-{name}")
        for engine, adapter in ADAPTERS.items()
        for name in sorted(adapter.control_fields)
    ],
)


def call(route: Route, members: dict[str, object], **more: object) -> Call:
    raw = {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in members.items()}
    return Call(ID, route, "POST", route.value, "tiny", raw, **more)  # type: ignore[arg-type] - kwargs


def splice(sent: Call, translation: Translation) -> dict[str, bytes]:
    """Apply the edits as the gateway must, the slow and plain way."""
    kept = {n: bytes(raw) for n, raw in sent.members.items() if n not in translation.drop}
    return kept | translation.set


def translate(adapter: Adapter, sent: Call) -> Translation | None:
    """Translate; None for a route that the engine never has."""
    try:
        return adapter.translate(sent)
    except InvalidRequest:
        return None


@pytest.mark.parametrize("engine", ADAPTERS)
def test_an_adapter_is_known_by_its_engines_name(engine: str):
    adapter = ADAPTERS[engine]

    assert adapter.engine == engine
    assert adapter.keep_alive_s > 1
    assert all(name == name.lower() for name in adapter.control_headers)


@each_field
def test_no_control_field_of_a_caller_arrives(adapter: Adapter, name: str):
    arrived: list[Route] = []
    for route in JSON_ROUTES:
        sent = call(route, {"model": "tiny", "prompt": "hi", name: "canary"})
        translation = translate(adapter, sent)
        if translation and b'"canary"' in splice(sent, translation).values():
            arrived.append(route)

    assert arrived == []


@each_field
def test_a_pool_can_let_a_control_field_through(adapter: Adapter, name: str):
    sent = call(Route.CHAT, {"model": "tiny", name: "canary"}, allow=frozenset({name}))

    translation = adapter.translate(sent)

    assert name not in translation.drop
    if name not in translation.set:
        assert splice(sent, translation)[name] == b'"canary"'


@adapters
def test_a_multipart_form_loses_every_control_field(adapter: Adapter):
    form = Call(ID, Route.TRANSCRIPTIONS, "POST", Route.TRANSCRIPTIONS.value, "tiny", {})

    translation = translate(adapter, form)

    if translation is not None:
        assert set(translation.drop) == adapter.control_fields
        assert translation.set == {"model": b'"tiny"'}


@adapters
@pytest.mark.parametrize("route", JSON_ROUTES)
@pytest.mark.parametrize("stream", [False, True])
def test_only_our_own_members_are_ever_written(adapter: Adapter, route: Route, *, stream: bool):
    members: dict[str, object] = {"model": "caller's", "prompt": "hi", "stream": stream}
    sent = call(route, members, stream=stream, meter_usage=stream, priority=-1, cache_salt="salt")

    translation = translate(adapter, sent)

    if translation is not None:
        assert translation.set.keys() <= OURS
        assert translation.set["model"] == b'"tiny"'
        assert not set(translation.drop) & translation.set.keys()
        assert all(msgspec.json.decode(raw) is not None for raw in translation.set.values())


@adapters
def test_the_members_that_were_sent_are_never_changed_in_place(adapter: Adapter):
    members: dict[str, object] = {"model": "m", "messages": [], "priority": 1, "stream": True}
    sent = call(Route.CHAT, members, stream=True, meter_usage=True)
    before = dict(sent.members)

    adapter.translate(sent)

    assert sent.members == before


@adapters
def test_a_request_without_a_body_is_sent_without_edits(adapter: Adapter):
    path = "/v1/responses/resp_1/cancel?x=1"
    sent = Call(ID, Route.RESPONSES, "POST", path, "tiny", {}, priority=1, cache_salt="salt")

    translation = adapter.translate(sent)

    assert (translation.path, translation.set, translation.drop) == (path, {}, ())
    assert translation.headers == (("x-request-id", ID),)


@pytest.mark.parametrize("engine", sorted(ADAPTERS.keys() - {"sim"}))
def test_the_page_on_engines_names_every_control_field(engine: str):
    page = (Path(__file__).parents[2] / "docs" / "engines.md").read_text()
    callers = page.partition("## What callers may not say")[2]
    section = callers.partition(f"### {engine}")[2].partition("\n#")[0]

    assert set(re.findall(r"`([^`]+)`", section)) >= ADAPTERS[engine].control_fields


@adapters
@settings(deadline=None)
@given(status=st.integers(100, 599), body=st.binary())
def test_no_answer_makes_reading_an_error_raise(adapter: Adapter, status: int, body: bytes):
    error = adapter.read_error(status, body)

    assert isinstance(error, EngineError)
    assert error.message


GARBAGE = st.tuples(
    st.sampled_from([200, 200, 200, 204, 302, 400, 401, 404, 405, 500, 501, 503]),
    st.sampled_from(
        [
            b"",
            b"{}",
            b"[]",
            b"null",
            b"<html>",
            b"\xff\xfe",
            b'{"data": 3}',
            b'{"data": [3, {"id": 7}, {"id": "m", "max_model_len": "x"}]}',
            b'{"version": [], "internal_states": {}, "max_running_requests": -1}',
            b'{"loads": [{"num_running_reqs": "many", "token_usage": null}]}',
            b'{"total_slots": "8", "default_generation_settings": []}',
            b'[{"numActiveRequests": null, "kvCacheStats": {"maxNumBlocks": 0}}]',
            b"vllm:num_requests_running{ NaN\nprocess_start_time_seconds x",
            b"[" * 5000,
        ]
    ),
)


def garbage_client(draw: Callable[[], tuple[int, bytes]]) -> httpx.AsyncClient:
    def answer(_: httpx.Request) -> httpx.Response:
        status, body = draw()
        return httpx.Response(status, content=body)

    return httpx.AsyncClient(transport=httpx.MockTransport(answer))


@adapters
@settings(deadline=None)
@given(data=st.data())
def test_garbage_is_a_probe_or_the_error_of_the_contract(adapter: Adapter, data: st.DataObject):
    http = garbage_client(lambda: data.draw(GARBAGE))

    try:
        probe = asyncio.run(adapter.probe(http, TARGET))
    except EngineFailed:
        return
    assert isinstance(probe, Probe)
    assert probe.limit is None or probe.limit > 0


@adapters
@settings(deadline=None)
@given(data=st.data())
def test_garbage_is_a_load_or_the_error_of_the_contract(adapter: Adapter, data: st.DataObject):
    http = garbage_client(lambda: data.draw(GARBAGE))

    try:
        load = asyncio.run(adapter.read_load(http, TARGET))
    except EngineFailed:
        return
    assert isinstance(load, Load)
    assert load.kv_use is None or 0 <= load.kv_use <= 1


FAILURES = [
    httpx.ConnectError("no"),
    httpx.ConnectTimeout("no"),
    httpx.ReadTimeout("no"),
    httpx.ReadError("no"),
    httpx.RemoteProtocolError("no"),
    httpx.LocalProtocolError(f"illegal header value Bearer {SECRET}"),
    httpx.DecodingError("no"),
    httpx.UnsupportedProtocol("no"),
    httpx.TooManyRedirects("no"),
]


def failing_client(failure: Exception) -> httpx.AsyncClient:
    def fail(_: httpx.Request) -> httpx.Response:
        raise failure

    return httpx.AsyncClient(transport=httpx.MockTransport(fail))


@adapters
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_a_failed_call_is_an_error_of_the_contract_without_the_key_in_it(
    adapter: Adapter, failure: Exception
):
    with pytest.raises(EngineFailed) as failed:
        asyncio.run(adapter.probe(failing_client(failure), TARGET))

    assert "e-0" in failed.value.message
    assert SECRET not in failed.value.message
    assert failed.value.__suppress_context__


@adapters
def test_a_key_that_no_header_can_carry_is_an_error_of_the_contract(adapter: Adapter):
    http = garbage_client(lambda: (200, b"{}"))

    with pytest.raises(EngineUnreachable, match="check its url and key"):
        asyncio.run(adapter.probe(http, Target("e-0", "http://engine", "schlüssel-\u4e2d")))


@adapters
def test_an_answer_without_end_is_refused(adapter: Adapter):
    http = garbage_client(lambda: (200, b"x" * (9 << 20)))

    with pytest.raises(EngineFailed, match="more than 8 MiB"):
        asyncio.run(adapter.probe(http, TARGET))


@adapters
@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: type(failure).__name__)
def test_an_abort_never_raises(adapter: Adapter, failure: Exception):
    asyncio.run(adapter.abort(failing_client(failure), TARGET, ID))
