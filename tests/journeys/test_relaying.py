"""What the engine sent is what the caller gets, at the pace the caller takes it."""

from __future__ import annotations

import asyncio
import itertools
import json
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from tests.conftest import Peer
    from tests.journeys.conftest import Go, Kit

USAGE = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}


def transcript(kit: Kit, ending: str = "\n") -> tuple[bytes, bytes]:
    """Make a stream with all that may be in one; return it, and its event that tells usage."""
    tool = {"index": 0, "id": "t", "function": {"name": "f", "arguments": '{"a":'}}
    pieces = [
        kit.delta("é 中文 🎉"),
        b": comment\n\n",
        b"event: x\nid: 7\ndata: {}\n\n",
        kit.delta("", usage=None, logprobs={"content": [{"token": "a"}]}),
        b'data:{"choices":[{"index":1,"delta":{"reasoning_content":"hm"}}]}\n\n',
        b"data: %b\n\n"
        % json.dumps({"choices": [{"index": 2, "delta": {"tool_calls": [tool]}}]}).encode(),
        b'data: {"choices":\ndata: [{"index":0,"delta":{"content":"two lines"}}]}\n\n',
        b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n',
    ]
    usage = b"data: %b\n\n" % json.dumps({"choices": [], "usage": USAGE}).encode()
    whole = b"".join([*pieces, usage, kit.done])
    return tuple(text.replace(b"\n", ending.encode()) for text in (whole, usage))  # type: ignore[return-value] - two


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["lf", "crlf"])
@pytest.mark.parametrize("asked", [False, True], ids=["not asked", "asked"])
def test_a_stream_cut_anywhere_arrives_as_it_was_sent(
    go: Go, kit: Kit, ending: str, *, asked: bool
):
    whole, usage = transcript(kit, ending)
    rng = Random(1)
    cuts = [[cut] for cut in range(1, len(whole), 7)]
    cuts += [sorted(rng.sample(range(1, len(whole)), 12)) for _ in range(20)]

    async def main() -> None:
        async def script(peer: Peer, _request: bytes, number: int) -> None:
            peer.send(kit.events_head())
            places = [0, *cuts[number], len(whole)]
            for start, end in itertools.pairwise(places):
                peer.send(kit.chunk(whole[start:end]))
                await peer.drain()
                await asyncio.sleep(0)
            peer.send(kit.chunk(b""))

        options: dict[str, Any] = {"stream_options": {"include_usage": True}} if asked else {}
        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
            await gateway.caller() as caller,
        ):
            for _ in cuts:
                caller.send(kit.post(kit.chat(stream=True, **options)))
                answer = await caller.answer()
                assert answer.headers["content-type"] == "text/event-stream"
                assert answer.body == (whole if asked else whole.replace(usage, b""))
            assert {o.finish for o in gateway.outcomes} == {Finish.COMPLETED}
            assert {(o.prompt_tokens, o.output_tokens) for o in gateway.outcomes} == {(7, 3)}

    go(main())


def test_whole_answers_arrive_as_they_were_sent(go: Go, kit: Kit):
    async def main() -> None:
        bodies = [b'{ "id" : "\\u00e9",\n"choices":[ ] }', b"[]", b"\x00\xff", b"", b"x" * 300_000]

        async def script(peer: Peer, _request: bytes, number: int) -> None:
            peer.send(kit.whole(bodies[number]))

        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
            await gateway.caller() as caller,
        ):
            for body in bodies:
                caller.send(kit.post(kit.chat()))
                assert (await caller.answer()).body == body

    go(main())


def test_an_answer_past_the_limit_is_relayed_as_it_comes(go: Go, kit: Kit):
    async def main() -> None:
        begun = asyncio.Event()
        body = bytes(Random(1).randbytes(400_000))

        async def script(peer: Peer, _request: bytes, _number: int) -> None:
            answer = kit.whole(body)
            peer.send(answer[:200_000])
            await begun.wait()
            peer.send(answer[200_000:])

        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], server={"max_answer": 100_000})
            async with kit.running(settings) as gateway, await gateway.caller() as caller:
                caller.send(kit.post(kit.chat()))
                status, _ = await caller.head()
                first = await caller.chunk()
                begun.set()
                parts = [first]
                while part := await caller.chunk():
                    parts.append(part)
                assert (status, b"".join(parts)) == (200, body)
                assert gateway.app.buffered_bytes == 0

    go(main())


def test_a_relayed_answer_that_is_cut_ends_with_the_connection(go: Go, kit: Kit):
    async def main() -> None:
        async def script(peer: Peer, _request: bytes, _number: int) -> bool:
            peer.send(kit.whole(b"x" * 400_000)[:300_000])
            return False

        async with kit.engine(script) as engine:
            settings = kit.config([engine.section()], server={"max_answer": 100_000})
            async with kit.running(settings) as gateway, await gateway.caller() as caller:
                caller.send(kit.post(kit.chat()))
                await caller.head()
                rest = await caller.closed()
                assert not rest.endswith(b"0\r\n\r\n")
                await gateway.quiet()
                assert [o.finish for o in gateway.outcomes] == [Finish.TRUNCATED]

    go(main())


def endless(kit: Kit, sent: list[int], stopped: asyncio.Event) -> Any:
    async def script(peer: Peer, _request: bytes, _number: int) -> bool:
        peer.send(kit.events_head())
        part = kit.chunk(kit.delta("x" * 10_000))
        try:
            while True:
                peer.send(part)
                await peer.drain()
                sent[0] += len(part)
        finally:
            stopped.set()

    return script


async def standstill(sent: list[int]) -> int:
    """Wait until no more is sent; return how much was."""
    before = -1
    while sent[0] != before:
        before = sent[0]
        await asyncio.sleep(0.1)
    return before


