"""Whatever callers and engines send: a clean answer or an end, and nothing poisoned."""

from __future__ import annotations

import asyncio
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Answer, Gateway, Go, Kit

CHAT = "/v1/chat/completions"
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
BODY = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
CHUNKS = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)
GET = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"

REFUSED = {
    "cl and te": HEAD + LENGTH + CHUNKED + b"\r\n" + CHUNKS,
    "te and cl": HEAD + CHUNKED + LENGTH + b"\r\n" + CHUNKS,
    "two cl": HEAD + LENGTH + b"content-length: 3\r\n\r\n" + BODY,
    "two same cl": HEAD + LENGTH + LENGTH + b"\r\n" + BODY,
    "cl list": HEAD + b"content-length: 5, 5\r\n\r\n" + BODY,
    "negative cl": HEAD + b"content-length: -1\r\n\r\n" + BODY,
    "plus cl": HEAD + b"content-length: +5\r\n\r\n" + BODY,
    "hex cl": HEAD + b"content-length: 0x5\r\n\r\n" + BODY,
    "huge cl": HEAD + b"content-length: 99999999999999999999999\r\n\r\n" + BODY,
    "empty cl": HEAD + b"content-length: \r\n\r\n" + BODY,
    "te identity": HEAD + b"transfer-encoding: identity\r\n\r\n" + BODY,
    "te xchunked": HEAD + b"transfer-encoding: xchunked\r\n\r\n" + CHUNKS,
    "te twice": HEAD + CHUNKED + CHUNKED + b"\r\n" + CHUNKS,
    "te chunked, identity": HEAD + b"transfer-encoding: chunked, identity\r\n\r\n" + CHUNKS,
    "te gzip": HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n" + CHUNKS,
    "te vtab": HEAD + b"transfer-encoding: \x0bchunked\r\n\r\n" + CHUNKS,
    "te in http/1.0": HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + CHUNKED + b"\r\n" + CHUNKS,
    "space before colon": HEAD + b"content-length : %d\r\n\r\n" % len(BODY) + BODY,
    "space first": HEAD + b" content-length: %d\r\n\r\n" % len(BODY) + BODY,
    "obs-fold": HEAD + b"x: a\r\n b\r\n" + LENGTH + b"\r\n" + BODY,
    "bare lf": HEAD.replace(b"\r\n", b"\n") + b"\n",
    "bare cr": HEAD + b"x: a\rcontent-length: 5\r\n\r\n" + BODY,
    "nul in value": HEAD + b"x: a\x00b\r\n\r\n",
    "nul in name": HEAD + b"x\x00y: a\r\n\r\n",
    "no colon": HEAD + b"nonsense\r\n\r\n",
    "empty name": HEAD + b": a\r\n\r\n",
    "chunk size overflow": HEAD + CHUNKED + b"\r\nfffffffffffffffff\r\n",
    "chunk size negative": HEAD + CHUNKED + b"\r\n-5\r\nhello\r\n0\r\n\r\n",
    "chunk size 0x": HEAD + CHUNKED + b"\r\n0x5\r\nhello\r\n0\r\n\r\n",
    "chunk size space": HEAD + CHUNKED + b"\r\n5 \r\nhello\r\n0\r\n\r\n",
    "chunk too long": HEAD + CHUNKED + b"\r\n3\r\nhello\r\n0\r\n\r\n",
    "chunk bare lf": HEAD + CHUNKED + b"\r\n5\nhello\n0\n\n",
    "no version": b"GET /healthz\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "http/3.7": b"GET /healthz HTTP/3.7\r\nhost: x\r\n\r\n",
    "bad method": b"G@T /healthz HTTP/1.1\r\nhost: x\r\n\r\n",
    "long method": b"A" * 10_000 + b" / HTTP/1.1\r\nhost: x\r\n\r\n",
    "tls": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "binary": bytes(range(256)),
    "control in url": b"GET /heal\x01thz HTTP/1.1\r\nhost: x\r\n\r\n",
    "space in url": b"GET /a b HTTP/1.1\r\nhost: x\r\n\r\n",
    "long url": b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
    "long header": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 70_000 + b"\r\n\r\n",
    "endless header": b"GET /healthz HTTP/1.1\r\nhost: x\r\nx: " + b"y" * 200_000,
    "many headers": b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 5000 + b"\r\n",
    "two hosts": b"GET /healthz HTTP/1.1\r\nhost: x\r\nhost: y\r\n\r\n",
    "unknown expectation": HEAD + LENGTH + b"expect: tea\r\n\r\n" + BODY,
    "gzip body": HEAD + LENGTH + b"content-encoding: gzip\r\n\r\n" + BODY,
    "too long": HEAD + b"content-length: 100000000\r\n\r\n",
    "too long, expecting": HEAD + b"content-length: 100000000\r\nexpect: 100-continue\r\n\r\n",
}
"""Each is refused, or ends with the connection."""

