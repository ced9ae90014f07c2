"""A caller may leave at any moment: the engine stops, and everything is given back at once."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from contextlib import ExitStack, contextmanager
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from forebay.policies.contracts import Finish

if TYPE_CHECKING:
    from collections.abc import Generator

    from tests.conftest import Peer
    from tests.journeys.conftest import Gateway, Go, Kit


@contextmanager
def full_backlog() -> Generator[int]:
    """Listen, and let nobody in: a connection is never made and never refused."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(2):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def ends(gateway: Gateway, *finishes: Finish) -> None:
    await gateway.quiet()
    assert [outcome.finish for outcome in gateway.outcomes] == list(finishes)


def test_a_caller_that_leaves_while_uploading_holds_nothing(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config()) as gateway:
            caller = await gateway.caller()
            caller.send(kit.post(b"x" * 100_000)[:50_000])
            await kit.until(lambda: gateway.app.buffered_bytes > 40_000)
            caller.leave()
            await ends(gateway)

    go(main())


def test_a_caller_that_leaves_the_queue_frees_its_place(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config([kit.sim(max_in_flight=1)])
        async with kit.running(settings) as gateway:
            first, second = await gateway.caller(), await gateway.caller()
            first.send(kit.post(kit.chat(sim={"fault": "stall"})))
            await kit.until(lambda: gateway.pool.dispatcher.in_flight)
            second.send(kit.post(kit.chat()))
            await kit.until(lambda: gateway.pool.dispatcher.queued)
            second.leave()
            await kit.until(lambda: not gateway.pool.dispatcher.queued)
            first.leave()
            await ends(gateway, Finish.LEFT, Finish.LEFT)

    go(main())


def test_a_caller_that_leaves_before_the_connection_stands_cancels_it(go: Go, kit: Kit):
    async def main() -> None:
        with full_backlog() as port:
            section = {"name": "e0", "engine": "openai", "url": f"http://127.0.0.1:{port}"}
            async with kit.running(kit.config([section])) as gateway:
                opener: Any = gateway.pool.endpoints["e0"].opener
                caller = await gateway.caller()
                caller.send(kit.post(kit.chat()))
                await kit.until(lambda: opener.open_connections)
                caller.leave()
                await ends(gateway, Finish.LEFT)
                await kit.until(lambda: not opener.open_connections)

    go(main())


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_before_the_first_byte_closes_the_engines_connection(
    go: Go, kit: Kit, *, stream: bool
):
    async def main() -> None:
        gone = asyncio.Event()

        async def answer(peer: Peer, _request: bytes, _number: int) -> bool:
            await peer.gone()
            gone.set()
            return False

        async with (
            kit.engine(answer) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=stream)))
            await kit.until(lambda: engine.requests)
            caller.leave()
            await gone.wait()
            await ends(gateway, Finish.LEFT)
            assert gateway.outcomes[0].status == 499

    go(main())


def test_a_caller_that_leaves_in_mid_stream_closes_the_engines_connection(go: Go, kit: Kit):
    async def main() -> None:
        gone = asyncio.Event()

        async def answer(peer: Peer, _request: bytes, _number: int) -> bool:
            peer.send(kit.events_head() + kit.chunk(kit.delta("a")))
            await peer.gone()
            gone.set()
            return False

        async with (
            kit.engine(answer) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=True)))
            await caller.head()
            assert await caller.chunk() == kit.delta("a")
            caller.leave()
            await gone.wait()
            await ends(gateway, Finish.LEFT)

    go(main())


def test_a_caller_that_leaves_during_a_whole_answer_closes_the_engines_connection(go: Go, kit: Kit):
    async def main() -> None:
        gone = asyncio.Event()

        async def answer(peer: Peer, _request: bytes, _number: int) -> bool:
            peer.send(kit.whole(b"x" * 1000)[:500])
            await peer.gone()
            gone.set()
            return False

        async with (
            kit.engine(answer) as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat()))
            await kit.until(lambda: gateway.app.buffered_bytes > 300)
            caller.leave()
            await gone.wait()
            await ends(gateway, Finish.LEFT)

    go(main())


def test_a_caller_that_leaves_during_a_retry_stops_the_second_engine(go: Go, kit: Kit):
    async def main() -> None:
        gone = asyncio.Event()

        refuse = kit.whole({"error": {"message": "full"}}, status=503)

        async def hang(peer: Peer, _request: bytes, _number: int) -> bool:
            await peer.gone()
            gone.set()
            return False

        async with kit.engine(refuse) as full, kit.engine(hang) as hung:
            settings = kit.config([full.section("full"), hung.section("hung")])
            async with kit.running(settings) as gateway:
                gateway.pool.endpoints["hung"].view.in_flight_tokens += 10_000  # last choice
                caller = await gateway.caller()
                caller.send(kit.post(kit.chat()))
                await kit.until(lambda: hung.requests)
                assert len(full.requests) == 1
                caller.leave()
                await gone.wait()
                gateway.pool.endpoints["hung"].view.in_flight_tokens -= 10_000
                await ends(gateway, Finish.LEFT)
                assert gateway.outcomes[0].attempts == 2

    go(main())