def test_a_slow_caller_pauses_the_engine(go: Go, kit: Kit):
    async def main() -> None:
        sent, stopped = [0], asyncio.Event()
        async with kit.engine(endless(kit, sent, stopped)) as engine:
            timeouts = {"idle": 0.3}
            settings = kit.config([engine.section()], pool={"timeouts": timeouts})
            async with kit.running(settings) as gateway:
                caller = await gateway.caller()
                caller.writer.transport.pause_reading()  # type: ignore[attr-defined] - a socket's
                caller.send(kit.post(kit.chat(stream=True)))
                paused_at = await standstill(sent)
                assert 0 < paused_at < 32 << 20  # what the sockets of both sides hold
                assert gateway.app.buffered_bytes < 1 << 20  # what this side holds for it
                await asyncio.sleep(1.0)  # past the idle limit: it is not the engine that is idle
                caller.writer.transport.resume_reading()  # type: ignore[attr-defined] - a socket's
                await caller.head()
                while sent[0] < paused_at + 1_000_000:
                    await caller.chunk()
                caller.leave()
                await stopped.wait()
                await gateway.quiet()
                assert [o.finish for o in gateway.outcomes] == [Finish.LEFT]

    go(main())


def test_a_caller_that_takes_nothing_is_closed_and_its_engine_stopped(go: Go, kit: Kit):
    async def main() -> None:
        sent, stopped = [0], asyncio.Event()
        async with kit.engine(endless(kit, sent, stopped)) as engine:
            settings = kit.config([engine.section()], server={"client_stall": 0.2})
            async with kit.running(settings) as gateway:
                caller = await gateway.caller()
                caller.writer.transport.pause_reading()  # type: ignore[attr-defined] - a socket's
                caller.send(kit.post(kit.chat(stream=True)))
                await stopped.wait()
                await gateway.quiet()
                assert [o.finish for o in gateway.outcomes] == [Finish.LEFT]
                caller.leave()

    go(main())


def test_an_engine_that_reads_slowly_gets_the_whole_body(go: Go, kit: Kit):
    async def main() -> None:
        async with (
            kit.engine(kit.whole({"choices": []})) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            body = kit.chat("x" * 3_000_000)
            assert (await gateway.ask(kit.post(body))).status == 200
            assert json.loads(engine.bodies[0]) == body
            await gateway.quiet()

    go(main())


def test_the_callers_model_name_is_replaced_in_place(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.engine(kit.whole({"choices": []})) as engine:
            settings = kit.config([engine.section()], pool={"models": {"m": "org/model"}})
            async with kit.running(settings) as gateway:
                raw = (
                    b'{"messages":[{"model":"m"}], "mod\\u0065l" : "m" ,"x":"\\"model\\":\\"m\\""}'
                )
                await gateway.ask(kit.post(raw))
                assert engine.bodies == [raw.replace(b': "m" ', b': "org/model" ')]

    go(main())


def test_engine_headers_stay_with_the_engine(go: Go, kit: Kit):
    async def main() -> None:
        secret = (
            b"x-engine-key: canary\r\nset-cookie: canary\r\nserver: canary\r\nx-request-id: c\r\n"
        )
        async with (
            kit.engine(kit.whole({"choices": []}, headers=secret)) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            answer = await gateway.ask(kit.post(kit.chat(), headers="x-request-id: mine\r\n"))
            assert set(answer.headers) == {
                "date",
                "content-type",
                "content-length",
                "x-request-id",
                "x-forebay-pool",
                "x-forebay-endpoint",
                "x-forebay-queue-ms",
            }
            assert answer.headers["x-request-id"] == "mine"
            assert "canary" not in str(answer)

    go(main())


@pytest.mark.parametrize("stream", [False, True])
def test_kept_connections_to_engines_are_used_again(go: Go, kit: Kit, *, stream: bool):
    async def main() -> None:
        async def script(peer: Peer, _request: bytes, _number: int) -> None:
            if stream:
                body = kit.chunk(kit.delta("a") + kit.done) + kit.chunk(b"")
                peer.send(kit.events_head() + body)
            else:
                peer.send(kit.whole({"choices": []}))

        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
            await gateway.caller() as caller,
        ):
            opener: Any = gateway.pool.endpoints["e0"].opener
            for _ in range(5):
                caller.send(kit.post(kit.chat(stream=stream)))
                assert (await caller.answer()).status == 200
            assert opener.open_connections == 1

    go(main())


def test_comments_keep_an_idle_stream_open_at_event_boundaries_only(go: Go, kit: Kit):
    async def main() -> None:
        go_on = asyncio.Event()
        half = kit.delta("b")[:20]

        async def script(peer: Peer, _request: bytes, _number: int) -> bool:
            peer.send(kit.events_head() + kit.chunk(kit.delta("a")))
            await go_on.wait()
            peer.send(kit.chunk(half))
            await peer.gone()
            return False

        def idle(seconds: float) -> None:
            (relay,) = gateway.app.active
            assert relay._attempt is not None
            relay._attempt.last_bytes = gateway.app.now() - seconds
            relay._attempt._commented = 0.0
            relay.check(gateway.app.now())

        options: dict[str, Any] = {"stream_options": {"include_usage": True}}
        async with (
            kit.engine(script) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=True, **options)))
            await caller.head()
            assert await caller.chunk() == kit.delta("a")
            idle(1.0)
            idle(16.0)
            assert await caller.chunk() == b": keep-alive\n\n"
            go_on.set()
            assert await caller.chunk() == half
            idle(16.0)
            idle(100.0)  # past the limit
            assert b"engine_timeout" in await caller.chunk()
            caller.leave()

    go(main())
