"""What steers an engine is set by forebay alone: no caller's control field or header arrives."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from forebay.adapters.registry import ADAPTERS
from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from tests.journeys.conftest import Go, Kit

CANARY = "canary-7f3a"
ENGINES = [engine for engine in ADAPTERS if engine != "sim"]
ROUTES = ["/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"]
OK: dict[str, Any] = {"id": "c", "choices": []}


def asked(kit: Kit, path: str) -> dict[str, Any]:
    body = kit.chat(max_tokens=1)
    if path == "/v1/responses":
        return {"model": "m", "input": "hi"}
    if path == "/v1/completions":
        return {"model": "m", "prompt": "hi"}
    return body


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("engine", ENGINES)
def test_no_control_field_arrives(go: Go, kit: Kit, engine: str, path: str):
    fields = sorted(ADAPTERS[engine].control_fields)

    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK), kind=engine) as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
        ):
            body = asked(kit, path) | dict.fromkeys(fields, CANARY)
            answer = await gateway.ask(kit.post(body, path))
            if answer.status == 404:  # a route that this engine never has
                assert scripted.requests == []
                return
            assert answer.status == 200, answer.body
            (request,) = scripted.requests
            assert CANARY.encode() not in request
            sent = json.loads(request.partition(b"\r\n\r\n")[2])
            kept = set(sent) & set(fields)
            assert all(sent[name] != CANARY for name in kept)
            assert sorted(gateway.spy.stripped_fields) == sorted(set(fields) - kept)

    go(main())


@pytest.mark.parametrize("engine", ENGINES)
def test_each_control_field_alone_does_not_arrive_however_it_is_written(
    go: Go, kit: Kit, engine: str
):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK), kind=engine) as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
            await gateway.caller() as caller,
        ):
            for field in sorted(ADAPTERS[engine].control_fields):
                key = "".join(f"\\u{ord(letter):04x}" for letter in field)
                body = f'{{"model":"m","messages":[],"{key}":"{CANARY}"}}'
                caller.send(kit.post(body.encode()))
                assert (await caller.answer()).status == 200
                assert CANARY.encode() not in scripted.requests[-1]

    go(main())


@pytest.mark.parametrize("engine", ENGINES)
def test_no_control_header_arrives(go: Go, kit: Kit, engine: str):
    headers = "".join(f"{name}: {CANARY}\r\n" for name in sorted(ADAPTERS[engine].control_headers))

    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK), kind=engine) as scripted,
            kit.running(kit.config([scripted.section(key="engine-key")])) as gateway,
        ):
            answer = await gateway.ask(kit.post(kit.chat(), headers=headers))
            assert answer.status == 200
            (request,) = scripted.requests
            assert CANARY.encode() not in request
            assert b"authorization: Bearer engine-key\r\n" in request

    go(main())


def test_a_refused_call_is_logged_by_its_callers_id(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK)) as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
        ):
            ask = kit.post(kit.chat(model="none"), headers="x-request-id: mine\r\n")
            answer = await gateway.ask(ask)
            assert (answer.status, answer.headers["x-request-id"]) == (404, "mine")
            (outcome,) = gateway.outcomes
            assert (outcome.request_id, outcome.engine_id) == ("mine", "")

    go(main())


def test_only_listed_headers_go_upstream(go: Go, kit: Kit):
    sent = (
        "accept: text/event-stream\r\nuser-agent: me\r\naccept-encoding: gzip, br\r\n"
        "authorization: Bearer theirs\r\ncookie: a=b\r\nx-api-key: theirs\r\nx-anything: 1\r\n"
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"
        "tracestate: a=1\r\nx-request-id: mine\r\nforwarded: for=1\r\nte: trailers\r\n"
    )

    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK)) as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
        ):
            answer = await gateway.ask(kit.post(kit.chat(), headers=sent))
            assert answer.headers["x-request-id"] == "mine"
            head = scripted.requests[0].partition(b"\r\n\r\n")[0].decode().split("\r\n")[1:]
            told = dict(line.split(": ", 1) for line in head)
            assert told.pop("host").startswith("127.0.0.1:")
            assert told.pop("content-length") == str(len(scripted.bodies[0]))
            ours = told.pop("x-request-id")
            assert re.fullmatch("[0-9a-f]{32}", ours)
            (outcome,) = gateway.outcomes
            assert (outcome.request_id, outcome.engine_id) == ("mine", ours)
            parent = told.pop("traceparent").split("-")
            assert parent[1] == "0af7651916cd43dd8448eb211c80319c"
            assert told == {
                "accept": "text/event-stream",
                "accept-encoding": "identity",
                "content-type": "application/json",
                "tracestate": "a=1",
            }

    go(main())


def test_a_tracestate_longer_than_anyone_must_pass_on_is_dropped(go: Go, kit: Kit):
    parent = "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n"

    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK)) as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
        ):
            for size in (512, 513):
                state = "a=" + "x" * (size - 2)
                headers = f"{parent}tracestate: {state}\r\n"
                assert (await gateway.ask(kit.post(kit.chat(), headers=headers))).status == 200
            assert [b"tracestate" in request for request in scripted.requests] == [True, False]

    go(main())


def test_a_pool_may_let_a_field_through(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole(OK), kind="vllm") as scripted:
            settings = kit.config([scripted.section()], pool={"allow_fields": ["chat_template"]})
            async with kit.running(settings) as gateway:
                body = kit.chat(chat_template="theirs", priority=-5)
                assert (await gateway.ask(kit.post(body))).status == 200
                sent = json.loads(scripted.bodies[0])
                assert sent["chat_template"] == "theirs"
                assert "priority" not in sent
                assert gateway.spy.stripped_fields == ["priority"]

    go(main())


def test_unknown_fields_of_model_behaviour_pass_as_they_came(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole(OK), kind="vllm") as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
        ):
            raw = b'{ "model" :"m","top_k": 5 ,"new_thing":{"a" : [1,2 ]} , "messages":[] }'
            assert (await gateway.ask(kit.post(raw))).status == 200
            assert scripted.bodies == [raw]

    go(main())


def test_a_field_taken_out_again_for_a_retry_is_counted_once(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole({"error": "broken"}, status=500), kind="vllm") as broken,
            kit.engine(kit.whole(OK), kind="vllm") as good,
        ):
            sections = [broken.section("e0"), good.section("e1")]
            async with kit.running(kit.config(sections)) as gateway:
                for _ in range(4):
                    answer = await gateway.ask(kit.post(kit.chat(priority=1)))
                    assert answer.status == 200
                assert broken.requests
                assert gateway.spy.stripped_fields == ["priority"] * 4

    go(main())


def test_a_form_loses_its_control_fields_too(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole({"text": "hi"}), kind="vllm") as scripted,
            kit.running(kit.config([scripted.section()])) as gateway,
        ):
            fields = {"model": "m", "priority": CANARY, "language": "en"}
            parts = [
                f'--b\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'
                for name, value in fields.items()
            ]
            audio = '--b\r\ncontent-disposition: form-data; name="file"; filename="a"\r\n\r\n'
            body = ("".join(parts) + audio).encode() + bytes(range(256)) + b"\r\n--b--\r\n"
            data = kit.post(body, "/v1/audio/transcriptions").replace(
                b"application/json", b"multipart/form-data; boundary=b"
            )
            assert (await gateway.ask(data)).status == 200
            assert CANARY.encode() not in scripted.requests[0]
            assert scripted.bodies[0] == body.replace(parts[1].encode(), b"")
            assert gateway.spy.stripped_fields == ["priority"]

    go(main())


@pytest.mark.parametrize("shown", [False, True])
def test_diagnostics_are_shown_to_tenants_that_may_see_them(go: Go, kit: Kit, *, shown: bool):
    key = "fb_a_" + "a" * 43

    async def main() -> None:
        tenants = [{"name": "t", "keys": [digest_of(key)], "debug_headers": shown}]
        async with kit.running(kit.config(tenants=tenants)) as gateway:
            header = f"authorization: Bearer {key}\r\n"
            answer = await gateway.ask(kit.post(kit.chat(max_tokens=1), headers=header))
            assert answer.status == 200
            told = any(name.startswith("x-forebay-") for name in answer.headers)
            assert told is shown

    go(main())