STATUSES = {
    "long url": 414,
    "long header": 431,
    "endless header": 431,
    "many headers": 431,
    "unknown expectation": 417,
    "gzip body": 415,
    "too long": 413,
    "too long, expecting": 413,
    "te gzip": 501,
    "no version": 505,
}


def well_said(body: bytes, path: str = CHAT) -> bool:
    """Whether an error is JSON in the shape of its route."""
    said = json.loads(body)
    if path.startswith("/v1/messages"):
        return said["type"] == "error" and set(said["error"]) == {"type", "message"}
    return set(said) == {"error"} and set(said["error"]) == {"message", "type", "param", "code"}


async def good(gateway: Gateway) -> bool:
    """Whether a fresh connection is served."""
    answer = await gateway.ask(GET)
    return (answer.status, answer.body) == (200, b'{"status":"ok"}')


async def refusals(gateway: Gateway, data: bytes) -> list[Answer]:
    """Send bytes, leave the sending side open, and read every answer until the end."""
    async with await gateway.caller() as caller:
        caller.send(data)
        answers: list[Answer] = []
        while True:
            try:
                answers.append(await caller.answer("GET"))
            except (asyncio.IncompleteReadError, ConnectionError):
                return answers
            if answers[-1].headers.get("connection") != "close":
                return answers


def test_what_could_be_read_in_two_ways_is_refused(go: Go, kit: Kit):
    async def main() -> None:
        problems: dict[str, object] = {}
        async with kit.engine(kit.whole({"ok": 1})) as engine:
            limits = {"header_timeout": 0.3, "body_timeout": 0.3}
            settings = kit.config([engine.section()], server=limits)
            async with kit.running(settings) as gateway:
                for name, data in REFUSED.items():
                    answers = await refusals(gateway, data + GET)
                    statuses = [answer.status for answer in answers]
                    if statuses not in ([STATUSES.get(name, 400)], [408]):
                        problems[name] = statuses
                    elif not well_said(answers[0].body):
                        problems[name] = answers[0].body
                assert await good(gateway)
                await gateway.quiet()
            assert engine.requests == []
        assert problems == {}

    go(main())


BAD_BODIES = {
    "empty": b"",
    "array": b"[]",
    "null": b"null",
    "bom": b"\xef\xbb\xbf" + BODY,
    "latin-1": b'{"model":"m","x":"\xe9"}',
    "nan": b'{"model":"m","temperature":NaN}',
    "surrogate": b'{"model":"m","x":"\\ud800"}',
    "two models": b'{"model":"m","model":"m"}',
    "escaped second model": b'{"model":"m","mod\\u0065l":"n"}',
    "two streams": b'{"model":"m","stream":true,"stream":false}',
    "deep": b'{"model":"m","x":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    "cut": BODY[:-1],
    "two objects": BODY + BODY,
    "model number": b'{"model":1}',
    "model empty": b'{"model":""}',
    "model list": b'{"model":["m"]}',
    "stream text": b'{"model":"m","stream":"yes"}',
    "stream number": b'{"model":"m","stream":1}',
}


