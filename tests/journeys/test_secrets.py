"""What callers send shows up nowhere but at the engine and in their own answers."""

from __future__ import annotations

import gzip
import json
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import TYPE_CHECKING, Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from forebay.gateway.keys import digest_of

if TYPE_CHECKING:
    from collections.abc import Generator

    import pytest
    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit

CANARY = "canary7f3a"
KEY = "fb_00000000_canary7f3asecretkeycanary7f3asecretkeycana"


@contextmanager
def collecting() -> Generator[tuple[list[bytes], str]]:
    """Receive traces by OTLP, in a thread: a gateway that ends waits for its last ones."""
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            packed = self.headers["content-encoding"] == "gzip"
            received.append(gzip.decompress(body) if packed else body)
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - likewise

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield received, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


HEADERS = (
    "authorization",
    "x-api-key",
    "cookie",
    "user-agent",
    "referer",
    "origin",
    "accept",
    "accept-language",
    "content-language",
    "x-forebay-session",
    "x-forebay-sla",
    "x-request-id",
    "traceparent",
    "tracestate",
    "baggage",
    "forwarded",
    "x-forwarded-for",
    "anthropic-version",
    "openai-organization",
    "x-anything",
)


def headers(name: str) -> str:
    value = f"Bearer {KEY}" if name == "authorization" else f"{CANARY} {CANARY}"
    return f"{name}: {value}\r\n"


def bodies(kit: Kit) -> list[Any]:
    chat = kit.chat(CANARY, user=CANARY, metadata={CANARY: CANARY}, **{CANARY: CANARY})
    return [
        chat,
        chat | {"stream": True},
        chat | {"model": CANARY},
        chat | {"stream": CANARY},
        chat | {"messages": CANARY},
        chat | {"max_tokens": CANARY},
        chat | {"tools": [{"type": "function", "function": {"name": CANARY}}]},
        chat | {"priority": CANARY, "cache_salt": CANARY},
        f'{{"model":"m","{CANARY}":'.encode(),
        f'{{"{CANARY}":1,"model":"m","model":"{CANARY}"}}'.encode(),
        f"{CANARY}".encode() + b"\xff",
        chat | {"sim": {"fault": "cut"}},
        chat | {"sim": {"fault": "refuse"}},
        chat | {"sim": {"fault": "cut"}, "stream": True},
        chat | {"sim": {"fault": CANARY}},
        {"model": "m", "input": CANARY, "previous_response_id": CANARY},
    ]


PATHS = (
    "/v1/chat/completions",
    f"/v1/chat/completions?{CANARY}={CANARY}",
    "/v1/completions",
    "/v1/messages",
    "/v1/responses",
    f"/v1/responses/{CANARY}",
    f"/v1/models/{CANARY}",
    f"/{CANARY}",
    f"/metrics?{CANARY}",
    f"/readyz?pool={CANARY}",
)


async def told(gateway: Gateway, kit: Kit) -> None:
    """Send canaries wherever they can be."""
    for body in bodies(kit):
        await gateway.ask(kit.post(body))
    for path in PATHS:
        for body in bodies(kit)[:1] + bodies(kit)[8:10]:
            await gateway.ask(kit.post(body, path))
        await gateway.ask(kit.get(path))
    for name in HEADERS:
        await gateway.ask(kit.post(bodies(kit)[0], headers=headers(name)))
        await gateway.ask(kit.post(bodies(kit)[2], headers=headers(name)))
    await gateway.ask(b"GET /%b HTTP/1.1\r\n%b\r\n\r\n" % ((CANARY.encode(),) * 2))