def test_a_caller_that_leaves_in_a_drain_lets_it_end(go: Go, kit: Kit):
    async def main() -> None:
        settings = kit.config(server={"drain": {"notice": 0.0, "limit": 60.0}})
        async with kit.running(settings) as gateway:
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=True, sim={"fault": "stall_after_first"})))
            await caller.head()
            gateway.process.stop()
            await kit.until(lambda: gateway.process.snapshot().draining)
            caller.leave()
            assert await asyncio.wait_for(gateway.task, 10) == 0
            assert [outcome.finish for outcome in gateway.outcomes] == [Finish.LEFT]
            assert gateway.leaks() == {}

    go(main())


@pytest.mark.parametrize("stream", [False, True])
def test_an_embedded_engine_stops_when_its_caller_leaves(go: Go, kit: Kit, *, stream: bool):
    async def main() -> None:
        section = kit.sim(profile="demo")
        async with kit.running(kit.config([section])) as gateway:
            engine = gateway.pool.endpoints["e0"].embedded
            assert engine is not None
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=stream, sim={"output_tokens": 5000})))
            await kit.until(lambda: engine.running)
            caller.leave()
            await kit.until(lambda: not engine.running)
            await ends(gateway, Finish.LEFT)

    go(main())


def test_what_left_lets_the_next_in_the_queue_go(go: Go, kit: Kit):
    async def main() -> None:
        async with kit.running(kit.config([kit.sim(max_in_flight=1)])) as gateway:
            first, second = await gateway.caller(), await gateway.caller()
            first.send(kit.post(kit.chat(sim={"fault": "stall"})))
            await kit.until(lambda: gateway.pool.dispatcher.in_flight)
            second.send(kit.post(kit.chat()))
            await kit.until(lambda: gateway.pool.dispatcher.queued)
            first.leave()
            assert (await second.answer()).status == 200
            second.leave()
            await ends(gateway, Finish.LEFT, Finish.COMPLETED)

    go(main())


FAULTS = (None, None, "error503", "cut", "slow", "empty", "refuse", "stall", "stall_after_first")


async def one_of_many(gateway: Gateway, kit: Kit, rng: Random) -> None:
    """Send one request with a fault or none, and leave it at some moment or never."""
    members: dict[str, Any] = {"output_tokens": rng.randrange(1, 20)}
    fault = rng.choice(FAULTS)
    if fault is not None:
        members["fault"] = fault
    data = kit.post(kit.chat("x" * rng.randrange(2000), stream=rng.random() < 0.6, sim=members))
    caller = await gateway.caller()
    moment = rng.choice(["uploading", "sent", "head", "chunk", "end", "end"])
    if fault is not None and "stall" in fault and moment == "end":
        moment = "sent"
    try:
        caller.send(data[: rng.randrange(len(data))] if moment == "uploading" else data)
        if moment == "sent":
            for _ in range(rng.randrange(20)):
                await asyncio.sleep(0)
        elif moment in ("head", "chunk") and not (fault and "stall" in fault):
            _, headers = await caller.head()
            if moment == "chunk" and "transfer-encoding" in headers:
                await caller.chunk()
        elif moment == "end":
            await caller.answer()
    except (ConnectionError, asyncio.IncompleteReadError):
        pass
    finally:
        caller.leave()


async def many(kit: Kit, count: int, seed: int) -> None:
    sections = [kit.sim(f"e{i}", seed=i, max_in_flight=8) for i in range(3)]
    health = {"interval": 3600.0, "load_interval": 3600.0, "breaker_open": 0.05}
    settings = kit.config(sections, pool={"health": health})
    async with kit.running(settings) as gateway:
        rng, left = Random(seed), iter(range(count))

        async def work() -> None:
            for _ in left:
                await one_of_many(gateway, kit, rng)

        await asyncio.gather(*(work() for _ in range(40)))
        await gateway.quiet()
        for endpoint in gateway.pool.endpoints.values():
            assert endpoint.embedded is not None
            assert endpoint.embedded.running == 0
        assert len({outcome.request_id for outcome in gateway.outcomes}) == len(gateway.outcomes)
        assert {Finish.LEFT, Finish.COMPLETED} <= {o.finish for o in gateway.outcomes}