@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/responses", "/tokenize"])
def test_a_bad_body_is_a_400_in_the_routes_dialect_and_the_connection_stays(
    go: Go, kit: Kit, path: str
):
    async def main() -> None:
        problems: dict[str, object] = {}
        async with (
            kit.running(kit.config()) as gateway,
            await gateway.caller() as caller,
        ):
            for name, body in BAD_BODIES.items():
                caller.send(kit.post(body, path))
                answer = await caller.answer()
                if answer.status != 400 or not well_said(answer.body, path):
                    problems[name] = (answer.status, answer.body)
            caller.send(kit.post(kit.chat(max_tokens=1)))
            assert (await caller.answer()).status == 200
        assert problems == {}

    go(main())


def test_unknown_models_routes_and_methods_are_told_apart(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            told: dict[str, tuple[int, str]] = {}
            allowed: dict[str, str | None] = {}

            async def tell(name: str, data: bytes) -> None:
                answer = await gateway.ask(data)
                told[name] = (answer.status, answer.json["error"].get("code", ""))
                allowed[name] = answer.headers.get("allow")
                assert answer.json["error"]["message"]
                assert answer.headers["x-request-id"]

            await tell("model", kit.post(kit.chat() | {"model": "CANARY"}))
            await tell("route", kit.post({}, "/v1/nothing"))
            await tell("traversal", kit.post({}, "/v1/../v1/chat/completions"))
            await tell("get", kit.get(CHAT))
            await tell("post models", kit.post({}, "/v1/models"))
            await tell("put stored", kit.get("/v1/responses/x", method="PUT"))
            await tell("no such response", kit.get("/v1/responses/x"))
            await tell("no such action", kit.get("/v1/responses/x/y"))
            await tell("no such model", kit.get("/v1/models/x"))
            await tell("connect", b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\n")
            await tell("options", b"OPTIONS * HTTP/1.1\r\nhost: x\r\n\r\n")
            assert told == {
                "model": (404, "model_not_found"),
                "route": (404, "not_found"),
                "traversal": (404, "not_found"),
                "get": (405, "method_not_allowed"),
                "post models": (405, "method_not_allowed"),
                "put stored": (405, "method_not_allowed"),
                "no such response": (404, "response_not_found"),
                "no such action": (404, "not_found"),
                "no such model": (404, "model_not_found"),
                "connect": (404, "not_found"),
                "options": (404, "not_found"),
            }
            assert {name: methods for name, methods in allowed.items() if methods} == {
                "get": "POST",
                "post models": "GET, HEAD",
                "put stored": "GET, DELETE",
            }
            assert {outcome.route for outcome in gateway.outcomes} == {
                CHAT,
                "/v1/responses/{id}",
                "other",
            }

    go(main())


def test_a_callers_own_words_are_cut_and_escaped_in_its_error(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            name = "é\n\x1b[31m<script>" + "x" * 1000
            answer = await gateway.ask(kit.post(kit.chat() | {"model": name}))
            message = answer.json["error"]["message"]
            assert message.isascii()
            assert message.isprintable()
            assert len(message) < 300

    go(main())


def test_odd_but_legal_requests_are_served(go: Go, kit: Kit):
    async def main() -> None:
        body = json.dumps(kit.chat(max_tokens=1)).encode()
        length = b"content-length: %d\r\n\r\n" % len(body)
        odd = {
            "absolute form": kit.post(body, f"http://any.host:1{CHAT}"),
            "escaped path": kit.post(body, "/v1/chat%2Fcompletions"),
            "query": kit.post(body, CHAT + "?a=1&b"),
            "no content-type": b"POST "
            + CHAT.encode()
            + b" HTTP/1.1\r\nhost: x\r\n"
            + length
            + body,
            "text/plain": kit.post(body, headers="").replace(b"application/json", b"text/plain"),
            "case": kit.post(body).replace(b"content-length", b"CoNtEnT-LeNgTh"),
            "chunks": HEAD
            + CHUNKED
            + b"\r\n"
            + b"".join(b"1;ext=1\r\n%c\r\n" % byte for byte in body)
            + b"0\r\ntrailer: x\r\n\r\n",
            "leading line breaks": b"\r\n\r\n" + kit.post(body),
            "expect": kit.post(body, headers="expect: 100-continue\r\n"),
            "http/1.0": kit.post(body, version="1.0"),
            "upgrade": kit.post(body, headers="connection: upgrade\r\nupgrade: h2c\r\n"),
            "same header twice": kit.post(body, headers="accept: a\r\naccept: b\r\n"),
            "utf-8 header": kit.post(body, headers="x: \xc3\xa9\r\n"),
        }
        async with kit.running(kit.config()) as gateway:
            statuses = {name: (await gateway.ask(data)).status for name, data in odd.items()}
            assert statuses == dict.fromkeys(odd, 200)

    go(main())


def test_slow_requests_are_408(go: Go, kit: Kit):
    async def main() -> None:
        limits = {"header_timeout": 0.2, "body_timeout": 0.2}
        async with kit.running(kit.config(server=limits)) as gateway:
            parts = (b"POST /v1/ch", HEAD, kit.post(kit.chat())[:-3])
            for answers in await asyncio.gather(*(refusals(gateway, part) for part in parts)):
                assert [answer.status for answer in answers] == [408]
                assert well_said(answers[0].body)
            await gateway.quiet()

    go(main())


def test_the_memory_budget_refuses_before_the_body_is_read(go: Go, kit: Kit):
    async def main() -> None:
        limits = {"max_buffered": 300_000}
        async with kit.running(kit.config(server=limits)) as gateway:
            async with await gateway.caller() as holder, await gateway.caller() as caller:
                holder.send(kit.post(b"x" * 250_000)[:-1000])
                await kit.until(lambda: gateway.app.buffered_bytes > 240_000)
                head = kit.post(b"x" * 100_000).partition(b"\r\n\r\n")[0]
                caller.send(
                    head.replace(b"\r\ncontent-l", b"\r\nexpect: 100-continue\r\ncontent-l")
                )
                caller.send(b"\r\n\r\n")
                answer = await caller.answer()
                assert (answer.status, answer.json["error"]["code"]) == (429, "overloaded")
                assert int(answer.headers["retry-after"]) >= 1
            await gateway.quiet()
            assert (await gateway.ask(kit.post(kit.chat(max_tokens=1)))).status == 200

    go(main())


def mutated(data: bytes, rng: Random) -> bytes:
    """Change a good request in a few places."""
    raw = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        at = rng.randrange(len(raw))
        kind = rng.randrange(5)
        if kind == 0:
            raw[at] = rng.randrange(256)
        elif kind == 1:
            del raw[at : at + rng.randrange(1, 9)]
        elif kind == 2:
            raw[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 3:
            raw[at:at] = rng.choice(
                [b"\r\n", b"\n", b"\r", b"\0", b":", b" ", b"\r\n\r\n", b"\xff"]
            )
        else:
            raw[at:at] = raw[rng.randrange(len(raw)) :][: rng.randrange(1, 40)]
    return bytes(raw)


def samples(kit: Kit) -> list[bytes]:
    body = kit.chat(max_tokens=2, sim={"output_tokens": 2})
    return [
        kit.post(body),
        kit.post(body | {"stream": True}),
        kit.post(body, "/v1/messages"),
        kit.post({"model": "m", "input": "x"}, "/v1/responses"),
        kit.post({"model": "m", "input": ["a", "b"]}, "/v1/embeddings"),
        kit.post({"model": "m", "prompt": "x"}, "/tokenize"),
        HEAD + CHUNKED + b"\r\n" + CHUNKS,
        kit.get("/v1/models"),
        kit.get("/readyz?pool=p"),
        kit.get("/v1/responses/resp_1?x=y"),
    ]


async def survives(gateway: Gateway, data: bytes) -> object:
    """Send bytes and close our side; None when all that comes back is whole answers."""
    async with await gateway.caller() as caller:
        caller.send(data)
        caller.writer.write_eof()
        rest = await caller.closed()
    while rest:
        head, gap, rest = rest.partition(b"\r\n\r\n")
        if not head.startswith(b"HTTP/1.1 ") or not gap:
            return head
        if b"\r\ncontent-length: " not in head.lower():
            return None  # a stream: the caller left in it
        length = int(head.lower().split(b"\r\ncontent-length: ")[1].split(b"\r\n")[0])
        if head[9:12] == b"500":
            return head + rest
        rest = rest[length:]
    return None


def test_mutated_requests_never_break_anything(go: Go, kit: Kit):
    async def main() -> None:
        rng = Random(4)
        limits = {"header_timeout": 1.0, "body_timeout": 1.0}
        async with kit.running(kit.config(server=limits)) as gateway:
            whole = samples(kit)

            async def some() -> None:
                for _ in range(40):
                    data = mutated(rng.choice(whole), rng)
                    assert await survives(gateway, data) is None, data

            await asyncio.gather(*(some() for _ in range(10)))
            assert await good(gateway)
            await gateway.quiet()

    go(main())


JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
ANSWERS = [
    JSON + b'content-length: 14\r\n\r\n{"object":"x"}',
    EVENTS + CHUNKED + b"\r\na\r\ndata: {}\n\n\r\ne\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
    b'HTTP/1.1 400 Bad\r\ncontent-length: 31\r\n\r\n{"error":{"message":"a","x":1}}',
    b"HTTP/1.1 503 Busy\r\nretry-after: 1\r\nconnection: close\r\n\r\nbusy",
    b"HTTP/1.0 200 OK\r\ncontent-type: application/json\r\n\r\n{}",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 None\r\n\r\n",
]


def test_mutated_answers_of_engines_never_break_anything(go: Go, kit: Kit):
    async def main() -> None:
        rng = Random(5)

        async def script(peer: Peer, _request: bytes, _number: int) -> bool:
            peer.send(mutated(rng.choice(ANSWERS), rng))
            return False

        health = {"interval": 3600.0, "load_interval": 3600.0, "breaker_fails": 10_000}
        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], pool={"health": health})
            async with kit.running(settings) as gateway:
                seen: set[int] = set()
                for number in range(400):
                    stream = bool(number % 2)
                    async with await gateway.caller() as caller:
                        caller.send(kit.post(kit.chat(stream=stream)))
                        status, headers = await caller.head()
                        seen.add(status)
                        if "content-length" in headers:
                            await caller.reader.readexactly(int(headers["content-length"]))
                    gateway.pool.endpoints["e0"].health.probe_passed(0.0)
                assert {200, 502} <= seen
                assert 500 not in seen
                await gateway.quiet()

    go(main())


def test_a_good_request_follows_each_bad_one_on_the_same_connection(go: Go, kit: Kit):
    async def main() -> None:
        bad: list[tuple[bytes, int]] = [
            (kit.post(b"{"), 400),
            (kit.post({}, "/v1/nothing"), 404),
            (kit.get(CHAT), 405),
            (kit.post(b"x" * 5000, headers="content-encoding: br\r\n"), 415),
            (kit.post(b"x" * 60_000, "/v1/nothing"), 404),
            (HEAD.replace(b"/v1/chat", b"/v2/chat") + CHUNKED + b"\r\n" + CHUNKS, 404),
        ]
        async with (
            kit.running(kit.config()) as gateway,
            await gateway.caller() as caller,
        ):
            for data, status in bad:
                caller.send(data + GET)
                assert (await caller.answer()).status == status
                assert (await caller.answer()).body == b'{"status":"ok"}'

    go(main())


def test_pipelined_requests_are_answered_in_order(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.running(kit.config()) as gateway,
            await gateway.caller() as caller,
        ):
            lengths = [3, 1, 7, 2, 5]
            bodies: list[dict[str, Any]] = [
                kit.chat(sim={"output_tokens": n}, stream=bool(n % 3)) for n in lengths
            ]
            caller.send(b"".join(kit.post(body) for body in bodies))
            for n, body in zip(lengths, bodies, strict=True):
                answer = await caller.answer()
                if body["stream"]:
                    assert answer.body.count(b'"content":') >= n
                else:
                    assert answer.json["usage"]["completion_tokens"] == n

    go(main())