def test_canaries_reach_no_log_metric_or_trace(go: Go, kit: Kit, capfd: pytest.CaptureFixture[str]):
    async def main() -> None:
        with collecting() as (received, otlp):
            sections = [kit.sim("e0"), kit.sim("e1")]
            health = {"interval": 3600.0, "load_interval": 3600.0, "breaker_fails": 2}
            settings = kit.config(
                sections,
                pool={"health": health, "retry": {"budget": 1.0}},
                telemetry={"otlp": otlp, "sample": 1.0, "log_level": "debug"},
            )
            async with kit.running(settings) as gateway:
                await told(gateway, kit)
                metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
                records = "".join(gateway.records.lines)
            traces = "".join(str(ExportTraceServiceRequest.FromString(body)) for body in received)
        printed = "".join(capfd.readouterr())
        for place in (metrics, records, traces, printed):
            assert CANARY not in place
        assert "forebay_requests_total" in metrics
        assert '"event":"request"' in printed
        assert "spans" in traces

    go(main())


def test_an_engines_words_go_to_that_caller_only(
    go: Go, kit: Kit, capfd: pytest.CaptureFixture[str]
):
    async def main() -> None:
        async def script(peer: Peer, request: bytes, number: int) -> object:
            said = {
                "error": {"message": f"I read: {CANARY}", "type": CANARY, "code": f"a {CANARY}"}
            }
            status = (400, 422, 500, 503, 401, 404)[number % 6]
            if b"cut" in request:
                peer.send(kit.events_head() + kit.chunk(kit.delta(CANARY)))
                return False
            peer.send(kit.whole(said, status=status))
            return True

        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], telemetry={"log_level": "debug"})
            async with kit.running(settings) as gateway:
                answers = [await gateway.ask(kit.post(kit.chat())) for _ in range(3)]
                answers.append(await gateway.ask(kit.post(kit.chat("cut", stream=True))))
                answers += [await gateway.ask(kit.post(kit.chat())) for _ in range(3)]
                assert [answer.status for answer in answers[:3]] == [400, 422, 502]
                assert CANARY in answers[0].body.decode()
                metrics = (await gateway.ask(kit.get("/metrics"))).body.decode()
                records = "".join(gateway.records.lines)
        printed = "".join(capfd.readouterr())
        for place in (metrics, records, printed):
            assert CANARY not in place

    go(main())


def test_error_texts_hold_nothing_of_a_caller_but_its_own_names(go: Go, kit: Kit):
    async def main() -> None:
        engine_said = ("max_tokens", "tools", "messages", "fault")
        async with kit.running(kit.config([kit.sim("e0")])) as gateway:
            for path in ("/v1/chat/completions", "/v1/messages", "/v1/responses"):
                for body in bodies(kit):
                    answer = await gateway.ask(kit.post(body, path))
                    text = answer.body.decode()
                    if answer.status >= 400 and CANARY in text:
                        own_name = "there is no model" in text or "there is no response" in text
                        assert own_name or any(word in text for word in engine_said), text
            for name in HEADERS:
                answer = await gateway.ask(kit.post(b"{", headers=headers(name)))
                assert CANARY not in answer.body.decode()
                assert CANARY not in "".join(answer.headers.values())

    go(main())


def test_keys_and_cookies_never_go_upstream_and_an_engines_key_never_down(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole({"id": "c", "choices": []})) as engine:
            tenants = [{"name": "acme", "keys": [digest_of(KEY)]}]
            section = engine.section(key="engine-secret")
            async with kit.running(kit.config([section], tenants=tenants)) as gateway:
                given = f"authorization: Bearer {KEY}\r\ncookie: {CANARY}\r\nx-api-key: {KEY}\r\n"
                answer = await gateway.ask(kit.post(kit.chat(), headers=given))
                assert answer.status == 200
                assert "engine-secret" not in str(answer)
                (request,) = engine.requests
                assert CANARY.encode() not in request
                assert request.count(b"authorization: Bearer engine-secret\r\n") == 1
                assert "engine-secret" not in "".join(gateway.records.lines)
                assert "engine-secret" not in repr(gateway.process.config)
                refused = await gateway.ask(kit.post(kit.chat(), headers="x-api-key: nope\r\n"))
                assert refused.status == 401
                assert json.loads(refused.body)["error"]["code"] == "invalid_api_key"
                assert "nope" not in refused.body.decode()
                assert refused.headers["www-authenticate"] == "Bearer"

    go(main())