async def some_events(peer: Peer, kit: Kit, rng: Random) -> bool:
    """Send a stream, or the beginning of one."""
    peer.send(kit.events_head())
    for _ in range(rng.randrange(5)):
        peer.send(kit.chunk(kit.delta("x" * rng.randrange(2000))))
        await peer.drain()
        await asyncio.sleep(0)
    if rng.random() < 0.4:
        return False
    peer.send(kit.chunk(kit.done) + kit.chunk(b""))
    return True


def moody(kit: Kit, rng: Random) -> Any:
    """Script an engine on a socket that may do anything at all."""

    async def script(peer: Peer, request: bytes, _number: int) -> bool:
        mood = rng.randrange(8)
        if mood == 0:
            peer.send(kit.whole({"error": {"message": "no"}}, status=rng.choice([400, 500, 503])))
        elif mood == 1:
            peer.send(kit.whole(b"x" * rng.randrange(50_000))[: rng.randrange(1, 60_000)])
            return False
        elif mood == 2:
            return False
        elif mood == 3:
            peer.reset()
            return False
        elif mood == 4:
            await peer.gone()
            return False
        elif b'"stream": true' in request:
            return await some_events(peer, kit, rng)
        else:
            peer.send(kit.whole(b"x" * rng.randrange(50_000)))
        return True

    return script


async def impatient(gateway: Gateway, kit: Kit, rng: Random) -> None:
    """Send a request and leave at some moment, at the end at the latest."""
    data = kit.post(kit.chat("x" * rng.randrange(2000), stream=rng.random() < 0.5))
    caller = await gateway.caller()
    caller.send(data)
    try:
        async with asyncio.timeout(rng.choice([0.0, 0.002, 0.02, 0.5])):
            await caller.answer()
    except (ConnectionError, asyncio.IncompleteReadError, TimeoutError):
        pass
    finally:
        caller.leave()


async def many_over_sockets(kit: Kit, count: int, seed: int) -> None:
    rng = Random(seed)
    health = {"interval": 3600.0, "load_interval": 3600.0, "breaker_fails": 10_000}
    pool = {"health": health, "retry": {"budget": 1.0}}
    async with kit.engine(moody(kit, rng)) as one, kit.engine(moody(kit, rng)) as two:
        sections = [one.section("e0", max_in_flight=6), two.section("e1", max_in_flight=6)]
        async with kit.running(kit.config(sections, pool=pool)) as gateway:
            left = iter(range(count))

            async def work() -> None:
                for _ in left:
                    await impatient(gateway, kit, rng)

            await asyncio.gather(*(work() for _ in range(30)))
            await gateway.quiet()
            for endpoint in gateway.pool.endpoints.values():
                opener: Any = endpoint.opener
                await kit.until(lambda opener=opener: opener.open_connections == opener.idle)
            seen = {outcome.finish for outcome in gateway.outcomes}
            assert {Finish.LEFT, Finish.COMPLETED, Finish.TRUNCATED, Finish.REJECTED} <= seen
            assert 2 in {outcome.attempts for outcome in gateway.outcomes}


def test_a_thousand_requests_over_sockets_leak_nothing(go: Go, kit: Kit):
    go(many_over_sockets(kit, 1_000, seed=3))


@pytest.mark.slow
def test_ten_thousand_requests_over_sockets_leak_nothing(go: Go, kit: Kit):
    go(many_over_sockets(kit, 10_000, seed=4))


def test_a_thousand_requests_with_faults_and_departures_leak_nothing(go: Go, kit: Kit):
    go(many(kit, 1_000, seed=1))


@pytest.mark.slow
def test_ten_thousand_requests_with_faults_and_departures_leak_nothing(go: Go, kit: Kit):
    go(many(kit, 10_000, seed=2))


@pytest.mark.parametrize("stream", [False, True])
def test_sglang_is_told_to_stop_by_the_id_that_we_gave_it(go: Go, kit: Kit, *, stream: bool):
    async def main() -> None:
        async def script(peer: Peer, _request: bytes, _number: int) -> bool:
            if stream:
                peer.send(kit.events_head() + kit.chunk(kit.delta("a")))
            await peer.gone()
            return False

        def aborts() -> list[Any]:
            told = [request for request in engine.control if b"/abort_request" in request]
            return [json.loads(request.partition(b"\r\n\r\n")[2]) for request in told]

        async with (
            kit.engine(script, kind="sglang") as engine,
            kit.running(kit.config([engine.section()])) as gateway,
        ):
            caller = await gateway.caller()
            caller.send(kit.post(kit.chat(stream=stream)))
            await kit.until(lambda: engine.requests)
            if stream:
                await caller.head()
            caller.leave()
            await kit.until(lambda: len(aborts()) == 2)
            rid = json.loads(engine.bodies[0])["rid"]
            assert re.fullmatch("[0-9a-f]{32}", rid)
            assert [said["rid"] for said in aborts()] == [rid, f"resp_{rid}"]
            await ends(gateway, Finish.LEFT)

    go(main())
